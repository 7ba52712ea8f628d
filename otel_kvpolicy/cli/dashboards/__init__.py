"""The command ``otel-kvpolicy dashboards``, and access to the built dashboards and rules."""

"""``otel-kvpolicy dashboards``."""

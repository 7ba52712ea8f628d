"""The command ``otel-kvpolicy warm``."""

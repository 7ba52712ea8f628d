"""Spans with decisions, read from files, the decision log, Jaeger, Tempo and Phoenix."""

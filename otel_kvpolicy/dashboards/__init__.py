"""Grafana dashboards and Prometheus rules, generated from the names of the metrics they show."""

from .build import files

__all__ = ["files"]

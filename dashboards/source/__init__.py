"""Generator of the Grafana dashboards and Prometheus rules; not part of the installed package."""

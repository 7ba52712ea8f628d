"""Alerts reach the receiver of a real Alertmanager, and are resolved, over the whole OTLP path."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from otel_kvpolicy.standin import StandIn

from ..dashboards.live import LOOPBACK, App, free_port, until
from .servers import ROOT, Alertmanager, Collector, Prometheus

pytestmark = pytest.mark.live


class Webhook:
    """Receives what Alertmanager sends: name, status, and annotations of each alert."""

    def __init__(self) -> None:
        self.alerts: list[tuple[str, str, dict[str, str]]] = []
        alerts = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                alerts.extend(
                    (alert["labels"]["alertname"], alert["status"], alert["annotations"])
                    for alert in body["alerts"]
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """No log."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://{LOOPBACK}:{self._server.server_port}"

    def got(self, name: str, status: str) -> dict[str, str] | None:
        """Return the annotations of an alert with this status, or None if none has come."""
        return next((text for *key, text in self.alerts if key == [name, status]), None)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    yield hook
    hook.close()


def hurried_rules(folder: Path) -> Path:
    """Copy the alerts, with seconds for minutes, so that they fire and resolve during a test."""
    text = (ROOT / "dashboards" / "rules" / "alerts.yaml").read_text()
    path = folder / "alerts.yaml"
    path.write_text(
        re.sub(
            r"(?<=[\[ ])(\d+)m\b(?=\]|\)|\s|$)",
            lambda found: f"{found[1]}s",
            text,
        )
    )
    return path


def test_alerts_fire_and_resolve(tmp_path: Path, webhook: Webhook) -> None:
    alertmanager = Alertmanager(tmp_path / "alertmanager", webhook.url)
    lmcache = free_port()
    prometheus = Prometheus(
        tmp_path / "prometheus", {"lmcache": lmcache}, alertmanager=alertmanager.port
    )
    config = prometheus.folder / "prometheus.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["rule_files"] = [str(hurried_rules(tmp_path))]
    config.write_text(yaml.safe_dump(settings))
    collector = Collector(
        "app",
        tmp_path / "app",
        PROMETHEUS_ENDPOINT=prometheus.url,
        TEMPO_ENDPOINT="127.0.0.1:1",
    )
    with (
        alertmanager,
        prometheus,
        collector,
        StandIn(strict="groq") as vendor,
        App(collector.url) as app,
    ):
        app.calls(vendor.base_url, "rejected")
        rejected = until(
            lambda: webhook.got("KVPolicyHintRejected", "firing"), "a rejected hint fires"
        )
        assert LOOPBACK in rejected["summary"]
        until(lambda: webhook.got("LMCacheSilent", "firing"), "a silent LMCache fires")
        with StandIn(lmcache_port=lmcache):
            until(lambda: webhook.got("LMCacheSilent", "resolved"), "LMCache is back")
        until(
            lambda: webhook.got("KVPolicyHintRejected", "resolved"),
            "no hint has been rejected for a while",
        )

"""The load generator of the compose file, run as the compose file runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_kvpolicy.telemetry import names

from ..dashboards.live import free_port
from .otlp import Sink

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_load_sends_decisions() -> None:
    with Sink() as sink:
        ports = [f"--port={free_port()}", f"--lmcache-port={free_port()}"]
        command = [
            str(Path(sys.executable).with_name("opentelemetry-instrument")),
            sys.executable,
            str(ROOT / "collector" / "load.py"),
            *ports,
        ]
        environment = {
            **os.environ,
            "OTEL_SERVICE_NAME": "demo",
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_LOGS_EXPORTER": "none",
        }
        options = ["--calls=150", "--rate=1000"]
        done = subprocess.run(
            [*command, *options],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        decisions = {sink.attributes(span).get(names.DECISION) for span in sink.spans}
        assert {names.STORE, names.SKIP} <= decisions
        assert sink.total(names.DECISIONS.name) == 150

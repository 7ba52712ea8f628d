"""Calls succeed although the exporter is down, refuses connections, or hangs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

CALL: dict[str, Any] = {
    "model": "stand-in",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
}

APP = """
from openai import OpenAI
body = dict(model="stand-in", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
with OpenAI(api_key="key") as client:
    print(client.chat.completions.create(**body).choices[0].message.content)
    print(sum(1 for chunk in client.chat.completions.create(**body, stream=True)))
"""


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_calls_succeed_without_a_collector(server: StandIn, protocol: str) -> None:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "KV_CACHE_"))
    }
    environment = {
        **clean,
        "OPENAI_BASE_URL": server.base_url,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{closed_port()}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    command = [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        "--logs_exporter",
        "none",
        sys.executable,
        "-c",
        APP,
    ]
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=120
    )
    plain = subprocess.run(
        [sys.executable, "-c", APP],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert ["kv_transfer_params" in request.body for request in server.requests] == [
        True,
        True,
        False,
        False,
    ]


class HangingExporter(SpanExporter):
    """An exporter that blocks until it is released."""

    def __init__(self) -> None:
        self.called, self.released = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.called.set()
        self.released.wait(60)
        return SpanExportResult.SUCCESS


def test_calls_succeed_while_the_exporter_hangs(server: StandIn, telemetry: Telemetry) -> None:
    exporter, provider, instrumentor = HangingExporter(), TracerProvider(), KVPolicyInstrumentor()
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter, max_queue_size=16, max_export_batch_size=1, schedule_delay_millis=1
        )
    )
    instrumentor.instrument(tracer_provider=provider, meter_provider=telemetry.meter_provider)
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            for _ in range(32):  # twice what the queue holds
                assert client.chat.completions.create(**CALL).id
            assert exporter.called.wait(20)
            assert not exporter.released.is_set()
    finally:
        exporter.released.set()
        instrumentor.uninstrument()
        provider.shutdown()
    assert telemetry.total("kvpolicy.decisions") == 32
    assert telemetry.total("kvpolicy.errors") == 0

"""The configurations in a real Collector on the PATH: otelcol-kvpolicy or otelcol-contrib."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from dashboards.source.queries import label
from otel_kvpolicy import series as servers
from otel_kvpolicy.telemetry import names

from ..dashboards.live import free_port, until
from ..real_telemetry.servers import program
from .otlp import Sink

pytestmark = pytest.mark.live

FOLDER = Path(__file__).parents[2] / "collector"
REST = 400
SECRET = "my password is hunter2"


@pytest.fixture
def otelcol() -> str:
    """The Collector that `make real-telemetry` builds, or else one on the PATH."""
    if os.environ.get("KVPOLICY_REAL_TELEMETRY"):
        return program("otelcol-kvpolicy")
    for name in ("otelcol-kvpolicy", "otelcol-contrib", "otelcol"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Collector: make real-telemetry builds one")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "QUEUE_DIR": str(tmp_path / "queue"),
        "UPSTREAM_ENDPOINT": "127.0.0.1:1",
        **more,
    }


@pytest.mark.parametrize("config", ["app", "gb10", "gateway"])
def test_the_collector_accepts_the_configuration(otelcol: str, config: str, tmp_path: Path) -> None:
    command = [otelcol, "validate", f"--config={FOLDER / f'{config}.yaml'}"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as running:
        yield running


@pytest.fixture
def endpoint(otelcol: str, sink: Sink, tmp_path: Path) -> Iterator[str]:
    """Run app.yaml on free ports and with short waits.

    It exports over HTTP to a sink in place of Tempo and Prometheus.
    """
    http = free_port()
    override = {
        "receivers": {
            "otlp": {
                "protocols": {
                    "grpc": {"endpoint": f"127.0.0.1:{free_port()}"},
                    "http": {"endpoint": f"127.0.0.1:{http}"},
                }
            }
        },
        "processors": {"tail_sampling": {"decision_wait": "1s"}},
        "connectors": {"span_metrics": {"metrics_flush_interval": "1s"}},
        "exporters": {
            "otlp_http/tempo": {
                "endpoint": sink.url,
                "retry_on_failure": {
                    "initial_interval": "100ms",
                    "max_interval": "500ms",
                    "max_elapsed_time": "0s",
                },
                "sending_queue": {"storage": "file_storage", "batch": {}},
            },
            "otlp_http/prometheus": {
                "retry_on_failure": {"initial_interval": "100ms", "max_interval": "500ms"}
            },
        },
        "extensions": {"health_check": {"endpoint": f"127.0.0.1:{free_port()}"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces/sampled": {"exporters": ["otlp_http/tempo"]}},
        },
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(override))
    command = [otelcol, f"--config={FOLDER / 'app.yaml'}", f"--config={path}"]
    log = (tmp_path / "log").open("wb")
    with (
        log,
        subprocess.Popen(
            command, stdout=log, stderr=log, env=environment(tmp_path, PROMETHEUS_ENDPOINT=sink.url)
        ) as process,
    ):
        try:
            until(
                lambda: b"Everything is ready" in (tmp_path / "log").read_bytes() or process.poll(),
                "the Collector is ready",
            )
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            yield f"http://127.0.0.1:{http}"
        finally:
            process.terminate()


def send(
    endpoint: str, *, skip: int = 0, rejected: int = 0, failed: int = 0, rest: int = 0
) -> None:
    """Send one trace for each call."""
    provider = TracerProvider(
        resource=Resource({"service.name": "app", "service.instance.id": "one"})
    )
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces"), max_queue_size=5000)
    )
    tracer = provider.get_tracer("test")
    for count, decision, outcome in (
        (skip, "skip", "applied"),
        (rejected, "store", "rejected"),
        (failed, "store", "applied"),
        (rest, "store", "applied"),
    ):
        for _ in range(count):
            with tracer.start_as_current_span("chat m", kind=SpanKind.CLIENT) as span:
                span.set_attributes(
                    {
                        names.DECISION: decision,
                        names.HINT_OUTCOME: outcome,
                        names.REQUEST_MODEL: "m",
                        "gen_ai.input.messages": SECRET,
                    }
                )
                if count == failed and outcome == "applied" and decision == "store":
                    span.set_status(StatusCode.ERROR)
    provider.shutdown()


def kept(sink: Sink, **wanted: str) -> int:
    return sum(
        all(
            sink.attributes(span).get(key.replace("__", ".")) == value
            for key, value in wanted.items()
        )
        for span in sink.spans
    )


def test_important_calls_are_kept_and_all_calls_are_counted(endpoint: str, sink: Sink) -> None:
    send(endpoint, skip=30, rejected=20, failed=10, rest=REST)
    until(lambda: kept(sink, kvpolicy__decision="skip") == 30, "every skipped call is kept")
    until(
        lambda: kept(sink, kvpolicy__hint__outcome="rejected") == 20, "every rejected hint is kept"
    )
    until(
        lambda: sum(span.status.code == 2 for span in sink.spans) == 10, "every failed call is kept"
    )
    rest = len(sink.spans) - 60
    assert 0 < rest < REST / 2, "a share of the rest is kept"
    assert not [span for span in sink.spans if SECRET in str(span)], "content is masked"

    until(
        lambda: sink.total("traces.span.metrics.calls") == 60 + REST,
        "all calls are counted, not the kept ones",
    )
    labels = {
        name: dict(pairs) for pairs, *_ in sink.samples() for name in [dict(pairs)["__name__"]]
    }
    calls = labels[servers.SPAN_CALLS.name]
    assert calls["job"] == "app"
    assert {label(names.DECISION), label(names.HINT_OUTCOME), label(names.REQUEST_MODEL)} <= set(
        calls
    )
    assert f"{servers.SPAN_DURATION.name}_bucket" in labels
    assert any(
        exemplars
        for pairs, _, _, exemplars in sink.samples()
        if dict(pairs)["__name__"] == f"{servers.SPAN_DURATION.name}_bucket"
    )


def test_skipped_calls_survive_an_outage_of_the_backend(endpoint: str, sink: Sink) -> None:
    sink.failing = True
    send(endpoint, skip=50)
    until(lambda: sink.refused >= 3, "exports are refused and tried again")
    assert not sink.spans
    sink.failing = False
    until(lambda: kept(sink, kvpolicy__decision="skip") == 50, "every trace arrives")
    until(lambda: sink.total("traces.span.metrics.calls") == 50, "and so do the metrics")

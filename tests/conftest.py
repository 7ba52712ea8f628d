"""Fixtures that all tests share, and a summary of what could not run on this machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_kvpolicy import KVPolicyInstrumentor, settings
from otel_kvpolicy.instrumentation import finalizers
from otel_kvpolicy.standin import StandIn


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests were skipped and why, and which ones the markers left out."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    lines = [f"{count:5} skipped  {reason}" for reason, count in sorted(reasons.items())]
    expression = config.getoption("markexpr")
    if expression:
        lines.append(f'Selected only: -m "{expression}". Run everything with: make test-all')
    if lines:
        terminalreporter.section("not run")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture(autouse=True)
def clean_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset every setting, and forget what an earlier test left in the process."""
    for name in [name for name in os.environ if name.startswith("KV_CACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(settings, "_live", settings._Live())


@pytest.fixture(autouse=True)
def no_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let openai clients in this process retry at once instead of after half a second."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def scope_name(span: ReadableSpan) -> str:
    """Return the name of the instrumentation scope that recorded a span, or an empty string."""
    return span.instrumentation_scope.name if span.instrumentation_scope else ""


class Telemetry:
    """The spans and metrics that an instrumented process exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader])

    def spans(self, scope: str | None = None) -> list[ReadableSpan]:
        """Return the finished spans, only those of `scope` if it is given."""
        assert finalizers.flush(20)
        finished = self.exporter.get_finished_spans()
        return [span for span in finished if scope is None or scope_name(span) == scope]

    @property
    def decided(self) -> list[ReadableSpan]:
        """The finished spans that carry a decision."""
        return [span for span in self.spans() if "kvpolicy.decision" in (span.attributes or {})]

    def _all_points(self) -> list[tuple[str, Any]]:
        assert finalizers.flush(20)
        data = self.reader.get_metrics_data()
        return [
            (metric.name, point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the attributes and the value of each point; for a histogram, its sum."""
        return [
            (dict(point.attributes), point.value if hasattr(point, "value") else point.sum)
            for metric, point in self._all_points()
            if metric == name
        ]

    def exemplar_traces(self) -> dict[str, set[int]]:
        """Return the trace ids of the exemplars on each of this package's metrics."""
        traces: dict[str, set[int]] = {}
        for metric, point in self._all_points():
            if metric.startswith("kvpolicy."):
                traces.setdefault(metric, set()).update(
                    exemplar.trace_id for exemplar in point.exemplars
                )
        return traces

    def total(self, name: str) -> float:
        """Return the sum over a counter's points."""
        return sum((value for _, value in self.points(name)), 0.0)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    recorded = Telemetry()
    yield recorded
    recorded.tracer_provider.shutdown()
    recorded.meter_provider.shutdown()


@pytest.fixture
def instrumented(telemetry: Telemetry) -> Iterator[Telemetry]:
    """Instrument openai for one test and keep its telemetry in memory."""
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
    )
    yield telemetry
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture
def server(shared_server: StandIn) -> StandIn:
    """A stand-in that accepts the hint and has recorded no request yet."""
    shared_server.requests.clear()
    return shared_server

"""Fixtures that all tests share: clean settings, telemetry in memory, a server on loopback."""

from __future__ import annotations

import os
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

from .replay.full_traces import pytest_terminal_summary  # noqa: F401 - a hook: pytest finds it here


@pytest.fixture(autouse=True)
def clean_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with the default settings: no variable from outside, nothing set in code before."""
    for name in [name for name in os.environ if name.startswith("KV_CACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(settings, "_live", settings._Live())


class Telemetry:
    """What an instrumented process exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader])

    def spans(self, scope: str | None = None) -> list[ReadableSpan]:
        """Finished spans, of one instrumentation scope where named."""
        assert finalizers.flush(20)
        finished = self.exporter.get_finished_spans()
        return [
            span for span in finished if scope is None or span.instrumentation_scope.name == scope
        ]

    @property
    def decided(self) -> list[ReadableSpan]:
        """Finished spans that carry a decision."""
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
        """Attributes and value (sum, for histograms) of a metric's points."""
        return [
            (dict(point.attributes), point.value if hasattr(point, "value") else point.sum)
            for metric, point in self._all_points()
            if metric == name
        ]

    def exemplar_traces(self) -> dict[str, set[int]]:
        """The traces that the exemplars of this package's metrics lead to."""
        traces: dict[str, set[int]] = {}
        for metric, point in self._all_points():
            if metric.startswith("kvpolicy."):
                traces.setdefault(metric, set()).update(each.trace_id for each in point.exemplars)
        return traces

    def total(self, name: str) -> float:
        """The sum over a counter's points."""
        return sum(value for _, value in self.points(name))


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    recorded = Telemetry()
    yield recorded
    recorded.tracer_provider.shutdown()
    recorded.meter_provider.shutdown()


@pytest.fixture
def instrumented(telemetry: Telemetry) -> Iterator[Telemetry]:
    """The instrumentor switched on, its telemetry kept in memory."""
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
    """A server that takes the hint, its memory of requests emptied."""
    shared_server.requests.clear()
    return shared_server

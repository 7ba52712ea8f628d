"""Spans of decided calls, as the package writes them, made without a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context

from otel_kvpolicy.telemetry import names

Attributes = dict[str, str | int | list[str]]
STORED: Attributes = {
    names.DECISION: names.STORE,
    names.HINT_OUTCOME: "applied",
    names.REASONS: ["long_shared_prefix"],
    names.REQUEST_MODEL: "m",
    # As long as a real one, so that batches are as large as they would be.
    names.EXPLANATION: "Stored: the prefix of 1,524 tokens is at least 1,024 tokens long. " * 4,
    **{
        attribute.name: 1024
        for attribute in names.ATTRIBUTES
        if attribute.type == "int" and attribute.always
    },
}
SKIPPED: Attributes = STORED | {
    names.DECISION: names.SKIP,
    names.REASONS: ["one_off_short_prompt"],
}
REJECTED: Attributes = STORED | {names.HINT_OUTCOME: "rejected"}
FAULT: Attributes = STORED | {names.HINT_OUTCOME: "error"}


class Sender:
    """Sends spans of decided calls to a Collector, over HTTP.

    Args:
        endpoint: URL of the Collector.
        service: ``service.name``.
    """

    def __init__(self, endpoint: str, service: str = "app") -> None:
        resource = Resource({"service.name": service, "service.instance.id": "one"})
        self.provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(f"{endpoint}/v1/traces")
        self.provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=1 << 17))
        self._tracer = self.provider.get_tracer("test")

    def call(
        self, attributes: Attributes, *, parent: Span | None = None, failed: bool = False
    ) -> Span:
        """Record one finished call. Without a parent it is a trace of its own."""
        context = set_span_in_context(parent) if parent else None
        span = self._tracer.start_span("chat m", context, SpanKind.CLIENT, attributes)
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end()
        return span

    def calls(self, count: int, attributes: Attributes, *, failed: bool = False) -> None:
        """Record calls that are traces of their own."""
        for _ in range(count):
            self.call(attributes, failed=failed)

    def agent(self) -> Span:
        """Start a span that calls can have as their parent; end it yourself."""
        return self._tracer.start_span("invoke_agent")

    def flush(self) -> None:
        """Send everything that has been recorded."""
        assert self.provider.force_flush(30_000)


@contextmanager
def sending(endpoint: str, service: str = "app") -> Iterator[Sender]:
    """A sender that has sent everything when the block ends."""
    sender = Sender(endpoint, service)
    yield sender
    sender.flush()
    sender.provider.shutdown()

"""An OTLP/HTTP endpoint on loopback that keeps the spans applications and servers export."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otel_kvpolicy.standin.loopback import LoopbackServer, address, listen
from otel_kvpolicy.telemetry import names


@dataclass(frozen=True)
class DecidedCall:
    """One call, as its span records it.

    Attributes:
        decision: ``store`` or ``skip``.
        outcome: what became of the hint.
        prompt_tokens: as the server counted them.
        cached_tokens: prompt tokens from any cache.
    """

    decision: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, span: Span) -> DecidedCall | None:
        """Read a span. Returns None if it carries no decision."""
        found = attributes(span)
        if names.DECISION not in found:
            return None
        return cls(
            decision=found[names.DECISION],
            outcome=found.get(names.HINT_OUTCOME, ""),
            prompt_tokens=found.get(names.USAGE_INPUT_TOKENS, 0),
            cached_tokens=found.get(names.USAGE_CACHE_READ_INPUT_TOKENS, 0),
        )


class Receiver:
    """An OTLP/HTTP endpoint for traces.

    Args:
        port: port on loopback; 0 picks a free one.

    Attributes:
        url: for ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        spans: what was exported, in that order.
    """

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        listener = listen("127.0.0.1", port)
        self.url = address(listener)
        app = Starlette(routes=[Route("/v1/traces", self._traces, methods=["POST"])])
        self._server = LoopbackServer(app, [listener], "kvpolicy-otlp")

    async def _traces(self, request: Request) -> Response:
        export = ExportTraceServiceRequest.FromString(await request.body())
        for resource in export.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return Response(
            ExportTraceServiceResponse().SerializeToString(), media_type="application/x-protobuf"
        )

    def __enter__(self) -> Receiver:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()


def attributes(span: Span) -> dict[str, Any]:
    """Return a span's attributes as Python values."""
    return {attribute.key: _value(attribute.value) for attribute in span.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)

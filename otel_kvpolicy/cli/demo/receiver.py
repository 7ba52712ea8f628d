"""Takes what applications and servers export over OTLP/HTTP, on loopback, and reads the decisions back from it."""

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

from ...standin.loopback import LoopbackServer, address, listen
from ...telemetry import names


@dataclass(frozen=True)
class DecidedCall:
    """One call as its span tells it.

    Attributes:
        decision: ``store`` or ``skip``.
        reasons: reason codes.
        outcome: what became of the hint.
        prompt_tokens: as the server counted them.
        cached_tokens: of those, from any cache.
    """

    decision: str
    reasons: tuple[str, ...]
    outcome: str
    prompt_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, span: Span) -> DecidedCall | None:
        """Reads a span, None where it carries no decision."""
        told = attributes(span)
        if names.DECISION not in told:
            return None
        return cls(
            decision=told[names.DECISION],
            reasons=tuple(told.get(names.REASONS, ())),
            outcome=told.get(names.HINT_OUTCOME, ""),
            prompt_tokens=told.get(names.USAGE_INPUT_TOKENS, 0),
            cached_tokens=told.get(names.USAGE_CACHE_READ_INPUT_TOKENS, 0),
        )


class Receiver:
    """An OTLP/HTTP endpoint for traces.

    Args:
        port: on loopback; 0 picks a free one.

    Attributes:
        url: for ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        spans: what came in, in the order of export.
    """

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        listener = listen("127.0.0.1", port)
        self.url = address(listener)
        app = Starlette(routes=[Route("/v1/traces", self._traces, methods=["POST"])])
        self._server = LoopbackServer(app, [listener], "kvpolicy-otlp")

    @property
    def calls(self) -> list[DecidedCall]:
        """The spans that carry a decision."""
        return [call for span in self.spans if (call := DecidedCall.of(span)) is not None]

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
    """A span's attributes as Python values."""
    return {attribute.key: _value(attribute.value) for attribute in span.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)

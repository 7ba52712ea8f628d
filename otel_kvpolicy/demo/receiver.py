"""Takes what the application exports over OTLP/HTTP and keeps the chat spans that carry a decision."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..standin.loopback import LoopbackServer, address, listen
from ..telemetry import names

__all__ = ["DecidedCall", "Receiver"]


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


class Receiver:
    """An OTLP/HTTP endpoint on loopback.

    Attributes:
        url: for ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        calls: decided calls so far, in the order they were exported.
    """

    def __init__(self) -> None:
        self.calls: list[DecidedCall] = []
        listener = listen("127.0.0.1", 0)
        self.url = address(listener)
        app = Starlette(routes=[Route("/v1/traces", self._traces, methods=["POST"])])
        self._server = LoopbackServer(app, [listener], "kvpolicy-otlp")

    async def _traces(self, request: Request) -> Response:
        export = ExportTraceServiceRequest.FromString(await request.body())
        for resource in export.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._take({attribute.key: _value(attribute.value) for attribute in span.attributes})
        return Response(ExportTraceServiceResponse().SerializeToString(), media_type="application/x-protobuf")

    def _take(self, attributes: dict[str, Any]) -> None:
        if names.DECISION not in attributes:
            return
        self.calls.append(
            DecidedCall(
                decision=attributes[names.DECISION],
                reasons=tuple(attributes.get(names.REASONS, ())),
                outcome=attributes.get(names.HINT_OUTCOME, ""),
                prompt_tokens=attributes.get(names.USAGE_INPUT_TOKENS, 0),
                cached_tokens=attributes.get(names.USAGE_CACHE_READ_INPUT_TOKENS, 0),
            )
        )

    def __enter__(self) -> Receiver:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)

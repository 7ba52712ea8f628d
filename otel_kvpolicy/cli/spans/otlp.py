"""OTLP as JSON -> spans: what the Collector's file exporter and other exporters write, and what Tempo and Jaeger's v3 API answer.

OTLP's JSON spells ids in hex, the protobuf library's own JSON (which Tempo speaks) in base64. They differ in length, so both are read.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from .model import SERVICE_NAME, RecordedSpan

_IDS: Final = frozenset(
    {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}
)
_HEX: Final = re.compile(r"[0-9a-fA-F]{16}|[0-9a-fA-F]{32}")
_RENAMED: Final = {
    "batches": "resourceSpans",
    "instrumentationLibrarySpans": "scopeSpans",
    "instrumentationLibrary": "scope",
}
_SPANS: Final = ("resourceSpans", "resource_spans", "batches")
_ENVELOPES: Final = ("trace", "result")


def is_otlp(document: Any) -> bool:
    """Whether ``document`` is OTLP of any signal, or one of the envelopes that servers put it in."""
    if not isinstance(document, Mapping):
        return False
    return any(key in document for key in (*_SPANS, "resourceMetrics", "resourceLogs")) or any(
        isinstance(document.get(key), Mapping) and any(inner in document[key] for inner in _SPANS)
        for key in _ENVELOPES
    )


def spans_of(document: Mapping[str, Any]) -> list[RecordedSpan]:
    """The spans in ``document``; none in metrics and logs.

    Raises:
        ValueError: it is not shaped like OTLP.
    """
    inside = next(
        (document[key] for key in _ENVELOPES if isinstance(document.get(key), Mapping)), document
    )
    found: Any = next((inside[key] for key in _SPANS if inside.get(key)), [])
    try:
        data = ParseDict(
            {"resourceSpans": _as_protobuf(found)}, TracesData(), ignore_unknown_fields=True
        )
    except (ParseError, AttributeError, RecursionError) as error:
        raise ValueError(f"not shaped like OTLP: {str(error).splitlines()[0][:120]}") from error
    return list(_spans(data))


def _as_protobuf(value: Any) -> Any:
    """OTLP's JSON as the protobuf library reads it: ids in base64, present names for old ones."""
    if isinstance(value, list):
        return [_as_protobuf(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        _RENAMED.get(key, key): _id(item) if key in _IDS else _as_protobuf(item)
        for key, item in value.items()
    }


def _id(value: Any) -> Any:
    if isinstance(value, str) and _HEX.fullmatch(value):
        return base64.b64encode(bytes.fromhex(value)).decode()
    return value


def _spans(data: TracesData) -> Iterator[RecordedSpan]:
    for resource in data.resource_spans:
        service = next(
            (
                _value(pair.value)
                for pair in resource.resource.attributes
                if pair.key == SERVICE_NAME
            ),
            None,
        )
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield RecordedSpan(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    name=span.name,
                    service=service if isinstance(service, str) else None,
                    started=span.start_time_unix_nano or None,
                    seconds=max(0, span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
                    if span.end_time_unix_nano
                    else None,
                    attributes={pair.key: _value(pair.value) for pair in span.attributes},
                )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _value(pair.value) for pair in value.kvlist_value.values}
    return getattr(value, kind)

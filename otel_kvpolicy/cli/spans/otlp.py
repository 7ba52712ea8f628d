"""Decodes OTLP traces: JSON of exporters, the Collector, Tempo and Jaeger's v3 API, and protobuf.

OTLP's own JSON writes ids in hex. The JSON of the protobuf library, which Tempo uses, writes them
in base64. The two differ in length, so both are accepted.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, TracesData

from .model import SERVICE_NAME, RecordedSpan

_ID_KEYS: Final = frozenset(
    {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}
)
_HEX_ID: Final = re.compile(r"[0-9a-fA-F]{16}|[0-9a-fA-F]{32}")
_CURRENT_NAMES: Final = {
    "batches": "resourceSpans",
    "instrumentationLibrarySpans": "scopeSpans",
    "instrumentationLibrary": "scope",
}
_SPANS_KEYS: Final = ("resourceSpans", "resource_spans", "batches")
_OTHER_SIGNALS: Final = ("resourceMetrics", "resourceLogs")
_ENVELOPES: Final = ("trace", "result")


def is_otlp(document: Any) -> bool:
    """Return whether ``document`` is OTLP JSON of any signal, bare or in a server's envelope."""
    if not isinstance(document, Mapping):
        return False
    return any(key in document for key in (*_SPANS_KEYS, *_OTHER_SIGNALS)) or any(
        isinstance(document.get(envelope), Mapping)
        and any(key in document[envelope] for key in _SPANS_KEYS)
        for envelope in _ENVELOPES
    )


def spans_of(document: Mapping[str, Any]) -> list[RecordedSpan]:
    """Return the spans in ``document``, OTLP JSON; none for metrics and logs.

    Raises:
        ValueError: the document does not have OTLP's structure.
    """
    traces = next(
        (document[key] for key in _ENVELOPES if isinstance(document.get(key), Mapping)), document
    )
    resources: Any = next((traces[key] for key in _SPANS_KEYS if traces.get(key)), [])
    try:
        data = ParseDict(
            {"resourceSpans": _as_protobuf_json(resources)},
            TracesData(),
            ignore_unknown_fields=True,
        )
    except (ParseError, AttributeError, RecursionError) as error:
        raise ValueError(f"not valid OTLP: {str(error).splitlines()[0][:120]}") from error
    return list(spans_of_protobuf(data.resource_spans))


def spans_of_protobuf(resources: Iterable[ResourceSpans]) -> Iterator[RecordedSpan]:
    """Yield the spans of parsed OTLP messages, such as the body of an OTLP/HTTP export."""
    for resource in resources:
        service = attributes_of(resource.resource.attributes).get(SERVICE_NAME)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _span(span, service if isinstance(service, str) else None)


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Return protobuf attributes as Python values; arrays become lists."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _as_protobuf_json(value: Any) -> Any:
    """Rewrite OTLP JSON for the protobuf library: ids in base64, current names for old ones."""
    if isinstance(value, list):
        return [_as_protobuf_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        _CURRENT_NAMES.get(key, key): _base64_id(item)
        if key in _ID_KEYS
        else _as_protobuf_json(item)
        for key, item in value.items()
    }


def _base64_id(value: Any) -> Any:
    if isinstance(value, str) and _HEX_ID.fullmatch(value):
        return base64.b64encode(bytes.fromhex(value)).decode()
    return value


def _span(span: Span, service: str | None) -> RecordedSpan:
    start, end = span.start_time_unix_nano, span.end_time_unix_nano
    return RecordedSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        name=span.name,
        service=service,
        started=start or None,
        seconds=max(0, end - start) / 1e9 if end else None,
        attributes=attributes_of(span.attributes),
    )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)

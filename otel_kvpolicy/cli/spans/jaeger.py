"""Reads Jaeger's JSON, in which array attributes are JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model import RecordedSpan, normal_span_id, normal_trace_id


def is_jaeger(document: Any) -> bool:
    """Return whether ``document`` is a response of ``/api/traces``, or was saved in Jaeger's UI."""
    data = document.get("data") if isinstance(document, Mapping) else None
    return isinstance(data, list) and all(
        isinstance(trace, Mapping) and isinstance(trace.get("spans"), list) for trace in data
    )


def spans_of(document: Mapping[str, Any]) -> list[RecordedSpan]:
    """Return the spans of all traces in ``document``.

    Raises:
        ValueError: the document does not have Jaeger's structure.
    """
    try:
        return [
            _span(span, trace.get("processes") or {})
            for trace in document["data"]
            for span in trace["spans"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not valid Jaeger JSON: {type(error).__name__} {error}") from error


def _span(span: Mapping[str, Any], processes: Mapping[str, Any]) -> RecordedSpan:
    process = processes.get(str(span.get("processID")), span.get("process") or {})
    return RecordedSpan(
        trace_id=normal_trace_id(span["traceID"]),
        span_id=normal_span_id(span["spanID"]),
        name=span.get("operationName", ""),
        service=process.get("serviceName"),
        started=int(span["startTime"]) * 1000,
        seconds=int(span["duration"]) / 1e6 if "duration" in span else None,
        attributes={tag["key"]: tag.get("value") for tag in span.get("tags") or ()},
    )

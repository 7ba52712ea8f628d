"""Finished spans in the formats of each source of ``explain``."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

Spans = Iterable[ReadableSpan]

_TYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}


def trace_id(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def span_id(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def service(span: ReadableSpan) -> str:
    return str(span.resource.attributes["service.name"])


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in (span.attributes or {}).items()
    }


def by_trace(spans: Spans) -> dict[str, list[ReadableSpan]]:
    """Return spans by trace id, the newest trace first."""
    traces: dict[str, list[ReadableSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start_time or 0, reverse=True):
        traces.setdefault(trace_id(span), []).append(span)
    return traces


# --- OTLP -----------------------------------------------------------------------------------------


def protobuf_json(spans: Sequence[ReadableSpan]) -> list[dict[str, Any]]:
    """Return resource spans as Tempo and the protobuf library write them.

    Ids are in base64, enumerations are names.
    """
    resources: list[dict[str, Any]] = MessageToDict(encode_spans(spans)).get("resourceSpans", [])
    return resources


def collector_json(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return a batch as the Collector's file exporter writes it.

    Ids are in hex, enumerations are numbers, 64-bit integers are text.
    """
    document: dict[str, Any] = _hex(MessageToDict(encode_spans(spans), use_integers_for_enums=True))
    return document


def collector_lines(spans: Sequence[ReadableSpan], batch: int = 3) -> str:
    lines = [
        json.dumps(collector_json(spans[start : start + batch]))
        for start in range(0, len(spans), batch)
    ]
    return "".join(f"{line}\n" for line in lines)


def _hex(value: Any) -> Any:
    if isinstance(value, list):
        return [_hex(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = {"traceId", "spanId", "parentSpanId"}
    return {
        key: base64.b64decode(item).hex() if key in ids else _hex(item)
        for key, item in value.items()
    }


# --- Jaeger ---------------------------------------------------------------------------------------


def jaeger(spans: Spans) -> dict[str, Any]:
    """Return what Jaeger's ``/api/traces`` answers.

    Times are in microseconds, arrays are JSON text, and each trace has a table of processes.
    """
    traces = [_jaeger_trace(identity, members) for identity, members in by_trace(spans).items()]
    return {"data": traces, "total": 0, "limit": 0, "offset": 0, "errors": None}


def _jaeger_trace(identity: str, spans: list[ReadableSpan]) -> dict[str, Any]:
    services = sorted({service(span) for span in spans})
    processes = {
        f"p{number}": {"serviceName": name, "tags": []} for number, name in enumerate(services, 1)
    }
    return {
        "traceID": identity,
        "spans": [
            {
                "traceID": identity,
                "spanID": span_id(span),
                "operationName": span.name,
                "references": [],
                "startTime": (span.start_time or 0) // 1000,
                "duration": ((span.end_time or 0) - (span.start_time or 0)) // 1000,
                "tags": [_tag(name, value) for name, value in attributes(span).items()],
                "logs": [],
                "processID": f"p{services.index(service(span)) + 1}",
                "warnings": None,
            }
            for span in spans
        ],
        "processes": processes,
        "warnings": None,
    }


def _tag(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"))
    return {"key": name, "type": _TYPES[type(value)], "value": value}


# --- Phoenix --------------------------------------------------------------------------------------


def phoenix(span: ReadableSpan) -> dict[str, Any]:
    """Return a span as Phoenix's REST API lists it."""
    return {
        "id": base64.b64encode(f"Span:{span.context.span_id}".encode()).decode(),
        "name": span.name,
        "context": {"trace_id": trace_id(span), "span_id": span_id(span)},
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": iso(span.start_time),
        "end_time": iso(span.end_time),
        "status_code": "UNSET",
        "status_message": "",
        "attributes": attributes(span),
        "events": [],
    }


def iso(nanoseconds: int | None) -> str:
    assert nanoseconds is not None
    whole = datetime.fromtimestamp(nanoseconds // 10**9, timezone.utc)
    return whole.replace(microsecond=nanoseconds % 10**9 // 1000).isoformat()

"""Selects the calls to explain, by trace id and by filters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Final

from ..spans.files import FileSource
from ..spans.model import RecordedSpan, normal_span_id, normal_trace_id
from ..spans.source import Note, Query, Source, oldest_first

_TRACEPARENT: Final = re.compile(
    r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}", re.IGNORECASE
)
_HEX_ID: Final = re.compile(r"(0x)?[0-9a-f]{1,32}", re.IGNORECASE)


class NoMatchError(Exception):
    """No call was found.

    Args:
        code: what is missing, for scripts: ``trace_not_found``, ``no_decisions`` or ``no_match``.
        text: one line for people.
        values: the numbers and names in it.
    """

    def __init__(self, code: str, text: str, **values: Any) -> None:
        super().__init__(text)
        self.note = Note(code, text, values)


def is_trace_id(text: str) -> bool:
    """Return whether ``text`` is a hex id, with or without dashes, or a whole ``traceparent``."""
    return bool(_TRACEPARENT.fullmatch(text) or _HEX_ID.fullmatch(text.replace("-", "")))


def recent_calls(source: Source, query: Query, span_id: str | None) -> list[RecordedSpan]:
    """Return the newest calls that match, newest first.

    Args:
        source: where to look.
        query: limit and filters.
        span_id: beginning of their span ids; None for any.

    Raises:
        NoMatchError: there are none.
        SourceError: the source cannot be read.
    """
    if span_id is None:
        spans = source.recent(query)
    else:
        every = source.recent(query._replace(limit=10**9))
        spans = [span for span in every if _begins(span, span_id)][: query.limit]
    if not spans:
        filters = _filters(query, span_id)
        calls = "matching calls" if filters else "decided calls"
        raise NoMatchError(
            "no_match", f"no {calls} in {source.name}{_in_brackets(filters)}", **filters
        )
    return spans


def calls_of_trace(
    source: Source, given_id: str, query: Query, span_id: str | None
) -> list[RecordedSpan]:
    """Return the decided calls of a trace that match, oldest first.

    Args:
        source: where to look.
        given_id: the trace id, or a ``traceparent``, which may name the span as well. If a file
            has no such trace, a 16-digit id may also be a span id.
        query: filters.
        span_id: beginning of their span ids; None for any.

    Raises:
        NoMatchError: there are none.
        SourceError: the source cannot be read.
    """
    traceparent = _TRACEPARENT.fullmatch(given_id)
    trace_id = normal_trace_id(traceparent[1] if traceparent else given_id)
    spans = source.trace(trace_id)
    if not spans and isinstance(source, FileSource) and len(given_id) == 16:
        spans = source.with_span_id(normal_span_id(given_id))
    if not spans:
        raise NoMatchError("trace_not_found", f"trace {trace_id} is not in {source.name}")
    decided = oldest_first(span for span in spans if span.decided)
    if not decided:
        raise _without_decisions(trace_id, spans)
    # A traceparent names the caller's span, which may or may not be the chat span.
    if span_id is None and traceparent and any(_begins(span, traceparent[2]) for span in decided):
        span_id = traceparent[2]
    matching = [
        span
        for span in decided
        if query.matches(span) and (span_id is None or _begins(span, span_id))
    ]
    if not matching:
        raise _none_matching(trace_id, decided, _filters(query, span_id))
    return matching


def _begins(span: RecordedSpan, span_id: str) -> bool:
    return span.span_id.startswith(span_id.lower())


def _without_decisions(trace_id: str, spans: list[RecordedSpan]) -> NoMatchError:
    services = _services(spans)
    return NoMatchError(
        "no_decisions",
        f"trace {trace_id} has {_count(spans, 'span')} (service {', '.join(services)}) but no "
        "decision; check that the instrumentor is active in that process",
        spans=len(spans),
        services=services,
    )


def _none_matching(
    trace_id: str, decided: list[RecordedSpan], filters: dict[str, Any]
) -> NoMatchError:
    services = _services(decided)
    return NoMatchError(
        "no_match",
        f"no matching calls in trace {trace_id}{_in_brackets(filters)}; "
        f"it has {_count(decided, 'decided call')} (service {', '.join(services)})",
        decided_calls=len(decided),
        services=services,
        **filters,
    )


def _filters(query: Query, span_id: str | None) -> dict[str, Any]:
    since = (
        None
        if query.since is None
        else f"{datetime.fromtimestamp(query.since / 1e9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    )
    filters = {
        "skipped": query.skipped or None,
        "span": span_id,
        "service": query.service,
        "since": since,
    }
    return {name: value for name, value in filters.items() if value is not None}


def _in_brackets(filters: dict[str, Any]) -> str:
    words = [name if value is True else f"{name} {value}" for name, value in filters.items()]
    return f" ({', '.join(words)})" if words else ""


def _services(spans: Iterable[RecordedSpan]) -> list[str]:
    return sorted({span.service or "unnamed" for span in spans})


def _count(items: list[Any], noun: str) -> str:
    return f"1 {noun}" if len(items) == 1 else f"{len(items)} {noun}s"

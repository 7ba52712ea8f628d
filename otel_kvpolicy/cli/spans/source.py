"""The interface of every source of spans, its queries, and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from ...telemetry import names
from .model import RecordedSpan

_NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})


class Note(NamedTuple):
    """A remark for people and for scripts.

    Attributes:
        code: stable name of the remark.
        text: the remark as one or two sentences, or as one line.
        values: the numbers and names in it.
    """

    code: str
    text: str
    values: Mapping[str, Any] = _NO_VALUES

    def as_json(self) -> dict[str, Any]:
        """Return the note as JSON-ready values."""
        return {"code": self.code, "text": self.text, "values": dict(self.values)}


class SourceError(Exception):
    """A source cannot be read.

    Args:
        code: the kind of failure, for scripts.
        text: one line for people.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.note = Note(code, text)


def oldest_first(spans: Iterable[RecordedSpan]) -> list[RecordedSpan]:
    """Return ``spans`` ordered by start time, without duplicates."""
    unique = {(span.trace_id, span.span_id): span for span in spans}
    return sorted(unique.values(), key=lambda span: span.started or 0)


class Query(NamedTuple):
    """Which recent calls to look for.

    Attributes:
        limit: the largest number of calls to return; the newest are kept.
        since: earliest start, as Unix time in nanoseconds; None for no limit.
        service: their ``service.name``; None for any.
        skipped: whether to return skipped calls only.
        until: latest start, as Unix time in nanoseconds; None for no limit.
        prefix_tokens: the estimated tokens of their prefix; None for any.
    """

    limit: int
    since: int | None = None
    service: str | None = None
    skipped: bool = False
    until: int | None = None
    prefix_tokens: int | None = None

    def matches(self, span: RecordedSpan) -> bool:
        """Return whether ``span`` carries a decision and passes every filter."""
        return (
            span.decided
            and self._in_time(span.started or 0)
            and self.service in {None, span.service}
            and (not self.skipped or span.skipped)
            and self.prefix_tokens in {None, span.count(names.SIGNAL_PREFIX_TOKENS)}
        )

    def _in_time(self, moment: int) -> bool:
        return (self.since is None or moment >= self.since) and (
            self.until is None or moment <= self.until
        )

    def newest(self, spans: Iterable[RecordedSpan]) -> list[RecordedSpan]:
        """Return the newest matching spans, newest first, without duplicates."""
        matching = oldest_first(span for span in spans if self.matches(span))
        return matching[: -self.limit - 1 : -1]


class OtherCalls(NamedTuple):
    """Further calls of a source, among which some may share the prefix of an explained call.

    Attributes:
        spans: spans with decisions, of the same trace or of others.
        scope: what was searched, worded to follow "no such call was found".
    """

    spans: list[RecordedSpan]
    scope: str


class Source(Protocol):
    """A place to read spans from.

    Attributes:
        name: what it is and where, for display.
        notes: problems met while reading that did not stop it.
    """

    name: str
    notes: list[Note]

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """Return all spans of a trace, with or without a decision; none if it is not there."""
        ...

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Return the newest calls that match ``query``, newest first."""
        ...

    def other_calls(self, span: RecordedSpan) -> OtherCalls | None:
        """Return calls that may share the prefix of ``span``, or None if the search failed."""
        ...

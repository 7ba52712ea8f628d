"""What every trace source offers, and how one says that it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ...telemetry import names
from .model import RecordedSpan


class SourceError(Exception):
    """A source cannot be read. Its text is one line for people."""


def oldest_first(spans: Iterable[RecordedSpan]) -> list[RecordedSpan]:
    """``spans`` in the order in which they began, each once, however often a source gives it."""
    once = {(span.trace_id, span.span_id): span for span in spans}
    return sorted(once.values(), key=lambda span: span.started or 0)


class Query(NamedTuple):
    """Which recent calls are asked for.

    Attributes:
        limit: at most so many, the youngest.
        since: Unix time in nanoseconds from which on they began; None for any time.
        service: of this ``service.name``; None for any.
        skipped: only those that were skipped.
        until: Unix time in nanoseconds up to which they began; None for any time.
        prefix_tokens: only those with a prefix of so many tokens; None for any.
    """

    limit: int
    since: int | None = None
    service: str | None = None
    skipped: bool = False
    until: int | None = None
    prefix_tokens: int | None = None

    def takes(self, span: RecordedSpan) -> bool:
        """Whether ``span`` is a decided call that is asked for."""
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

    def youngest(self, spans: list[RecordedSpan]) -> list[RecordedSpan]:
        """Of ``spans`` those that are asked for, youngest first, each once."""
        return oldest_first([span for span in spans if self.takes(span)])[: -self.limit - 1 : -1]


class Neighbours(NamedTuple):
    """Calls around one that is explained.

    Attributes:
        spans: decided calls, of the same trace or others.
        reach: how far was looked, in words that follow "no such call".
    """

    spans: list[RecordedSpan]
    reach: str


class Source(Protocol):
    """Where spans are read from.

    Attributes:
        name: what it is and where, for messages.
        notes: what was passed over while reading, a line each.
    """

    name: str
    notes: list[str]

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """All spans of a trace, decided or not; none where the trace is not there."""
        ...

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Recent decided calls, youngest first."""
        ...

    def neighbours(self, span: RecordedSpan) -> Neighbours | None:
        """Decided calls among which are those that may have shared the prefix of ``span``; None where nobody could look."""
        ...

"""How often calls of each class come back. Counts are bounded and can be merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite, sqrt
from typing import Final, NamedTuple

MAX_CLASSES: Final = 2048
"""Classes to keep, in less than half a megabyte. Calls of further classes share one class."""

MAX_LABELS: Final = 32
"""Agents or roles to tell apart. Further ones share one label."""

_OTHER: Final = "_OTHER"
_MAX_LABEL_CHARS: Final = 64
_MAX_COUNT: Final = 1024.0
"""The counts of a class are halved beyond this many calls, so that they follow its traffic."""

_EXPECTED: Final = 0.3
_EXPECTED_WEIGHT: Final = 10.0
"""Assumed reuse before any call was seen, and the number of calls that this guess weighs."""

_CLASS_WEIGHT: Final = 4.0
"""The number of calls that the overall reuse weighs as the prior of a class."""


class CallClass(NamedTuple):
    """A class of calls. Its properties are divided into buckets, so that there are few classes.

    Attributes:
        label: agent or role, or empty.
        turns: model replies before the call: 0 for none, 1 for one, 2 for 2 and 3, 3 for 4 to 7, 4
            for more.
        length: bit length of the prompt in units of 512 tokens.
        seen: share of the prompt that was seen before: 0 for none, otherwise quarters from 1 to 4.
    """

    label: str
    turns: int
    length: int
    seen: int

    @property
    def turns_text(self) -> str:
        """The turns in words."""
        return ("no turns", "1 turn", "2-3 turns", "4-7 turns", "8+ turns")[self.turns]

    @property
    def length_text(self) -> str:
        """The length in words."""
        return (
            "under 1k tokens"
            if self.length <= 1
            else f"{2 ** (self.length - 2)}k-{2 ** (self.length - 1)}k tokens"
        )

    def __str__(self) -> str:
        seen = "new" if not self.seen else f"{25 * (self.seen - 1)}-{25 * self.seen}% seen"
        return ", ".join(
            part for part in (self.label, self.turns_text, self.length_text, seen) if part
        )


UNKNOWN: Final = CallClass(_OTHER, 0, 1, 0)


def class_of(label: str, turns: int, tokens: int, seen_share: float) -> CallClass:
    """Return the class of a call.

    Args:
        label: agent or role; cut to 64 characters.
        turns: model replies before the call.
        tokens: estimated tokens of the prompt.
        seen_share: share of the prompt that was seen before, 0 to 1.
    """
    return CallClass._make(_buckets(label, turns, tokens, seen_share))


def _buckets(label: str, turns: int, tokens: int, seen_share: float) -> tuple[str, int, int, int]:
    length = (tokens >> 9).bit_length() or 1
    seen = 0 if seen_share <= 0 else 1 + int(seen_share * 4)
    return (
        label[:_MAX_LABEL_CHARS] if label else label,
        turns.bit_length() if turns < 8 else 4,
        length if length < 16 else 16,
        seen if seen < 4 else 4,
    )


class Tally:
    """Counts of one class.

    ``calls`` counts calls that are known to have come back or not; ``returned`` counts how much of
    what was new in them came back, in calls.
    """

    __slots__ = ("calls", "group", "new_calls", "new_returned", "returned")

    def __init__(self, group: CallClass) -> None:
        self.group = group
        self.calls = self.returned = 0.0
        self.new_calls = self.new_returned = 0.0  # since take_new


class ReuseTable:
    """Reuse by class. Not thread-safe: the rule that owns it holds a lock."""

    def __init__(self) -> None:
        # A class equals the plain tuple of its buckets, which is cheaper to make.
        self._classes: dict[tuple[str, int, int, int], Tally] = {}
        self._labels: set[str] = set()
        self._all = Tally(UNKNOWN)

    def __len__(self) -> int:
        return len(self._classes)

    def tally(self, group: CallClass) -> Tally:
        """Return the counts of a class. Once the table is full, new classes share one tally."""
        return self._classes.get(group) or self._add(group)

    def tally_of(self, label: str, turns: int, tokens: int, seen_share: float) -> Tally:
        """Return the counts of the class of a call. The arguments are those of :func:`class_of`."""
        buckets = _buckets(label, turns, tokens, seen_share)
        return self._classes.get(buckets) or self._add(CallClass._make(buckets))

    def _add(self, group: CallClass) -> Tally:
        if group.label not in self._labels:
            if len(self._labels) >= MAX_LABELS:
                group = group._replace(label=_OTHER)
            self._labels.add(group.label)
        if group not in self._classes and len(self._classes) >= MAX_CLASSES:
            group = UNKNOWN
        return self._classes.setdefault(group, Tally(group))

    def count(self, tally: Tally, calls: float, returned: float) -> None:
        """Add to the counts of a class and to the totals."""
        for counts in (tally, self._all):
            counts.calls += calls
            counts.returned += returned
            counts.new_calls += calls
            counts.new_returned += returned
        if tally.calls > _MAX_COUNT:
            tally.calls /= 2
            tally.returned /= 2

    def reuse(self, tally: Tally, visible: float) -> tuple[float, float]:
        """Return P(reuse) of a class and its standard error.

        Args:
            tally: counts of the class. The overall reuse is added as a prior worth four calls.
            visible: share of all returns that this process sees. The error is that of a binomial
                share of the visible calls.
        """
        whole, calls = self._all, tally.calls + _CLASS_WEIGHT
        mean = (whole.returned + _EXPECTED * _EXPECTED_WEIGHT) / (whole.calls + _EXPECTED_WEIGHT)
        share = (tally.returned + _CLASS_WEIGHT * mean) / calls
        if share >= 1.0:
            return 1.0, 0.0
        return share, sqrt(share * (1.0 - share) / (calls * visible))

    def export(self) -> list[tuple[str, int, int, int, float, float]]:
        """Return all counts, ready for JSON."""
        return [(*tally.group, tally.calls, tally.returned) for tally in self._classes.values()]

    def take_new(self) -> dict[CallClass, tuple[float, float]]:
        """Return and reset the counts since the last call: (calls, returns) by class."""
        new = {}
        for tally in self._classes.values():
            if tally.new_calls or tally.new_returned:
                new[tally.group] = (tally.new_calls, tally.new_returned)
                tally.new_calls = tally.new_returned = 0.0
        return new

    def give_back(self, new: Mapping[CallClass, tuple[float, float]]) -> None:
        """Put back counts that could not be shared."""
        for group, (calls, returned) in new.items():
            tally = self.tally(group)
            tally.new_calls += calls
            tally.new_returned += returned

    def adopt(self, counts: Iterable[tuple[CallClass, float, float]]) -> None:
        """Replace the counts with those of a fleet, which include what this process shared.

        Counts since the last :meth:`take_new` are added. Counts that make no sense are ignored. A
        class with fewer calls than this process has counted is ignored too, so that the processes
        do not forget if the shared store was emptied.
        """
        for group, calls, returned in counts:
            if not (isfinite(calls) and isfinite(returned)) or calls < 0 or returned < 0:
                continue
            scale = min(1.0, _MAX_COUNT / calls) if calls else 1.0
            tally = self.tally(group)
            if calls < tally.calls - tally.new_calls:
                continue
            tally.calls = calls * scale + tally.new_calls
            tally.returned = returned * scale + tally.new_returned
        self._all.calls = sum(tally.calls for tally in self._classes.values())
        self._all.returned = sum(tally.returned for tally in self._classes.values())

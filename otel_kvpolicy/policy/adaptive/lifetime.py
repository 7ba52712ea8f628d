"""How long the cache keeps a prefix, and what a place in the cache is therefore worth.

When a call is the first to ask for what an earlier stored call added, its answer tells whether the
cache still had it after that time. The *lifetime* is the time up to which the cache mostly still
had it, and after which it mostly did not. It is the same for all calls, because an LRU cache treats
them alike.

The price of a place follows from the lifetime. One more call in the cache shortens the lifetime of
all others by its share. That loses what comes back just about then: the density of returns, per
unit of log time, at the lifetime. A call is worth its place if it comes back more often than that.
If the cache has room for everything, nothing comes back that late, and the price is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, log, log2
from typing import Any, Final

_BINS: Final = 34
_PER_DOUBLING: Final = 2
"""Bins per doubling of the time. With 34 bins they cover 1 second to 1.5 days."""

_PER_E: Final = _PER_DOUBLING / log(2)

_CALL_MEMORY: Final = 0.998
_FIND_MEMORY: Final = 0.99
_RETURN_MEMORY: Final = 0.998
"""Share of older evidence that is left after one more call, find or return. Evidence fades even if
nothing is stored and so nothing is found. Then the lifetime becomes unknown, everything is stored,
and the rule learns the lifetime again."""

_EVIDENCE: Final = 6.0
"""A lifetime must explain this many more finds than the assumption that nothing is evicted."""

_DOUBT: Final = 8.0
"""Returns added to the denominator of the density, so that a few returns do not determine it."""

_WRITE_COST: Final = 2.0
"""Price of a place including the write, in places: a write also takes bandwidth, and the estimate
lags behind."""

_REUSE_MEMORY: Final = 0.995
_FIRST_REUSE: Final = 0.3

_UPDATE_CALLS: Final = 32
"""The lifetime is recalculated after at most this many calls."""

_LARGE: Final = 1e9
_ROUNDING: Final = 1e-6


class Lifetime:
    """Learns from finds and returns. Not thread-safe: the rule that owns it holds a lock.

    Memory: three histograms of 34 numbers.

    Attributes:
        seconds: the lifetime; None if it is unknown, or if the cache keeps everything.
        survival: share of the recently returned prefixes that the cache still had; None if unknown.
        price: the P(reuse) below which a call is not worth a place in the cache. 0 if there is room
            for everything.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.survival: float | None = None
        self.price = 0.0
        self._held = [0.0] * _BINS
        self._lost = [0.0] * _BINS
        self._gaps = [0.0] * _BINS
        self._find_weight = 1.0  # of a new find; weights grow, so older finds fade
        self._gap_weight = 1.0
        self._reuse = _FIRST_REUSE
        self._density = 0.0
        self._calls = 0

    def called(self) -> None:
        """Note that one more call was decided."""
        self._find_weight /= _CALL_MEMORY
        self._calls += 1
        if not self._calls % _UPDATE_CALLS:
            self._update()

    def stored(self, reuse: float) -> None:
        """Note that a call was stored whose class comes back with P = ``reuse``."""
        self._reuse += (1 - _REUSE_MEMORY) * (reuse - self._reuse)
        self.price = self._reuse * self._density

    def returned(self, gap: float) -> None:
        """Note that a call asked for a prompt for the first time, ``gap`` seconds after it."""
        self._gap_weight /= _RETURN_MEMORY
        self._gaps[_bin(gap)] += self._gap_weight

    def found(self, gap: float, *, held: bool) -> None:
        """Note whether the cache still had a prefix when a call first asked for it.

        Args:
            gap: seconds since the prefix was stored.
            held: True if the cache still had it.
        """
        self._find_weight /= _FIND_MEMORY
        (self._held if held else self._lost)[_bin(gap)] += self._find_weight
        self._update()

    def _update(self) -> None:
        if max(self._find_weight, self._gap_weight) > _LARGE:
            self._scale()
        self.seconds, self.survival, self._density, self.price = None, None, 0.0, 0.0
        held, lost = sum(self._held), sum(self._lost)
        if not held + lost:
            return
        self.survival = held / (held + lost) if held + lost >= self._find_weight / 2 else None
        # Finds that contradict a lifetime that ends before each bin.
        wrong = [held]
        for held, lost in zip(self._held, self._lost, strict=True):
            wrong.append(wrong[-1] + lost - held)
        least = min(wrong) + _ROUNDING * self._find_weight
        end = max(index for index, finds in enumerate(wrong) if finds <= least)
        if end == _BINS or wrong[-1] - least < _EVIDENCE * self._find_weight:
            return
        self.seconds = 2.0 ** (end / _PER_DOUBLING)
        before = self._within(0, end) + _DOUBT * self._gap_weight
        about = self._within(end - _PER_E / 2, end + _PER_E / 2)
        self._density = _WRITE_COST * min(1.0, about / before)
        self.price = self._reuse * self._density

    def _within(self, start: float, end: float) -> float:
        """Return the returns between two places of the histogram."""
        return sum(
            count * max(0.0, min(place + 1, end) - max(place, start))
            for place, count in enumerate(self._gaps)
        )

    def _scale(self) -> None:
        self._held = [count / self._find_weight for count in self._held]
        self._lost = [count / self._find_weight for count in self._lost]
        self._gaps = [count / self._gap_weight for count in self._gaps]
        self._find_weight = self._gap_weight = 1.0

    def export(self) -> dict[str, Any]:
        """Return the state, ready for JSON."""
        self._scale()
        return {"held": self._held, "lost": self._lost, "gaps": self._gaps, "reuse": self._reuse}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Lifetime:
        """Build a lifetime from the state that :meth:`export` returned.

        Raises:
            KeyError, TypeError, ValueError: ``state`` makes no sense.
        """
        made = cls()
        made._held, made._lost, made._gaps = (
            _counts(state[name]) for name in ("held", "lost", "gaps")
        )
        made._reuse = float(state["reuse"])
        if not 0 <= made._reuse <= 1:
            raise ValueError(f"reuse must be between 0 and 1, not {made._reuse!r}")
        made._update()
        return made


def _bin(gap: float) -> int:
    return min(_BINS - 1, int(_PER_DOUBLING * log2(gap))) if gap > 1 else 0


def _counts(values: Sequence[Any]) -> list[float]:
    counts = [float(value) for value in values]
    if len(counts) != _BINS or not all(
        isfinite(count) and 0 <= count <= _LARGE for count in counts
    ):
        raise ValueError("not the counts of a histogram")
    return counts

"""How long the cache keeps a prefix, as the answers tell, and what a place in it is worth.

Of each stored call whose new part is asked for again for the first time, it is known how long that took, and whether the cache still had
it. The time up to which it mostly had and from which on it mostly had not is the *lifetime*. It holds for all calls alike, whatever comes
back after seconds or after minutes, since an LRU cache treats them alike.

What a place is worth follows from it. One call more in the cache makes the lifetime of all others shorter by its share. What that costs is
what comes back just about then: the density of returns per unit of log time at the lifetime. A call is worth its place where it comes back
more often than that. With room for everything nothing comes back so late, and the price is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, log, log2
from typing import Any, Final

_BINS: Final = 34
_PER_DOUBLING: Final = 2
"""Times are told apart by factors of the square root of two, from a second to a day and a half."""

_PER_E: Final = _PER_DOUBLING / log(2)

_CALL_MEMORY: Final = 0.998
_FIND_MEMORY: Final = 0.99
_RETURN_MEMORY: Final = 0.998
"""What is left of older evidence after one more call, find or return. It fades even where nothing is stored and so nothing is found: then
the lifetime is unknown, everything is stored, and it is learned anew."""

_EVIDENCE: Final = 6.0
"""How many more finds must speak for a lifetime than for a cache that keeps everything."""

_DOUBT: Final = 8.0
"""Returns that the density is diluted by, so that a few do not make it."""

_WRITE_COST: Final = 2.0
"""What a place costs with the writing of it, in places: a write takes bandwidth too, and its estimate lags."""

_REUSE_MEMORY: Final = 0.995
_FIRST_REUSE: Final = 0.3

_JUDGE_CALLS: Final = 32
"""Calls after which the lifetime is worked out anew where nothing else asks for it."""

_LARGE: Final = 1e9
_ROUNDING: Final = 1e-6


class Lifetime:
    """Learns from finds and returns. Not locked: the rule that owns it is.

    Memory: three histograms of 34 numbers.

    Attributes:
        seconds: the lifetime; ``None`` while nothing tells of one, or the cache keeps everything.
        survival: share of the lately returned prefixes that the cache still had; ``None`` where nothing is known.
        price: what a place in the cache costs: the P(reuse) below which a call is not worth it. 0 where there is room for everything.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.survival: float | None = None
        self.price = 0.0
        self._held = [0.0] * _BINS
        self._lost = [0.0] * _BINS
        self._gaps = [0.0] * _BINS
        self._find_weight = 1.0  # of a new find; growing weights let the older ones fade
        self._gap_weight = 1.0
        self._reuse = _FIRST_REUSE
        self._density = 0.0
        self._calls = 0

    def called(self) -> None:
        """Notes that one more call was decided."""
        self._find_weight /= _CALL_MEMORY
        self._calls += 1
        if not self._calls % _JUDGE_CALLS:
            self._judge()

    def stored(self, reuse: float) -> None:
        """Notes that a call was stored whose class comes back with P = ``reuse``."""
        self._reuse += (1 - _REUSE_MEMORY) * (reuse - self._reuse)
        self.price = self._reuse * self._density

    def returned(self, gap: float) -> None:
        """Notes that a prompt was asked for again for the first time, ``gap`` seconds after it."""
        self._gap_weight /= _RETURN_MEMORY
        self._gaps[_bin(gap)] += self._gap_weight

    def found(self, gap: float, *, held: bool) -> None:
        """Notes whether the cache still had what was stored ``gap`` seconds before and asked for again for the first time."""
        self._find_weight /= _FIND_MEMORY
        (self._held if held else self._lost)[_bin(gap)] += self._find_weight
        self._judge()

    def _judge(self) -> None:
        if max(self._find_weight, self._gap_weight) > _LARGE:
            self._scale()
        self.seconds, self.survival, self._density, self.price = None, None, 0.0, 0.0
        held, lost = sum(self._held), sum(self._lost)
        if not held + lost:
            return
        self.survival = held / (held + lost) if held + lost >= self._find_weight / 2 else None
        wrong = [held]  # finds that speak against a lifetime that ends before each bin
        for held, lost in zip(self._held, self._lost, strict=True):
            wrong.append(wrong[-1] + lost - held)
        least = min(wrong) + _ROUNDING * self._find_weight
        end = max(at for at, finds in enumerate(wrong) if finds <= least)
        if end == _BINS or wrong[-1] - least < _EVIDENCE * self._find_weight:
            return
        self.seconds = 2.0 ** (end / _PER_DOUBLING)
        before = self._within(0, end) + _DOUBT * self._gap_weight
        about = self._within(end - _PER_E / 2, end + _PER_E / 2)
        self._density = _WRITE_COST * min(1.0, about / before)
        self.price = self._reuse * self._density

    def _within(self, start: float, end: float) -> float:
        """Returns between two places of the histogram."""
        return sum(
            count * max(0.0, min(at + 1, end) - max(at, start))
            for at, count in enumerate(self._gaps)
        )

    def _scale(self) -> None:
        self._held = [count / self._find_weight for count in self._held]
        self._lost = [count / self._find_weight for count in self._lost]
        self._gaps = [count / self._gap_weight for count in self._gaps]
        self._find_weight = self._gap_weight = 1.0

    def export(self) -> dict[str, Any]:
        """All of it, fit for JSON."""
        self._scale()
        return {"held": self._held, "lost": self._lost, "gaps": self._gaps, "reuse": self._reuse}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Lifetime:
        """Goes on from what :meth:`export` gave.

        Raises:
            KeyError, TypeError, ValueError: ``state`` makes no sense.
        """
        made = cls()
        made._held, made._lost, made._gaps = (
            _counts(state[name]) for name in ("held", "lost", "gaps")
        )
        made._reuse = float(state["reuse"])
        if not 0 <= made._reuse <= 1:
            raise ValueError(f"reuse is {made._reuse!r}")
        made._judge()
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

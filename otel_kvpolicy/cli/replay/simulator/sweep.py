"""The best thresholds for a capacity, by trying a grid of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from ....policy.signals import estimate
from ..trace.trace import CHARS_PER_TOKEN, Trace
from .comparison import Finished, Result, compare
from .engine import Tiers
from .players import OFF, Rule

_PREFIX: Final = (256, 512, 1024, 2048, 4096, 8192, OFF)
_CONTEXT: Final = (1024, 2048, 4096, 8192, 16384, 32768, OFF)
_TURNS: Final = (1, 2, 4, OFF)

_TOLERANCE: Final = 0.005
"""Hit rate that fewer writes may cost: half a point."""


@dataclass(frozen=True)
class Best:
    """What a sweep found for one capacity.

    Attributes:
        hits: the thresholds with the highest hit rate, and of those the fewest writes.
        writes: the thresholds with the fewest writes, within half a point of the best hit rate.
    """

    hits: Result
    writes: Result


def grid(trace: Trace) -> list[Rule]:
    """The thresholds worth trying: of those that part the calls of ``trace`` alike, the highest."""
    signals = [estimate(text, CHARS_PER_TOKEN) for text in trace.texts]
    prefix = _different(
        _PREFIX, [max(each["prefix_tokens"], each["rag_tokens"]) for each in signals]
    )
    turns = _different(_TURNS, [each["history_turns"] for each in signals])
    # A role that comes back halves the context threshold, which so parts the calls twice: all of these are tried.
    return [
        Rule("thresholds", {"prefix": first, "context": second, "turns": third})
        for first, second, third in product(prefix, _CONTEXT, turns)
    ]


def _different(thresholds: Iterable[float], amounts: Sequence[int]) -> list[float]:
    return list(
        {
            sum(amount >= threshold for amount in amounts): threshold for threshold in thresholds
        }.values()
    )


def sweep(
    trace: Trace,
    sizes: Sequence[Tiers],
    rules: Sequence[Rule],
    *,
    jobs: int = 1,
    finished: Finished | None = None,
) -> list[Best]:
    """Tries ``rules`` at each capacity.

    Args:
        trace: the traffic.
        sizes: of the tiers.
        rules: what :func:`grid` gave.
        jobs: processes that simulate.
        finished: told of each simulation that is over.
    """
    results = compare(trace, rules, sizes, jobs=jobs, finished=finished)
    return [_best(results[at :: len(sizes)]) for at in range(len(sizes))]


def _best(results: list[Result]) -> Best:
    hits = max(results, key=lambda each: (each.outcome.hit_rate, -each.outcome.written))
    enough = [
        each for each in results if each.outcome.hit_rate >= hits.outcome.hit_rate - _TOLERANCE
    ]
    return Best(hits, min(enough, key=lambda each: (each.outcome.written, -each.outcome.hit_rate)))

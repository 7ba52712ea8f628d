"""Find the best thresholds for each capacity by trying a grid of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from ....policy.signals import estimate
from ..trace import CHARS_PER_TOKEN, Trace
from .comparison import Finished, Result, compare
from .engine import Tiers
from .players import OFF, Rule

_PREFIX: Final = (256, 512, 1024, 2048, 4096, 8192, OFF)
_CONTEXT: Final = (1024, 2048, 4096, 8192, 16384, 32768, OFF)
_TURNS: Final = (1, 2, 4, OFF)

_TOLERANCE: Final = 0.005
"""Hit rate that fewer writes may cost: half a percentage point."""


@dataclass(frozen=True)
class Best:
    """The best thresholds for one capacity.

    Attributes:
        hits: result with the highest hit rate; of several, that with the fewest writes.
        writes: result with the fewest writes among those within half a percentage point of the
            highest hit rate.
    """

    hits: Result
    writes: Result


def grid(trace: Trace) -> list[Rule]:
    """Return the thresholds worth trying.

    Of several thresholds that separate the calls of ``trace`` in the same way, only the highest is
    tried.
    """
    signals = [estimate(text, CHARS_PER_TOKEN) for text in trace.texts]
    prefix = _different(
        _PREFIX, [max(call["prefix_tokens"], call["rag_tokens"]) for call in signals]
    )
    turns = _different(_TURNS, [call["history_turns"] for call in signals])
    # All context thresholds are tried: reuse-heavy roles halve the threshold, so it separates the
    # calls in two places.
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
    """Try ``rules`` with each set of tiers and return the best of them for each.

    Args:
        trace: the traffic.
        sizes: the sets of tiers.
        rules: the rules to try, from :func:`grid`.
        jobs: number of processes that simulate.
        finished: called after each simulation.
    """
    results = compare(trace, rules, sizes, jobs=jobs, finished=finished)
    return [_best(results[index :: len(sizes)]) for index in range(len(sizes))]


def _best(results: list[Result]) -> Best:
    hits = max(results, key=lambda result: (result.outcome.hit_rate, -result.outcome.written))
    least = hits.outcome.hit_rate - _TOLERANCE
    enough = [result for result in results if result.outcome.hit_rate >= least]
    writes = min(enough, key=lambda result: (result.outcome.written, -result.outcome.hit_rate))
    return Best(hits, writes)

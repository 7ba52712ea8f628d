"""Rules times capacities: what is simulated, by how many processes, and the rows that come of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from ..trace.trace import Trace
from .engine import Outcome, Tiers
from .players import Rule

_SHARES: Final = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)

_WORTH_PROCESSES: Final = 250_000
"""Requests to simulate below which other processes would take longer to start than to help."""

Finished = Callable[[], None]
"""Told that one more simulation is over."""


@dataclass(frozen=True)
class Result:
    """What one rule did to tiers of one size."""

    rule: Rule
    tiers: Tiers
    outcome: Outcome


def default_capacities(trace: Trace) -> list[int]:
    """L1 in chunks, from hard pressure to room for everything: shares of the trace's distinct chunks."""
    return sorted({max(1, round(trace.unique_blocks * share)) for share in _SHARES})


def compare(
    trace: Trace,
    rules: Sequence[Rule],
    sizes: Sequence[Tiers],
    *,
    clients: int = 1,
    jobs: int = 1,
    finished: Finished | None = None,
) -> list[Result]:
    """Simulates every rule with every set of tiers, each from a cold start.

    Args:
        trace: the traffic.
        rules: what decides.
        sizes: of the tiers.
        clients: processes that share the traffic and nothing else, for rules that learn.
        jobs: processes that simulate, where there is enough to do.
        finished: told of each simulation that is over.

    Returns:
        By rule, and for each by size, in the order given.
    """
    pairs = [(rule, tiers) for rule in rules for tiers in sizes]
    results = []
    for (rule, tiers), outcome in zip(pairs, _outcomes(trace, pairs, clients, jobs), strict=True):
        results.append(Result(rule, tiers, outcome))
        if finished:
            finished()
    return results


def _outcomes(
    trace: Trace, pairs: Sequence[tuple[Rule, Tiers]], clients: int, jobs: int
) -> Iterator[Outcome]:
    if jobs <= 1 or len(trace) * len(pairs) < _WORTH_PROCESSES:
        yield from map(_Simulation(trace, clients), pairs)
        return
    context = multiprocessing.get_context(
        "spawn"
    )  # a fork would take the locks of the progress bar's thread along
    with ProcessPoolExecutor(min(jobs, len(pairs)), context, _begin, (trace, clients)) as pool:
        yield from pool.map(_simulate, pairs)


class _Simulation:
    """Simulates over one trace; what of a rule does not depend on the capacity is worked out once."""

    def __init__(self, trace: Trace, clients: int) -> None:
        self._trace = trace
        self._clients = clients
        self._runners: dict[str, Callable[[Tiers], Outcome]] = {}

    def __call__(self, pair: tuple[Rule, Tiers]) -> Outcome:
        rule, tiers = pair
        if str(rule) not in self._runners:
            self._runners[str(rule)] = rule.runner(self._trace, clients=self._clients)
        return self._runners[str(rule)](tiers)


_simulations: Final[list[_Simulation]] = []
"""The one of a process that was started to simulate."""


def _begin(trace: Trace, clients: int) -> None:
    _simulations.append(_Simulation(trace, clients))


def _simulate(pair: tuple[Rule, Tiers]) -> Outcome:
    return _simulations[-1](pair)


def row_of(result: Result) -> dict[str, Any]:
    """A result as one flat row, for CSV and JSON. Ratios are 0 to 1."""
    outcome, tiers = result.outcome, result.tiers
    whole = outcome.input_tokens
    return {
        "rule": str(result.rule),
        "l1_chunks": tiers.l1,
        "l2_chunks": tiers.l2,
        "gpu_chunks": tiers.gpu,
        "requests": outcome.requests,
        "input_tokens": whole,
        "hit_ratio": outcome.hit_rate,
        "gpu_hit_ratio": outcome.gpu_tokens / whole if whole else 0.0,
        "l1_hit_ratio": outcome.l1_tokens / whole if whole else 0.0,
        "l2_hit_ratio": outcome.l2_tokens / whole if whole else 0.0,
        "chunks_written": outcome.written,
        "chunks_promoted": outcome.promoted,
        "l2_chunks_written": outcome.l2_written,
        "dead_writes": outcome.dead,
        "l1_evictions": outcome.evicted,
        "l2_evictions": outcome.l2_evicted,
        "skipped_calls_ratio": outcome.skip_ratio,
        "skipped_tokens_ratio": outcome.skip_token_ratio,
        "capped_calls": outcome.capped,
    }

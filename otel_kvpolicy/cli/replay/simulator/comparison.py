"""Compare rules: simulate each rule at each capacity, and turn the results into rows."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from ..trace import Trace
from .engine import Outcome, Tiers
from .players import Rule

_DEFAULT_SHARES: Final = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)

_MIN_REQUESTS_FOR_PROCESSES: Final = 250_000
"""Below this number of simulated requests, starting processes takes longer than it saves."""

Finished = Callable[[], None]
"""Called after each simulation."""


@dataclass(frozen=True)
class Result:
    """The outcome of one rule with one set of tiers."""

    rule: Rule
    tiers: Tiers
    outcome: Outcome


def default_capacities(trace: Trace) -> list[int]:
    """Return sizes of L1 in chunks, from 1/64 of the trace's distinct chunks up to all of them."""
    return sorted({max(1, round(trace.unique_blocks * share)) for share in _DEFAULT_SHARES})


def compare(
    trace: Trace,
    rules: Sequence[Rule],
    sizes: Sequence[Tiers],
    *,
    clients: int = 1,
    jobs: int = 1,
    finished: Finished | None = None,
) -> list[Result]:
    """Simulate every rule with every set of tiers, starting with empty caches.

    Args:
        trace: the traffic.
        rules: the rules to compare.
        sizes: the sets of tiers.
        clients: number of client processes that share the traffic. Each runs the rule with its own
            state, which matters only for the adaptive rule.
        jobs: number of processes that simulate, if there is enough work for several.
        finished: called after each simulation.

    Returns:
        One result per rule and set of tiers: all sizes of the first rule, then of the second.
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
    if jobs <= 1 or len(trace) * len(pairs) < _MIN_REQUESTS_FOR_PROCESSES:
        yield from map(_Simulator(trace, clients), pairs)
        return
    # Spawn, not fork: a forked process would inherit locks held by the progress bar's thread.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(pairs)), context, _init, (trace, clients)) as pool:
        yield from pool.map(_simulate, pairs)


class _Simulator:
    """Simulates rules over one trace, and prepares each rule only once for all capacities."""

    def __init__(self, trace: Trace, clients: int) -> None:
        self._trace = trace
        self._clients = clients
        self._runners: dict[str, Callable[[Tiers], Outcome]] = {}

    def __call__(self, pair: tuple[Rule, Tiers]) -> Outcome:
        rule, tiers = pair
        if str(rule) not in self._runners:
            self._runners[str(rule)] = rule.runner(self._trace, clients=self._clients)
        return self._runners[str(rule)](tiers)


_worker: _Simulator | None = None
"""The simulator of a worker process; ``None`` in the main process."""


def _init(trace: Trace, clients: int) -> None:
    global _worker  # noqa: PLW0603 - a pool gives its workers no other place for state
    _worker = _Simulator(trace, clients)


def _simulate(pair: tuple[Rule, Tiers]) -> Outcome:
    assert _worker is not None
    return _worker(pair)


def row_of(result: Result) -> dict[str, Any]:
    """Return a result as a flat row for CSV and JSON. Ratios are 0 to 1."""
    outcome, tiers = result.outcome, result.tiers
    tokens = outcome.input_tokens
    return {
        "rule": str(result.rule),
        "l1_chunks": tiers.l1,
        "l2_chunks": tiers.l2,
        "gpu_chunks": tiers.gpu,
        "requests": outcome.requests,
        "input_tokens": tokens,
        "hit_ratio": outcome.hit_rate,
        "gpu_hit_ratio": outcome.gpu_tokens / tokens if tokens else 0.0,
        "l1_hit_ratio": outcome.l1_tokens / tokens if tokens else 0.0,
        "l2_hit_ratio": outcome.l2_tokens / tokens if tokens else 0.0,
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

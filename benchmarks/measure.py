"""How things are measured here: side by side in one process, interleaved, as medians with their spread, and as ratios of one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """Seconds for one operation: the median over rounds, the quartiles around it, and the best."""

    median: float
    low: float
    high: float
    best: float

    @classmethod
    def of(cls, seconds: list[float]) -> Sample:
        low, median, high = (
            statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        )
        return cls(median, low, high, min(seconds))


def interleave(
    operations: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    repeat: Mapping[str, int],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Sample]:
    """Runs every operation in every round, one after the other, so that a slow moment of the machine meets them all.

    Args:
        operations: what is measured.
        rounds: how often all are run.
        repeat: calls of each operation in a round.
        clock: seconds; ``time.process_time`` for CPU time.
    """
    taken: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(rounds):
        for name, operation in operations.items():
            count = repeat[name]
            started = clock()
            for _ in range(count):
                operation()
            taken[name].append((clock() - started) / count)
    return {name: Sample.of(seconds) for name, seconds in taken.items()}

"""Measure operations side by side in one process, interleaved, as medians with their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """Seconds per operation: the median over all rounds, its quartiles, and the best."""

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
    """Run every operation in every round, so that a slow moment of the machine affects them all.

    Args:
        operations: the functions to measure, by name.
        rounds: number of rounds.
        repeat: calls of each operation per round, by name.
        clock: returns seconds; ``time.process_time`` for CPU time.
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

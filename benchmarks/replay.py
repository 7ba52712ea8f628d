"""The cost of a replay: growth with the trace, memory, and a comparison with kvcache-simulator."""

from __future__ import annotations

import json
import random
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

from kvcache_sim.plan import build_execution_plan
from kvcache_sim.policies import simulate_policy
from kvcache_sim.trace import parse_trace_file

from otel_kvpolicy.cli.replay.simulator import DEFAULT_RULES, Rule, Tiers, compare
from otel_kvpolicy.cli.replay.trace import load

from .measure import interleave

REQUESTS = 4_000
TIMES = (1, 2, 4)
CHUNK = 512


def write_trace(path: Path, requests: int) -> None:
    """Write conversations that resemble production chat.

    They have a few calls each and share some system prompts. A call has 22 chunks on average, and
    an earlier call had a third of them.
    """
    draw = random.Random(1)
    conversations: list[tuple[list[int], int]] = []
    fresh = iter(range(100, 1 << 60))
    with path.open("w") as out:
        for index in range(requests):
            if conversations and draw.random() < 0.4:
                blocks, turns = conversations.pop(draw.randrange(len(conversations)))
            else:
                blocks, turns = [draw.randrange(20)], -1
            blocks = [*blocks, *(next(fresh) for _ in range(1 + int(draw.expovariate(1 / 14))))]
            conversations = [*conversations[-500:], (blocks, turns + 1)]
            line = {
                "timestamp": index * 250,
                "input_length": len(blocks) * CHUNK,
                "output_length": 200,
                "hash_ids": blocks,
                "turns": turns + 1,
            }
            out.write(json.dumps(line) + "\n")


def run(*, rounds: int = 3) -> list[dict[str, Any]]:
    """Measure traces of several lengths.

    ``time_ratio`` and ``memory_ratio`` compare the cost per request with that of the shortest.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for times in TIMES:
            path = Path(folder) / f"{times}.jsonl"
            write_trace(path, REQUESTS * times)
            rows.append(_measure(path, REQUESTS * times, rounds))
    first = rows[0]
    for row in rows:
        row["time_ratio"] = row["replay_us_per_request"] / first["replay_us_per_request"]
        row["memory_ratio"] = row["peak_kib_per_request"] / first["peak_kib_per_request"]
    return rows


def _measure(path: Path, requests: int, rounds: int) -> dict[str, Any]:
    trace = load([path]).trace
    sizes = [Tiers(max(1, trace.unique_blocks // share)) for share in (64, 32, 16, 8, 4, 1)]
    rules = [Rule(name) for name in DEFAULT_RULES]
    samples = interleave(
        {
            "replay": lambda: compare(load([path]).trace, rules, sizes),
            "one": lambda: compare(
                load([path], full_blocks_only=False).trace, [Rule("always")], sizes[2:3]
            ),
            "kvcache-simulator": lambda: simulate_policy(
                build_execution_plan(parse_trace_file(path, block_size=CHUNK)), "lru", sizes[2].l1
            ),
        },
        rounds=rounds,
        repeat=dict.fromkeys(("replay", "one", "kvcache-simulator"), 1),
    )
    tracemalloc.start()
    load([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "requests": requests,
        "chunks": sum(trace.block_counts),
        "replay_us_per_request": samples["replay"].median / requests * 1e6,
        "one_simulation_ratio": samples["kvcache-simulator"].median / samples["one"].median,
        "peak_kib_per_request": peak / requests / 1024,
    }

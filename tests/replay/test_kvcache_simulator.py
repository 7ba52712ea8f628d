"""Always-store LRU is, token for token, what ``kvcache-simulator`` 0.1.3 says of the same trace."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvcache_sim.plan import ExecutionPlan, build_execution_plan
from kvcache_sim.policies import simulate_policy
from kvcache_sim.trace import parse_trace_file, parse_trace_lines

from otel_kvpolicy.cli.replay.simulator.engine import Tiers
from otel_kvpolicy.cli.replay.simulator.players import Rule
from otel_kvpolicy.cli.replay.trace.readers import load
from otel_kvpolicy.cli.replay.trace.trace import Request, Trace, build_trace

from .traces import MOONCAKE, real

CAPACITIES = {1024: 4.86, 5120: 12.59, 10240: 23.40, 20480: 32.03}
"""Chunks of L1 -> % of the tokens of the last half that hit, where only full chunks count."""


@pytest.fixture(scope="module", params=["all chunks", "full chunks"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour of real chat; or what LMCache would store of it: the simulator itself knows nothing of chunks that are not full."""
    whole = real(MOONCAKE)
    if request.param == "all chunks":
        return whole
    cut = tmp_path_factory.mktemp("full") / "full.jsonl"
    with gzip.open(whole, "rt") as lines, cut.open("w") as out:
        for line in map(json.loads, lines):
            full = line["input_length"] // 512
            if full:
                out.write(
                    json.dumps(
                        line | {"input_length": full * 512, "hash_ids": line["hash_ids"][:full]}
                    )
                    + "\n"
                )
    return cut


@pytest.fixture(scope="module")
def ours(path: Path) -> Trace:
    return load([path], full_blocks_only=False, warm_up=0.5).trace


@pytest.fixture(scope="module")
def theirs(path: Path) -> ExecutionPlan:
    return build_execution_plan(parse_trace_file(path, block_size=512))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_equal_on_an_hour_of_real_chat(
    path: Path, ours: Trace, theirs: ExecutionPlan, capacity: int
) -> None:
    outcome, reference = (
        Rule("always").runner(ours)(Tiers(capacity)),
        simulate_policy(theirs, "lru", capacity),
    )
    assert (outcome.hit_tokens, outcome.input_tokens) == (
        reference.hitTokens,
        reference.totalTokens,
    )
    if path.name == "full.jsonl":
        assert round(100 * outcome.hit_rate, 2) == CAPACITIES[capacity]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_belady_is_not_below_their_optimum(
    ours: Trace, theirs: ExecutionPlan, capacity: int
) -> None:
    best = Rule("belady").runner(ours)(Tiers(capacity))
    assert best.hit_tokens >= simulate_policy(theirs, "optimal", capacity).hitTokens


@settings(max_examples=300, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=4, max_size=30),
    capacity=st.integers(1, 12),
)
def test_equal_on_any_trace(prompts: Sequence[Sequence[int]], capacity: int) -> None:
    size = 4
    lengths = [
        len(prompt) * size - at % size for at, prompt in enumerate(prompts)
    ]  # last blocks of every length
    lines = [
        json.dumps({"hash_ids": prompt, "input_length": length})
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    reference = simulate_policy(
        build_execution_plan(parse_trace_lines(lines, block_size=size)), "lru", capacity
    )
    requests = [
        Request(at, length, 0, prompt)
        for at, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    outcome = Rule("always").runner(
        build_trace(requests, size, full_blocks_only=False, warm_up=0.5)
    )(Tiers(capacity))
    assert outcome.input_tokens == reference.totalTokens or reference.totalTokens == 0
    if (
        reference.measurementMode == "fixed_window"
    ):  # it gives no figures for a cache that the first half did not fill
        assert outcome.hit_tokens == reference.hitTokens


def test_the_same_file_through_both(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            f'{{"hash_ids": [{at % 2}, {at % 3 + 10}], "input_length": 10, "block_size": 8}}\n'
            for at in range(40)
        )
    )
    reference = simulate_policy(build_execution_plan(parse_trace_file(path)), "lru", 4)
    outcome = Rule("always").runner(load([path], full_blocks_only=False, warm_up=0.5).trace)(
        Tiers(4)
    )
    assert outcome.hit_tokens == reference.hitTokens > 0

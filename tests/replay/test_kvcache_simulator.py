"""Storing everything equals, token for token, what ``kvcache-simulator`` 0.1.3 computes."""

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

from otel_kvpolicy.cli.replay.simulator import Rule, Tiers
from otel_kvpolicy.cli.replay.trace import Request, Trace, build_trace, load

from .full_traces import MOONCAKE, full_trace_path
from .traces import MOONCAKE_EXCERPT

CAPACITIES = {"excerpt": (64, 320, 640, 1280), "full trace": (1024, 5120, 10240, 20480)}
HIT_RATES = {"full trace, full chunks": [4.86, 12.59, 23.40, 32.03]}
"""Percent of the tokens in the second half of the trace that hit, by capacity."""


@pytest.fixture(
    scope="module",
    params=[
        "excerpt, all chunks",
        "excerpt, full chunks",
        pytest.param("full trace, all chunks", marks=pytest.mark.bars),
        pytest.param("full trace, full chunks", marks=pytest.mark.bars),
    ],
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real chat, with all chunks or only with the full ones, which LMCache stores.

    The simulator does not distinguish full and partial chunks, so the file must.
    """
    trace, chunks = name.split(", ")
    whole = MOONCAKE_EXCERPT if trace == "excerpt" else full_trace_path(MOONCAKE)
    if chunks == "all chunks":
        return whole
    cut = tmp_path_factory.mktemp("full") / "full.jsonl"
    with gzip.open(whole, "rt") as lines, cut.open("w") as out:
        for line in map(json.loads, lines):
            full = line["input_length"] // 512
            if full:
                line |= {"input_length": full * 512, "hash_ids": line["hash_ids"][:full]}
                out.write(json.dumps(line) + "\n")
    return cut


@pytest.fixture(scope="module")
def ours(path: Path) -> Trace:
    return load([path], full_blocks_only=False, warm_up=0.5).trace


@pytest.fixture(scope="module")
def theirs(path: Path) -> ExecutionPlan:
    return build_execution_plan(parse_trace_file(path, block_size=512))


@pytest.fixture
def capacities(name: str) -> Sequence[int]:
    return CAPACITIES[name.split(", ", maxsplit=1)[0]]


def test_storing_everything_equals_the_simulator_on_real_chat(
    name: str, ours: Trace, theirs: ExecutionPlan, capacities: Sequence[int]
) -> None:
    outcomes = [Rule("always").runner(ours)(Tiers(capacity)) for capacity in capacities]
    references = [simulate_policy(theirs, "lru", capacity) for capacity in capacities]
    assert [(outcome.hit_tokens, outcome.input_tokens) for outcome in outcomes] == [
        (reference.hitTokens, reference.totalTokens) for reference in references
    ]
    if name in HIT_RATES:
        assert [round(100 * outcome.hit_rate, 2) for outcome in outcomes] == HIT_RATES[name]


def test_belady_hits_at_least_as_much_as_their_optimum(
    ours: Trace, theirs: ExecutionPlan, capacities: Sequence[int]
) -> None:
    for capacity in capacities:
        best = Rule("belady").runner(ours)(Tiers(capacity))
        assert best.hit_tokens >= simulate_policy(theirs, "optimal", capacity).hitTokens


@settings(max_examples=300, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=4, max_size=30),
    capacity=st.integers(1, 12),
)
def test_storing_everything_equals_the_simulator_on_any_trace(
    prompts: Sequence[Sequence[int]], capacity: int
) -> None:
    size = 4
    # The last blocks have every possible length.
    lengths = [len(prompt) * size - i % size for i, prompt in enumerate(prompts)]
    lines = [
        json.dumps({"hash_ids": prompt, "input_length": length})
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    reference = simulate_policy(
        build_execution_plan(parse_trace_lines(lines, block_size=size)), "lru", capacity
    )
    requests = [
        Request(time, length, 0, prompt)
        for time, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    outcome = Rule("always").runner(
        build_trace(requests, size, full_blocks_only=False, warm_up=0.5)
    )(Tiers(capacity))
    assert outcome.input_tokens == reference.totalTokens or reference.totalTokens == 0
    # The simulator gives no figures if the first half of the trace did not fill the cache.
    if reference.measurementMode == "fixed_window":
        assert outcome.hit_tokens == reference.hitTokens


def test_both_read_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            f'{{"hash_ids": [{i % 2}, {i % 3 + 10}], "input_length": 10, "block_size": 8}}\n'
            for i in range(40)
        )
    )
    reference = simulate_policy(build_execution_plan(parse_trace_file(path)), "lru", 4)
    outcome = Rule("always").runner(load([path], full_blocks_only=False, warm_up=0.5).trace)(
        Tiers(4)
    )
    assert outcome.hit_tokens == reference.hitTokens > 0

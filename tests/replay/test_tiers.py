"""The tiers, which simulate whole segments, compared with caches simulated block by block."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_kvpolicy.cli.replay.simulator import (
    RULES,
    WHOLE,
    Player,
    Tiers,
    parse_rule,
    play,
    play_belady,
)
from otel_kvpolicy.cli.replay.trace import NEVER

from .blockwise import BlockLru, best_possible
from .traces import trace_of

BLOCKS = st.integers(0, 2)
PROMPTS = st.lists(st.lists(BLOCKS, max_size=7), min_size=1, max_size=25)
LIMITED = st.lists(
    st.tuples(st.lists(BLOCKS, max_size=7), st.one_of(st.integers(0, 8), st.just(WHOLE))),
    min_size=1,
    max_size=25,
)


class Limits(Player):
    """Stores what a list says, and records what the engine passes to it."""

    def __init__(self, limits: Sequence[int]) -> None:
        self._limits = limits
        self.hits: list[int] = []
        self.cached: list[int] = []

    def limit(self, request: int, hit: int) -> int:
        self.hits.append(hit)
        return self._limits[request]

    def answered(self, request: int, cached: int) -> None:
        self.cached.append(cached)


@settings(max_examples=400, deadline=None)
@given(calls=LIMITED, capacity=st.integers(0, 12))
def test_one_lru_tier_equals_an_lru_of_single_blocks(
    calls: list[tuple[list[int], int]], capacity: int
) -> None:
    prompts, limits = [prompt for prompt, _ in calls], [limit for _, limit in calls]
    player, plain = Limits(limits), BlockLru(capacity)
    outcome = play(trace_of(prompts), player, Tiers(capacity))
    assert player.hits == [plain.access(prompt, limit) for prompt, limit in calls]
    assert outcome.hit_tokens == sum(player.hits)
    assert (outcome.written, outcome.evicted, outcome.dead) == (
        plain.written,
        plain.evicted,
        plain.dead + plain.unread,
    )
    assert outcome.skipped == bytes(limit <= 0 for limit in limits)


@settings(max_examples=300, deadline=None)
@given(calls=LIMITED, l1=st.integers(0, 6), l2=st.integers(1, 12), gpu=st.integers(0, 6))
def test_three_tiers_equal_three_lrus_of_single_blocks(
    calls: list[tuple[list[int], int]], l1: int, l2: int, gpu: int
) -> None:
    player = Limits([limit for _, limit in calls])
    outcome = play(trace_of([prompt for prompt, _ in calls]), player, Tiers(l1, l2, gpu))
    first, second, on_gpu = BlockLru(l1), BlockLru(l2), BlockLru(gpu)
    tokens = {"gpu": 0, "l1": 0, "l2": 0}
    for prompt, limit in calls:
        in_gpu = on_gpu.access(prompt, len(prompt))
        in_l1 = first.held(prompt)
        in_l2 = second.access(prompt, limit)
        hit = max(in_l1, in_l2)
        if hit > in_l1:
            first.access(prompt, hit)
        first.access(prompt, limit)
        tokens["gpu"] += in_gpu
        tokens["l1"] += max(in_l1 - in_gpu, 0)
        tokens["l2"] += max(hit - max(in_l1, in_gpu), 0)
    assert (outcome.gpu_tokens, outcome.l1_tokens, outcome.l2_tokens) == tuple(tokens.values())
    assert (outcome.written + outcome.promoted, outcome.l2_written) == (
        first.written,
        second.written,
    )
    assert (outcome.evicted, outcome.l2_evicted) == (first.evicted, second.evicted)


@settings(max_examples=300, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), max_size=3), min_size=1, max_size=6),
    capacity=st.integers(0, 4),
)
def test_belady_equals_the_best_possible_cache(prompts: list[list[int]], capacity: int) -> None:
    assert play_belady(trace_of(prompts), Tiers(capacity)).hit_tokens == best_possible(
        prompts, capacity
    )


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=60, deadline=None)
@given(prompts=PROMPTS, capacity=st.integers(0, 12), l2=st.integers(0, 6))
def test_no_rule_hits_more_than_belady(
    name: str, prompts: list[list[int]], capacity: int, l2: int
) -> None:
    trace, tiers = trace_of(prompts), Tiers(capacity, l2)
    assert parse_rule(name).runner(trace)(tiers).hit_tokens <= play_belady(trace, tiers).hit_tokens


@settings(max_examples=200, deadline=None)
@given(prompts=PROMPTS)
def test_a_cache_with_room_for_everything_hits_every_block_seen_before(
    prompts: list[list[int]],
) -> None:
    trace = trace_of(prompts)
    outcome = parse_rule("always").runner(trace)(Tiers(trace.unique_blocks))
    assert outcome.hit_tokens == sum(trace.seen_blocks)
    assert outcome.evicted == 0
    assert outcome.written == trace.unique_blocks


@settings(max_examples=300, deadline=None)
@given(prompts=PROMPTS)
def test_a_trace_knows_past_and_future_uses_of_each_block(prompts: list[list[int]]) -> None:
    trace = trace_of(prompts)
    prefixes = [[tuple(prompt[: end + 1]) for end in range(len(prompt))] for prompt in prompts]
    before = [set().union(*prefixes[:i]) for i in range(len(prompts))]
    after = [set().union(*prefixes[i + 1 :]) for i in range(len(prompts))]
    assert trace.unique_blocks == len(set().union(*prefixes))
    assert trace.block_counts == [len(prompt) for prompt in prompts]
    assert trace.seen_blocks == [len(before[i].intersection(p)) for i, p in enumerate(prefixes)]
    assert trace.future_blocks == [len(after[i].intersection(p)) for i, p in enumerate(prefixes)]
    for i, (path, uses) in enumerate(zip(trace.paths, trace.next_use, strict=True)):
        blocks = 0
        for segment, use in zip(path, uses, strict=True):
            blocks += trace.segment_blocks[segment]
            later_uses = [
                later
                for later in range(i + 1, len(prompts))
                if prefixes[i][blocks - 1] in prefixes[later]
            ]
            assert use == (later_uses[0] if later_uses else NEVER)


def test_an_oracle_stores_only_calls_that_are_needed_again() -> None:
    trace = trace_of([[1, 2, 3], [4, 5, 6], [1, 2, 9], [7], [1, 2, 3]])
    whole = parse_rule("oracle").runner(trace)(Tiers(100))
    capped = parse_rule("oracle-cap").runner(trace)(Tiers(100))
    assert (whole.hit_tokens, whole.written) == (5, 3)
    assert (capped.hit_tokens, capped.written) == (5, 3)
    assert whole.skipped == capped.skipped == bytes([0, 1, 1, 1, 1])


def test_seen_stores_only_the_part_that_an_earlier_call_had() -> None:
    trace = trace_of([[1, 2, 3], [1, 2, 4], [1, 2, 5]])
    outcome = parse_rule("seen").runner(trace)(Tiers(100))
    assert (outcome.hit_tokens, outcome.written, outcome.capped) == (2, 2, 2)


def test_warm_up_requests_fill_the_cache_and_do_not_count() -> None:
    prompts = [[1, 2], [3, 4], [1, 2], [5]]
    outcome = parse_rule("always").runner(trace_of(prompts, warm_up=0.5))(Tiers(100))
    assert (outcome.requests, outcome.input_tokens, outcome.hit_tokens, outcome.written) == (
        2,
        3,
        2,
        5,
    )
    skipped = parse_rule("never").runner(trace_of(prompts, warm_up=0.5))(Tiers(100))
    assert (skipped.skip_ratio, skipped.skip_token_ratio, sum(skipped.skipped)) == (1.0, 1.0, 4)


def test_a_negative_capacity_is_rejected() -> None:
    with pytest.raises(ValueError, match="negative"):
        Tiers(1, -1)

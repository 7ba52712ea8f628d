"""Exact results on the excerpts of public traces, and in the small what test_bars.py demands."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_kvpolicy.cli.replay.simulator import RULES, Outcome, Tiers, parse_rule
from otel_kvpolicy.cli.replay.trace import load

from .traces import AIRLINE_EXCERPT, CODING_EXCERPT, MOONCAKE_EXCERPT, trace_at
from .traffic import generated

POINT = 0.01
EXCERPTS = (MOONCAKE_EXCERPT, CODING_EXCERPT, AIRLINE_EXCERPT)


def replay(rule: str, path: Path, *tiers: int, clients: int = 1) -> Outcome:
    return parse_rule(rule).runner(trace_at(path), clients=clients)(Tiers(*tiers))


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        (MOONCAKE_EXCERPT, ("Mooncake", 512, 400, 5_710_530, 9_424)),
        (CODING_EXCERPT, ("Mooncake", 256, 110, 12_744_122, 6_189)),
        (AIRLINE_EXCERPT, ("OpenAI messages", 256, 108, 351_579, 89)),
    ],
    ids=["chat", "coding", "tools"],
)
def test_the_excerpts_are_read_completely(path: Path, facts: tuple[str | int, ...]) -> None:
    loaded = load([path])
    trace = loaded.trace
    tokens = sum(trace.input_tokens)
    assert (*loaded.formats, trace.block_tokens, len(trace), tokens, trace.unique_blocks) == facts
    assert loaded.broken == 0


FIGURES = {
    (MOONCAKE_EXCERPT, 589): {
        "adaptive": (208_896, 6_231),
        "always": (204_288, 10_550),
        "belady": (565_248, 816),
        "never": (0, 0),
        "oracle": (471_040, 1_242),
        "oracle-cap": (507_392, 1_123),
        "seen": (205_824, 1_123),
        "thresholds": (204_288, 10_492),
        "turns": (138_240, 1_387),
    },
    (CODING_EXCERPT, 193): {
        "adaptive": (1_880_064, 8_021),
        "always": (1_790_720, 9_107),
        "belady": (2_592_256, 1_734),
        "never": (0, 0),
        "oracle": (1_923_328, 7_341),
        "oracle-cap": (1_923_328, 7_341),
        "seen": (1_829_888, 7_274),
        "thresholds": (1_790_720, 9_107),
        "turns": (1_820_928, 7_860),
    },
    (AIRLINE_EXCERPT, 22): {
        "adaptive": (231_168, 399),
        "always": (231_168, 399),
        "belady": (264_448, 51),
        "never": (0, 0),
        "oracle": (235_264, 331),
        "oracle-cap": (235_264, 331),
        "seen": (227_584, 331),
        "thresholds": (231_168, 399),
        "turns": (226_560, 399),
    },
}
"""Hit tokens and blocks written, by excerpt, size of L1, and rule."""


@pytest.mark.parametrize(("path", "capacity"), FIGURES, ids=["chat", "coding", "tools"])
def test_each_rule_has_exactly_these_results(path: Path, capacity: int) -> None:
    outcomes = {rule: replay(rule, path, capacity) for rule in RULES}
    assert {
        rule: (outcome.hit_tokens, outcome.written) for rule, outcome in outcomes.items()
    } == FIGURES[path, capacity]


def test_three_tiers_have_exactly_these_results() -> None:
    outcome = replay("adaptive", CODING_EXCERPT, 193, 774, 38)
    assert (outcome.gpu_tokens, outcome.l1_tokens, outcome.l2_tokens) == (
        426_240,
        1_364_480,
        2_363_136,
    )
    assert (outcome.written, outcome.promoted, outcome.l2_written, outcome.dead) == (
        5_802,
        3_333,
        13_918,
        4_277,
    )


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("path", EXCERPTS, ids=["chat", "coding", "tools"])
def test_adaptive_hits_as_much_as_always_and_writes_no_more(path: Path, clients: int) -> None:
    for share in (64, 32, 16, 8, 4, 1):
        capacity = max(1, trace_at(path).unique_blocks // share)
        adaptive = replay("adaptive", path, capacity, clients=clients)
        always = replay("always", path, capacity)
        assert adaptive.hit_rate >= always.hit_rate - 0.1 * POINT, share
        assert adaptive.written <= always.written, share


def test_on_chat_adaptive_hits_more_and_writes_half_in_a_small_cache() -> None:
    adaptive, always = (replay(rule, MOONCAKE_EXCERPT, 2_356) for rule in ("adaptive", "always"))
    assert adaptive.hit_rate >= always.hit_rate + 1.5 * POINT
    assert adaptive.written <= 0.55 * always.written


def test_one_offs_do_not_evict_what_returns() -> None:
    trace = generated("agents among one-offs")
    tiers = Tiers(trace.unique_blocks // 64)
    adaptive, always = (parse_rule(rule).runner(trace)(tiers) for rule in ("adaptive", "always"))
    assert adaptive.hit_rate >= always.hit_rate + 2 * POINT
    assert adaptive.written < 0.8 * always.written

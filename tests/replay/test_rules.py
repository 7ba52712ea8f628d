"""Rules and their settings, tier sizes, and several clients."""

from __future__ import annotations

from typing import Any

import pytest

from otel_kvpolicy.cli.replay.simulator import (
    DEFAULT_RULES,
    MODELS,
    OFF,
    RULES,
    SizeError,
    Tiers,
    blocks_of,
    parse_rule,
)
from otel_kvpolicy.cli.replay.trace import Trace, build_trace

from .traces import request


def calls(*sizes: int, **more: Any) -> Trace:
    """Return calls with these numbers of tokens that share no block."""
    return build_trace(
        (request([f"{i}/{n}" for n in range(size)], i, **more) for i, size in enumerate(sizes)),
        1,
    )


def skipped(rule: str, trace: Trace) -> list[int]:
    return list(parse_rule(rule).runner(trace)(Tiers(10**6)).skipped)


def test_thresholds_have_the_defaults_of_the_package_and_can_be_set() -> None:
    trace = calls(2047, 2048)
    assert skipped("thresholds", trace) == [1, 0]
    assert skipped("thresholds:context=100", trace) == [0, 0]
    assert skipped("thresholds:context=off", trace) == [1, 1]


def test_thresholds_take_the_prefix_and_the_role_into_account() -> None:
    assert skipped("thresholds:context=off", calls(1500, prefix_tokens=1024)) == [0]
    assert skipped("thresholds:context=off,prefix=1025", calls(1500, prefix_tokens=1024)) == [1]
    assert skipped("thresholds", calls(1023, 1024, role="planner")) == [1, 0]


def test_turns_stores_calls_with_enough_turns() -> None:
    trace = build_trace([request([i], i, turns=i) for i in range(4)], 1)
    assert skipped("turns", trace) == [1, 0, 0, 0]
    assert skipped("turns:turns=3", trace) == [1, 1, 1, 0]


def test_missing_turns_are_guessed_from_shared_prefixes() -> None:
    prompts = [["s", "a"], ["s", "b"], ["s", "a", "c"], ["s", "a", "c", "d"], ["s"]]
    trace = build_trace([request(blocks, i) for i, blocks in enumerate(prompts)], 1)
    # The first block is the system prompt that all of them share, so it does not count.
    assert [text.history_turns for text in trace.texts] == [0, 0, 1, 2, 0]


@pytest.mark.parametrize(
    "text", [*DEFAULT_RULES, "thresholds:prefix=512,context=off", "adaptive:partial=1,floor=0.1"]
)
def test_the_text_of_a_rule_is_what_was_parsed(text: str) -> None:
    assert str(parse_rule(text)) == text
    assert parse_rule(text).name in RULES


def test_words_stand_for_numbers_in_settings() -> None:
    assert parse_rule("thresholds:prefix=off").settings == {"prefix": OFF}
    assert parse_rule("adaptive:partial=true").settings == {"partial": 1.0}


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("lfu", "'lfu'"),
        ("thresholds:size=1", "thresholds.*'size'.*prefix"),
        ("always:turns=1", "always.*'turns'"),
        ("turns:turns=many", "turns='many'"),
        ("turns:turns=-1", "turns: turns"),
        ("turns:turns=nan", "turns: turns"),
        ("turns:turns=inf", "turns: turns"),
    ],
)
def test_an_invalid_rule_is_rejected_by_name(text: str, culprit: str) -> None:
    with pytest.raises(ValueError, match=culprit):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("5000", 5000),
        ("5000chunks", 5000),
        ("0", 0),
        ("1GiB", 32),
        ("1.5 gib", 48),
        ("512MiB", 16),
        ("1TiB", 32768),
    ],
)
def test_a_size_converts_to_chunks(text: str, chunks: int) -> None:
    assert blocks_of(text, 256, 131072) == chunks  # Llama 3.1 8B: 128 KiB per token


def test_models_have_the_kv_bytes_per_token_that_vllm_computes() -> None:
    assert MODELS["llama-3.1-8b"].bytes_per_token == 131072
    assert MODELS["llama-3.3-70b"].bytes_per_token == 327680
    assert MODELS["qwen2.5-7b"].bytes_per_token == 57344


@pytest.mark.parametrize("text", ["", "many", "-5", "1.5", "5 GB", "1e3"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(SizeError):
        blocks_of(text, 256, 1)


def test_a_size_in_bytes_needs_the_kv_bytes_per_token() -> None:
    with pytest.raises(SizeError, match="--kv-bytes-per-token"):
        blocks_of("1GiB", 256, None)


def dialogues(count: int) -> Trace:
    """Return dialogues of two calls, with calls between them that never return."""
    requests = []
    for i in range(count):
        first, second, once = (
            [f"{i}/{n}" for n in range(8)],
            [f"{i}/{n}" for n in range(12)],
            [f"once {i}/{n}" for n in range(8)],
        )
        requests += [
            request(first, 40.0 * i, turns=0, role="chat"),
            request(second, 40.0 * i + 10, turns=1, role="chat"),
            request(once, 40.0 * i + 20, turns=0, role="batch"),
        ]
    return build_trace(requests, 1)


def test_each_client_learns_only_from_its_own_calls() -> None:
    trace = dialogues(200)
    one = parse_rule("adaptive:floor=0.2").runner(trace)(Tiers(10**6))
    many = parse_rule("adaptive:floor=0.2").runner(trace, clients=200)(Tiers(10**6))
    batch = [i for i, role in enumerate(trace.roles) if role == "batch"]
    first_calls = [
        i
        for i, role in enumerate(trace.roles)
        if role == "chat" and not trace.texts[i].history_turns
    ]
    assert sum(one.skipped[i] for i in batch) > 100
    assert sum(one.skipped[i] for i in first_calls) == 0
    assert sum(many.skipped) == 0  # three calls per client are too few to learn from


def test_only_the_adaptive_rule_depends_on_the_number_of_clients() -> None:
    trace = dialogues(20)
    for name in sorted(RULES.keys() - {"adaptive"}):
        rule = parse_rule(name)
        assert rule.runner(trace, clients=7)(Tiers(50)) == rule.runner(trace)(Tiers(50))


def test_a_partial_store_keeps_the_prefix_that_an_earlier_call_had() -> None:
    shared = [f"system {n}" for n in range(10)]
    requests = [
        request([*shared, *(f"{i}/{n}" for n in range(30))], 40.0 * i, turns=0, size=256)
        for i in range(400)
    ]
    trace = build_trace(requests, 256)
    whole, partial = (
        parse_rule(f"adaptive:floor=0.3,partial={on}").runner(trace)(Tiers(40)) for on in (0, 1)
    )
    assert partial.capped > 300
    assert partial.hit_tokens >= whole.hit_tokens
    assert partial.hit_tokens > 0.95 * 400 * 10 * 256

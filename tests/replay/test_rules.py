"""The rules by their names and settings, sizes, and clients that share nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.cli.replay.simulator.engine import Tiers
from otel_kvpolicy.cli.replay.simulator.players import DEFAULT_RULES, OFF, RULES, parse_rule
from otel_kvpolicy.cli.replay.simulator.sizes import MODELS, SizeError, blocks_of
from otel_kvpolicy.cli.replay.trace.trace import Trace, build_trace

from .traces import request


def calls(*sizes: int, **more: Any) -> Trace:
    """Calls of so many tokens that share nothing."""
    return build_trace(
        (request([f"{at}/{n}" for n in range(size)], at, **more) for at, size in enumerate(sizes)),
        1,
    )


def skipped(rule: str, trace: Trace) -> list[int]:
    return list(parse_rule(rule).runner(trace)(Tiers(10**6)).skipped)


def test_thresholds_are_those_of_the_package_and_can_be_set() -> None:
    trace = calls(2047, 2048)
    assert skipped("thresholds", trace) == [1, 0]
    assert skipped("thresholds:context=100", trace) == [0, 0]
    assert skipped("thresholds:context=off", trace) == [1, 1]


def test_a_prefix_and_a_role_count() -> None:
    assert skipped("thresholds:context=off", calls(1500, prefix_tokens=1024)) == [0]
    assert skipped("thresholds:context=off,prefix=1025", calls(1500, prefix_tokens=1024)) == [1]
    assert skipped("thresholds", calls(1023, 1024, role="planner")) == [1, 0]


def test_turns() -> None:
    trace = build_trace([request([at], at, turns=at) for at in range(4)], 1)
    assert skipped("turns", trace) == [1, 0, 0, 0]
    assert skipped("turns:turns=3", trace) == [1, 1, 1, 0]


def test_turns_that_a_trace_does_not_say_are_guessed_from_what_goes_on() -> None:
    prompts = [["s", "a"], ["s", "b"], ["s", "a", "c"], ["s", "a", "c", "d"], ["s"]]
    trace = build_trace([request(blocks, at) for at, blocks in enumerate(prompts)], 1)
    assert [text.history_turns for text in trace.texts] == [
        0,
        0,
        1,
        2,
        0,
    ]  # one block alone is the system prompt that all have


@pytest.mark.parametrize(
    "text", [*DEFAULT_RULES, "thresholds:prefix=512,context=off", "adaptive:partial=1,floor=0.1"]
)
def test_a_rule_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_rule(text)) == text
    assert parse_rule(text).name in RULES


def test_off_is_a_threshold_that_no_call_reaches() -> None:
    assert parse_rule("thresholds:prefix=off").settings == {"prefix": OFF}
    assert parse_rule("adaptive:partial=true").settings == {"partial": 1.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lfu", "no rule 'lfu'"),
        ("thresholds:size=1", "no setting 'size': it takes prefix, context, turns"),
        ("always:turns=1", "takes none"),
        ("turns:turns=many", "is no number"),
        ("turns:turns=-1", "at least 0"),
        ("turns:turns=nan", "at least 0"),
        ("turns:turns=inf", "at least 0"),
    ],
)
def test_what_is_no_rule(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
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
def test_sizes(text: str, chunks: int) -> None:
    assert blocks_of(text, 256, 131072) == chunks  # 128 KiB of KV a token: Llama 3.1 8B in bfloat16


def test_the_presets_come_to_what_vllm_would_hold() -> None:
    assert MODELS["llama-3.1-8b"].bytes_per_token == 131072
    assert MODELS["llama-3.3-70b"].bytes_per_token == 327680
    assert MODELS["qwen2.5-7b"].bytes_per_token == 57344


@pytest.mark.parametrize("text", ["", "many", "-5", "1.5", "5 GB", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(SizeError):
        blocks_of(text, 256, 1)


def test_bytes_ask_for_the_model() -> None:
    with pytest.raises(SizeError, match="--model or --kv-bytes-per-token"):
        blocks_of("1GiB", 256, None)


def dialogues(count: int) -> Trace:
    """Dialogues of two calls, and between them calls that never return: what one client has learned of, another has not."""
    requests = []
    for at in range(count):
        requests += [request([f"{at}/{n}" for n in range(8)], 40.0 * at, turns=0, role="chat")]
        requests += [
            request([f"{at}/{n}" for n in range(12)], 40.0 * at + 10, turns=1, role="chat")
        ]
        requests += [
            request([f"once {at}/{n}" for n in range(8)], 40.0 * at + 20, turns=0, role="batch")
        ]
    return build_trace(requests, 1)


def test_clients_learn_apart() -> None:
    trace = dialogues(200)
    alone = parse_rule("adaptive:floor=0.2").runner(trace)(Tiers(10**6))
    shared = parse_rule("adaptive:floor=0.2").runner(trace, clients=200)(Tiers(10**6))
    assert (
        sum(
            alone.skipped[request]
            for request in range(len(trace))
            if trace.roles[request] == "batch"
        )
        > 100
    )
    returns = [
        request
        for request, role in enumerate(trace.roles)
        if role == "chat" and not trace.texts[request].history_turns
    ]
    assert sum(alone.skipped[request] for request in returns) == 0
    assert sum(shared.skipped) == 0  # three calls teach nobody anything


def test_one_client_or_many_is_the_same_to_rules_that_learn_nothing() -> None:
    trace = dialogues(20)
    for name in sorted(RULES.keys() - {"adaptive"}):
        rule = parse_rule(name)
        assert rule.runner(trace, clients=7)(Tiers(50)) == rule.runner(trace)(Tiers(50))


def test_a_partial_store_keeps_the_prefix_that_was_seen(tmp_path: Path) -> None:
    shared = [f"system {n}" for n in range(10)]
    requests = [
        request([*shared, *(f"{at}/{n}" for n in range(30))], 40.0 * at, turns=0, size=256)
        for at in range(400)
    ]
    trace = build_trace(requests, 256)
    whole, partial = (
        parse_rule(f"adaptive:floor=0.3,partial={on}").runner(trace)(Tiers(40)) for on in (0, 1)
    )
    assert partial.capped > 300
    assert partial.hit_tokens >= whole.hit_tokens
    assert partial.hit_tokens > 0.95 * 400 * 10 * 256

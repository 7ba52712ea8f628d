"""The thresholds rule: signals at and below their thresholds, roles, scores, and any input."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from otel_kvpolicy import KVCacheDecision, KVCacheLayeringPolicy, decide


def tokens(count: int) -> str:
    return "x" * 4 * count


def reply(text: str = "ok") -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("call", "reasons"),
    [
        ({"system_prompt": tokens(1024)}, ["long_shared_prefix(1024>=1024t)"]),
        ({"system_prompt": tokens(2000)}, ["long_shared_prefix(2000>=1024t)"]),
        ({"system_prompt": tokens(1024)[1:]}, ["one_off_short_prompt"]),
        (
            {"message_history": [reply()], "user_prompt": "and?"},
            ["multi_turn_conversation(1turns)"],
        ),
        (
            {"message_history": [{"role": "user", "content": "a"}], "user_prompt": "b"},
            ["one_off_short_prompt"],
        ),
        ({"user_prompt": tokens(2048)}, ["large_fixed_context(2048>=2048t)"]),
        ({"user_prompt": tokens(2047)}, ["one_off_short_prompt"]),
        ({"rag_context": tokens(1024)}, ["large_rag_context(1024>=1024t)"]),
        ({"rag_context": tokens(1023)}, ["one_off_short_prompt"]),
        (
            {
                "system_prompt": tokens(1024),
                "rag_context": tokens(1024),
                "message_history": [reply()],
            },
            [
                "long_shared_prefix(1024>=1024t)",
                "multi_turn_conversation(1turns)",
                "large_fixed_context(2048>=2048t)",
                "large_rag_context(1024>=1024t)",
            ],
        ),
        ({}, ["one_off_short_prompt"]),
    ],
)
def test_a_signal_counts_from_its_threshold_on(call: dict[str, Any], reasons: list[str]) -> None:
    decision = KVCacheLayeringPolicy().decide(**call)
    assert decision.reasons == reasons
    assert decision.cache_worthy is (reasons != ["one_off_short_prompt"])
    assert decision.skip_save is not decision.cache_worthy
    assert decision.reason_codes == [reason.split("(")[0] for reason in reasons]
    assert decision.kv_transfer_params == {"lmcache.skip_save": decision.skip_save}


@pytest.mark.parametrize(
    "role",
    ["chat", "orchestrator", "planner", "router", "assistant", "conversation", "Planner", " CHAT "],
)
def test_a_reuse_heavy_role_tips_only_a_borderline_call(role: str) -> None:
    policy = KVCacheLayeringPolicy()
    assert policy.decide(user_prompt=tokens(1024), role=role).reason_codes == ["reuse_heavy_role"]
    assert policy.decide(user_prompt=tokens(1023), role=role).reason_codes == [
        "one_off_short_prompt"
    ]
    assert policy.decide(user_prompt=tokens(2048), role=role).reason_codes == [
        "large_fixed_context"
    ]


@pytest.mark.parametrize("role", ["summarizer", "", None, 7])
def test_other_roles_tip_nothing(role: Any) -> None:
    assert KVCacheLayeringPolicy().decide(user_prompt=tokens(2000), role=role).skip_save


@pytest.mark.parametrize(
    ("call", "score"),
    [
        ({"user_prompt": tokens(512)}, 0.25),
        ({"user_prompt": tokens(512), "message_history": [reply("")]}, 0.5),
        ({"user_prompt": tokens(2000), "message_history": [reply("")]}, 1.0),
        ({"user_prompt": tokens(9999)}, 1.0),
        ({}, 0.0),
    ],
)
def test_score_is_the_share_of_the_context_threshold_plus_a_quarter_for_turns(
    call: dict[str, Any], score: float
) -> None:
    assert KVCacheLayeringPolicy().decide(**call).score == score


def test_tool_definitions_are_part_of_the_prefix_and_also_reported_separately() -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "d" * 4400,
            "parameters": {"type": "object"},
        },
    }
    decision = KVCacheLayeringPolicy().decide(
        system_prompt=tokens(10), user_prompt="hi", tools=[tool]
    )
    assert decision.signals["tool_tokens"] > 1100
    assert decision.signals["prefix_tokens"] == decision.signals["tool_tokens"] + 10
    assert decision.reason_codes == ["long_shared_prefix"]


def test_a_disabled_policy_makes_inert_decisions() -> None:
    decision = KVCacheLayeringPolicy(enabled=False).decide(system_prompt=tokens(5000))
    assert decision == KVCacheDecision(
        cache_worthy=False, skip_save=False, reasons=["policy_disabled"], enabled=False
    )
    assert decision.kv_transfer_params == {}


def test_the_tokens_of_each_part_are_rounded_down() -> None:
    signals = (
        KVCacheLayeringPolicy()
        .decide(system_prompt="abc", user_prompt="abcdefg", rag_context="abcd")
        .signals
    )
    assert (
        signals["prefix_tokens"],
        signals["user_tokens"],
        signals["rag_tokens"],
        signals["total_tokens"],
    ) == (0, 1, 1, 2)


def test_a_decision_built_without_validation_equals_a_validated_one() -> None:
    made = KVCacheLayeringPolicy().decide(system_prompt=tokens(1024))
    built = KVCacheDecision(**made.model_dump())
    assert made == built
    assert hash(type(made)) == hash(type(built))
    assert repr(made) == repr(built)
    assert KVCacheDecision.model_validate_json(made.model_dump_json()) == made
    assert made.model_copy(update={"score": 0.0}).score == 0.0
    assert made.model_fields_set == built.model_fields_set
    assert copy.deepcopy(made) == made == pickle.loads(pickle.dumps(made))


def test_a_decision_is_frozen() -> None:
    decision = decide(user_prompt="hi")
    with pytest.raises(ValidationError, match="frozen"):
        decision.skip_save = False


@pytest.mark.parametrize(
    "arguments",
    [
        {"chars_per_token": float("-inf")},
        {"chars_per_token": float("nan")},
        {"min_prefix_tokens": -1},
        {"min_context_tokens": float("inf")},
    ],
)
def test_impossible_arguments_raise_an_error_that_names_them(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        KVCacheLayeringPolicy(**arguments)


def pydantic_ai_like(kind: str, *contents: Any) -> SimpleNamespace:
    return SimpleNamespace(
        kind=kind, parts=[SimpleNamespace(content=content) for content in contents]
    )


@pytest.mark.parametrize(
    ("history", "turns", "history_tokens"),
    [
        ([{"role": "user", "content": "abcd"}, reply("abcd")], 1, 2),
        ([pydantic_ai_like("request", "abcd"), pydantic_ai_like("response", "abcd", "efgh")], 1, 3),
        ([SimpleNamespace(parts=[SimpleNamespace(content="abcdefgh")])] * 2, 2, 4),
        ([reply("")], 1, 0),
        (
            [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "abcd", "arguments": '{"ab"}ab'}}],
                }
            ],
            1,
            3,
        ),
        ([None, 7, object()], 3, 0),
        ("abcd", 0, 0),
        (b"abcd", 0, 0),
        ({"role": "assistant"}, 0, 0),
        (7, 0, 0),
        ((message for message in [reply()]), 0, 0),
        ([], 0, 0),
    ],
)
def test_history_of_any_shape(history: Any, turns: int, history_tokens: int) -> None:
    signals = KVCacheLayeringPolicy().decide(message_history=history).signals
    assert (signals["history_turns"], signals["history_tokens"]) == (turns, history_tokens)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=5)
    ),
    max_leaves=30,
)


@settings(deadline=None)
@given(
    system_prompt=anything,
    user_prompt=anything,
    message_history=anything,
    rag_context=anything,
    role=anything,
    tools=anything,
)
def test_any_input_gives_a_valid_decision(**call: Any) -> None:
    decision = KVCacheLayeringPolicy().decide(**call)
    assert decision.skip_save is not decision.cache_worthy
    assert 0 <= decision.score <= 1
    assert decision.reasons
    parts = ("prefix_tokens", "history_tokens", "rag_tokens", "user_tokens")
    assert decision.signals["total_tokens"] == sum(decision.signals[part] for part in parts)
    assert all(count >= 0 for count in decision.signals.values())


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=4, max_size=4),
    turns=st.integers(0, 3),
    more=st.integers(0, 3),
    prefix=st.integers(0, 3000),
    context=st.integers(1, 5000),
)
def test_more_of_any_signal_never_turns_a_store_into_a_skip(
    sizes: list[int], turns: int, more: int, prefix: int, context: int
) -> None:
    policy = KVCacheLayeringPolicy(min_prefix_tokens=prefix, min_context_tokens=context)

    def verdict(system: int, user: int, rag: int, old: int) -> KVCacheDecision:
        return policy.decide(
            system_prompt=tokens(system),
            user_prompt=tokens(user),
            rag_context=tokens(rag),
            message_history=[reply(tokens(old))] * turns,
        )

    grown = list(sizes)
    grown[more] += 500
    assert verdict(*sizes).skip_save or verdict(*grown).cache_worthy
    assert verdict(*grown).score >= verdict(*sizes).score


def test_the_repr_shows_all_arguments() -> None:
    shown = repr(KVCacheLayeringPolicy(min_prefix_tokens=7, enabled=False))
    assert shown == (
        "KVCacheLayeringPolicy(chars_per_token=4.0, enabled=False, min_context_tokens=2048, "
        "min_history_turns=1, min_prefix_tokens=7, min_tool_tokens=None)"
    )


def test_history_turns_count_from_the_threshold_and_at_least_from_one() -> None:
    patient, eager = (
        KVCacheLayeringPolicy(min_history_turns=2),
        KVCacheLayeringPolicy(min_history_turns=0),
    )
    assert patient.decide(message_history=[reply()]).reasons == ["one_off_short_prompt"]
    assert patient.decide(message_history=[reply()] * 2).reasons == [
        "multi_turn_conversation(2turns)"
    ]
    assert eager.decide(user_prompt="hi").reasons == ["one_off_short_prompt"]


def test_an_empty_call_has_no_tokens_and_scores_have_four_decimals() -> None:
    assert KVCacheLayeringPolicy(chars_per_token=1).decide().signals["total_tokens"] == 0
    assert KVCacheLayeringPolicy().decide(user_prompt=tokens(1)).score == 0.0005


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [
        ("min_prefix_tokens", -1, "of at least 0"),
        ("min_prefix_tokens", True, "of at least 0"),
        ("min_context_tokens", float("inf"), "of at least 0"),
        ("min_context_tokens", "many", "of at least 0"),
        ("min_history_turns", float("nan"), "of at least 0"),
        ("min_tool_tokens", -1, "of at least 0"),
        ("chars_per_token", float("inf"), ""),
        ("chars_per_token", "4", ""),
    ],
)
def test_an_error_names_the_argument_and_the_value(name: str, value: Any, range_: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        KVCacheLayeringPolicy(**{name: value})
    assert name in str(raised.value)
    assert repr(value) in str(raised.value)
    assert range_ in str(raised.value)


def test_an_unknown_threshold_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="min_color"):
        KVCacheLayeringPolicy(min_color=1)


def test_thresholds_of_zero_store_everything() -> None:
    decision = KVCacheLayeringPolicy(
        min_prefix_tokens=0, min_context_tokens=0, min_history_turns=0
    ).decide()
    assert decision.reasons == ["long_shared_prefix(0>=0t)", "large_fixed_context(0>=0t)"]
    assert decision.score == 0.0
    assert KVCacheLayeringPolicy(min_context_tokens=0).decide(user_prompt=tokens(1)).score == 1.0


@pytest.mark.parametrize("ratio", [0.25, 0, -4])
def test_less_than_one_character_per_token_counts_as_one(ratio: float) -> None:
    policy = KVCacheLayeringPolicy(chars_per_token=ratio)
    assert policy.decide(user_prompt="x" * 10).signals["user_tokens"] == 10


def test_half_of_an_odd_context_threshold_is_rounded_down() -> None:
    policy = KVCacheLayeringPolicy(min_context_tokens=5, chars_per_token=1)
    assert policy.decide(user_prompt="xx", role="planner").reason_codes == ["reuse_heavy_role"]
    assert policy.decide(user_prompt="x", role="planner").skip_save


def test_tool_definitions_have_a_threshold_that_is_off_by_default() -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "description": "d" * 400}}]
    assert KVCacheLayeringPolicy().decide(tools=tools).skip_save
    decision = KVCacheLayeringPolicy(min_tool_tokens=100).decide(tools=tools)
    assert decision.reason_codes == ["large_tool_definitions"]
    assert KVCacheLayeringPolicy(min_tool_tokens=0).decide().skip_save


def test_arguments_that_are_not_given_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, explicit = KVCacheLayeringPolicy(), KVCacheLayeringPolicy(min_prefix_tokens=1024)
    prompt = {"system_prompt": "x" * 400}
    assert live.decide(**prompt).skip_save
    monkeypatch.setenv("KV_CACHE_MIN_PREFIX_TOKENS", "10")
    assert live.decide(**prompt).reason_codes == ["long_shared_prefix"]
    assert explicit.decide(**prompt).skip_save
    assert (live.min_prefix_tokens, explicit.min_prefix_tokens) == (10, 1024)
    monkeypatch.setenv("KV_CACHE_CHARS_PER_TOKEN", "400")
    assert live.decide(**prompt).skip_save
    assert explicit.decide(**prompt).signals["prefix_tokens"] == 1
    monkeypatch.setenv("KV_CACHE_MIN_TOOL_TOKENS", "7")
    assert live.min_tool_tokens == explicit.min_tool_tokens == 7
    monkeypatch.setenv("KV_CACHE_LAYERING", "false")
    assert not live.decide(**prompt).enabled
    assert not explicit.decide(**prompt).enabled
    assert KVCacheLayeringPolicy(enabled=True).decide(**prompt).enabled

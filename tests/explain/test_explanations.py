"""Explanations of real calls: measures, changes, what happened afterwards, and caveats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, OpenAI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_kvpolicy
from otel_kvpolicy import KVCacheDecision, KVCacheLayeringPolicy, KVPolicyInstrumentor, kv_context
from otel_kvpolicy.policy import REUSE_HEAVY_ROLES
from otel_kvpolicy.standin import FAULT_HEADER, StandIn
from otel_kvpolicy.telemetry import decision_log

from .asking import ask, change_keys, codes, measure_keys, note_values
from .conftest import HI, MANUAL, REPLY, RULES, process

Explain = Callable[..., dict[str, Any]]


def user(words: int) -> Any:
    return {"role": "user", "content": "word " * words}


@pytest.fixture
def explain(server: StandIn, tmp_path: Path) -> Explain:
    """Makes a call in an instrumented process and returns its explanation as JSON."""
    log = tmp_path / "decisions.jsonl"

    def explain_call(
        *messages: Any, to: StandIn = server, fails: bool = False, **options: Any
    ) -> dict[str, Any]:
        otel_kvpolicy.configure(decision_log=str(log))
        with process(InMemorySpanExporter(), to, "shop") as shop:
            if fails:
                with pytest.raises(APIStatusError):
                    shop.chat(*messages, **options)
            else:
                shop.chat(*messages, **options)
        assert decision_log.flush(20)
        (call,) = ask("--from", log, "--last", 1, "--json").calls
        assert ask(call["trace_id"], "--from", log).code == 0
        (explained,) = ask(call["trace_id"], "--from", log, "--json").calls
        return explained

    return explain_call


def test_a_skipped_call_is_measured_against_each_threshold(explain: Explain) -> None:
    call = explain(RULES, HI)
    assert (call["verdict"], call["rule"], call["mode"], call["hint_outcome"]) == (
        "skip",
        "thresholds",
        "enforce",
        "applied",
    )
    assert call["decision"]["reasons"] == ["one_off_short_prompt"]
    assert call["decision"]["score"] == 0.3965
    assert measure_keys(call) == [
        (812, 1024, -212, False),
        (0, 1, -1, False),
        (812, 2048, -1236, False),
    ]
    assert change_keys(call) == [
        ("signal", "prefix_tokens", 1024),
        ("signal", "history_turns", 1),
        ("setting", "KV_CACHE_MIN_PREFIX_TOKENS", 812),
        ("setting", "KV_CACHE_MIN_CONTEXT_TOKENS", 812),
    ]
    assert codes(call["afterwards"])[0] == "applied"
    assert "hint_unverified" in codes(call["caveats"])


@pytest.mark.parametrize(
    ("messages", "reasons", "changes"),
    [
        (
            [MANUAL, HI],
            ["long_shared_prefix"],
            [
                ("signal", "prefix_tokens", 1023),
                ("setting", "KV_CACHE_MIN_PREFIX_TOKENS", 1251),
            ],
        ),
        (
            [HI, REPLY, HI],
            ["multi_turn_conversation"],
            [("signal", "history_turns", 0), ("setting", "KV_CACHE_MIN_HISTORY_TURNS", 2)],
        ),
        (
            [user(1639)],
            ["large_fixed_context"],
            [
                ("signal", "user_tokens", 2047),
                ("setting", "KV_CACHE_MIN_CONTEXT_TOKENS", 2049),
            ],
        ),
        (
            [MANUAL, user(700), REPLY, HI],
            ["long_shared_prefix", "multi_turn_conversation"],
            [],
        ),
    ],
    ids=["prefix", "conversation", "context", "two-signals"],
)
def test_a_stored_call_names_its_reasons_and_what_would_have_skipped_it(
    explain: Explain, messages: list[Any], reasons: list[str], changes: list[Any]
) -> None:
    call = explain(*messages)
    assert call["verdict"] == "store"
    found_reasons = [reason.partition("(")[0] for reason in call["decision"]["reasons"]]
    assert found_reasons[: len(reasons)] == reasons
    assert change_keys(call) == changes
    assert "hint_unverified" not in codes(call["caveats"])


def test_a_reported_change_changes_the_verdict_of_a_real_call(explain: Explain) -> None:
    settings = [change for change in explain(RULES, HI)["changes"] if change["kind"] == "setting"]
    assert len(settings) == 2
    for change in settings:
        field, value = change["name"].removeprefix("KV_CACHE_").lower(), change["value"]
        otel_kvpolicy.configure(**{field: value})
        assert explain(RULES, HI)["verdict"] == "store"
        otel_kvpolicy.configure(**{field: value + 1})
        assert explain(RULES, HI)["verdict"] == "skip"
        otel_kvpolicy.configure(**{field: None})
    assert explain({"role": "system", "content": "x" * 4 * 1024}, HI)["verdict"] == "store"
    assert explain({"role": "system", "content": "x" * (4 * 1024 - 1)}, HI)["verdict"] == "skip"


def test_a_role_is_a_change_if_the_call_is_half_long_enough(explain: Explain) -> None:
    call = explain(user(900))
    (change,) = [change for change in call["changes"] if change["kind"] == "role"]
    assert all(role in change["text"] for role in REUSE_HEAVY_ROLES)
    assert all(change["kind"] != "role" for change in explain(user(800))["changes"])


def test_a_role_that_made_the_difference_counts_in_the_changes(explain: Explain) -> None:
    with kv_context(role="planner"):
        call = explain(user(900))
    assert call["decision"]["reasons"] == ["reuse_heavy_role(planner)"]
    assert change_keys(call) == [
        ("signal", "user_tokens", 1023),
        ("setting", "KV_CACHE_MIN_CONTEXT_TOKENS", 2252),
    ]


def test_retrieved_context_is_a_measure_of_its_own(explain: Explain) -> None:
    with kv_context(rag_context="fact " * 1000):
        call = explain({"role": "user", "content": "fact " * 1000 + "?"})
    assert measure_keys(call)[-1] == (1250, 1024, 226, True)
    assert change_keys(call)[0] == ("signal", "rag_tokens", 1023)


def test_tools_are_part_of_the_prefix(explain: Explain) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "word " * 100,
            "parameters": {"type": "object"},
        },
    }
    signals = explain(RULES, HI, tools=[tool])["decision"]["signals"]
    assert signals["tool_tokens"] > 125
    assert signals["prefix_tokens"] == 812 + signals["tool_tokens"]


# --- what happened to the hint --------------------------------------------------------------------


def test_observe_mode_sends_no_hint(explain: Explain) -> None:
    otel_kvpolicy.configure(mode="observe")
    call = explain(HI)
    assert (call["verdict"], call["mode"]) == ("skip", "observe")
    assert codes(call["afterwards"])[0] == "observed"
    assert "observe_mode" in codes(call["caveats"])
    assert "hint_unverified" not in codes(call["caveats"])


@pytest.mark.parametrize(("skips", "verdict"), [(True, "skip"), (False, "store")])
def test_the_callers_own_hint_decides(explain: Explain, skips: bool, verdict: str) -> None:
    call = explain(HI, extra_body={"kv_transfer_params": {"lmcache.skip_save": skips}})
    assert (call["verdict"], call["decision"]["cache_worthy"]) == (verdict, False)
    assert call["changes"] == []
    assert codes(call["afterwards"])[0] == "caller"
    assert "caller_overrides" in codes(call["caveats"])


def test_an_excluded_server_gets_no_hint(explain: Explain) -> None:
    otel_kvpolicy.configure(targets="gb10.local")
    call = explain(HI)
    assert codes(call["afterwards"])[0] == "excluded_target"
    assert "KV_CACHE_TARGETS" in call["afterwards"][0]["text"]


def test_a_server_that_rejects_the_hint_gets_the_call_without_it(explain: Explain) -> None:
    with StandIn(strict="openai") as strict:
        call = explain(HI, to=strict)
    assert codes(call["afterwards"])[0] == "rejected"


def test_the_headline_of_a_skip_tells_whether_it_was_enforced(explain: Explain) -> None:
    headlines = {explain(HI)["headline"]}
    otel_kvpolicy.configure(mode="observe")
    not_enforced = {explain(HI)["headline"]}
    otel_kvpolicy.configure(mode=None, targets="gb10.local")
    not_enforced.add(explain(HI)["headline"])
    otel_kvpolicy.configure(targets=None)
    with StandIn(strict="openai") as strict:
        not_enforced.add(explain(HI, to=strict)["headline"])
    assert len(not_enforced) == 1
    assert not headlines & not_enforced


def test_a_failed_call_names_its_error(explain: Explain) -> None:
    call = explain(HI, fails=True, extra_headers={FAULT_HEADER: "400"})
    assert note_values(call["afterwards"], "call_failed") == {"error_type": "BadRequestError"}


# --- caches and estimates -------------------------------------------------------------------------


def test_cached_tokens_are_reported_as_the_server_counted_them(explain: Explain) -> None:
    explain(MANUAL, HI)
    call = explain(MANUAL, HI)
    cached, prompt = call["usage"]["cached_tokens"], call["usage"]["input_tokens"]
    assert 1200 < cached < prompt
    assert note_values(call["afterwards"], "cached_tokens") == {
        "cached_tokens": cached,
        "input_tokens": prompt,
    }
    assert note_values(call["caveats"], "estimate") == {
        "chars_per_token": 4,
        "estimated_tokens": 1250,
        "counted_tokens": prompt,
        "verdict_by_count": None,
    }


def test_a_server_may_not_report_cached_tokens(explain: Explain) -> None:
    with StandIn(prompt_tokens_details=False) as quiet:
        call = explain(MANUAL, HI, to=quiet)
    assert "cached_tokens_unknown" in codes(call["afterwards"])
    assert call["usage"]["cached_tokens"] is None


def test_an_estimate_that_cost_the_verdict_is_a_caveat(explain: Explain) -> None:
    otel_kvpolicy.configure(chars_per_token=6)  # the server counts four characters per token
    call = explain(MANUAL, HI)
    values = note_values(call["caveats"], "estimate")
    assert (values["estimated_tokens"], values["verdict_by_count"]) == (833, "store")
    assert round(values["counted_tokens"] / values["estimated_tokens"], 2) == 1.51
    assert call["verdict"] == "skip"


def test_the_kind_of_text_is_named_if_its_ratio_is_learned(explain: Explain) -> None:
    otel_kvpolicy.configure(chars_per_token="auto")
    values = note_values(explain(MANUAL, HI)["caveats"], "estimate")
    assert (values["script"], values["chars_per_token"]) == ("prose", 4)


def test_a_call_near_a_threshold_is_a_close_call(explain: Explain) -> None:
    assert "close_call" in codes(explain(user(1500))["caveats"])
    assert "close_call" not in codes(explain(HI)["caveats"])


def test_a_prompt_shorter_than_a_chunk_is_a_caveat(explain: Explain) -> None:
    assert "shorter_than_a_chunk" in codes(explain(HI)["caveats"])
    assert "shorter_than_a_chunk" not in codes(explain(RULES, HI)["caveats"])


# --- custom rules ---------------------------------------------------------------------------------


class StoreEverything(KVCacheLayeringPolicy):
    """A custom rule."""

    def decide(self, **arguments: Any) -> KVCacheDecision:
        return (
            super()
            .decide(**arguments)
            .model_copy(
                update={"cache_worthy": True, "skip_save": False, "reasons": ["nightly(7)"]}
            )
        )


def test_a_custom_rule_is_recognized_by_its_deviating_verdict(
    server: StandIn, tmp_path: Path
) -> None:
    otel_kvpolicy.configure(decision_log=str(tmp_path / "log"))
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(policy=StoreEverything())
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            client.chat.completions.create(model="stand-in", messages=[RULES, HI])
    finally:
        instrumentor.uninstrument()
    assert decision_log.flush(20)
    (call,) = ask("--from", tmp_path / "log", "--json").calls
    assert (call["verdict"], call["decision"]["reasons"]) == ("store", ["nightly"])
    assert "nightly" in call["headline"]
    assert call["changes"] == []
    assert "other_rule" in codes(call["caveats"])

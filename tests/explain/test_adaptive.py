"""Decisions of the learned rule: read back as they were taken, told with what was learned, and decided offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from otel_kvpolicy import KVCacheLayeringPolicy, configure, kv_context
from otel_kvpolicy.policy import KVCacheDecision
from otel_kvpolicy.policy.adaptive.reuse_table import CallClass
from otel_kvpolicy.policy.adaptive.rule import Why
from otel_kvpolicy.record import CallRecord
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import decision_log
from otel_kvpolicy.telemetry.spans import decision_attributes

from ..conftest import Telemetry
from ..persistence.taught import question, said, taught_file
from .asking import ask
from .test_round_trip import read_back

SHARE = st.floats(0, 1, allow_nan=False)
whys = st.builds(
    Why,
    code=st.sampled_from(["reuse_expected", "reuse_unlikely", "shared_prefix_lost"]),
    group=st.builds(
        CallClass,
        st.sampled_from(["", "chat"]),
        st.integers(0, 4),
        st.integers(1, 16),
        st.integers(0, 4),
    ),
    reuse=SHARE,
    doubt=SHARE,
    theta=SHARE,
    survival=st.none() | SHARE,
    keeps_seconds=st.none() | st.floats(1, 1e5),
    calls=st.floats(0, 1e4),
    visible=SHARE,
)


@given(whys)
def test_the_decision_that_was_taken(why: Why) -> None:
    worthy = why.code != "reuse_unlikely"
    decision = KVCacheDecision(
        cache_worthy=worthy, skip_save=not worthy, score=round(why.reuse, 4), reasons=[why.reason]
    )
    record = CallRecord(
        decision,
        not worthy,
        "applied",
        "enforce",
        KVCacheLayeringPolicy(),
        "m",
        "gb10",
        8000,
        None,
        why,
    )
    entry = {
        "trace_id": "1" * 32,
        "span_id": "1" * 16,
        "name": "chat m",
        "attributes": decision_attributes(record),
    }
    entry["timestamp"] = "2026-01-01T00:00:00.000000Z"
    assert read_back(entry).decision == decision


@pytest.fixture
def lessons(tmp_path: Path) -> str:
    return str(taught_file(tmp_path))


def decided(
    server: StandIn, tmp_path: Path, messages: list[dict[str, Any]], agent: str, **settings: Any
) -> tuple[dict[str, Any], str]:
    """Makes a call and asks for its reason: as JSON, and in words."""
    log = tmp_path / "decisions.jsonl"
    configure(decision_log=str(log), rule="adaptive", **settings)
    with OpenAI(base_url=server.base_url, api_key="key") as client, kv_context(agent_name=agent):
        client.chat.completions.create(model="stand-in", messages=messages, max_tokens=2)  # type: ignore[call-overload]
    assert decision_log.flush()
    trace = json.loads(log.read_text().splitlines()[-1])["trace_id"]
    (call,) = ask(trace, "--from", str(log), "--json").calls
    return call, " ".join(ask(trace, "--from", str(log)).out.split())


def test_a_skipped_call(
    server: StandIn, instrumented: Telemetry, lessons: str, tmp_path: Path
) -> None:
    call, words = decided(server, tmp_path, question(), "batch", state_file=lessons, shadow=True)
    assert (call["verdict"], call["rule"]) == ("skip", "adaptive")
    assert call["headline"].endswith(
        "calls of its class come back too seldom for what a place in the cache is worth."
    )
    reuse, theta = call["changes"]
    facts = {fact["name"]: fact["value"] for fact in call["facts"]}
    assert reuse["value"] == pytest.approx(
        facts["kvpolicy.adaptive.theta"] - facts["kvpolicy.adaptive.doubt"]
    )
    assert theta["value"] == pytest.approx(
        facts["kvpolicy.adaptive.reuse"] + facts["kvpolicy.adaptive.doubt"]
    )
    assert "it would have been stored with any one of - P(reuse) of its class at" in words
    assert (
        "adaptive.class batch, no turns, 1k-2k tokens, new (of the learned rule: the call's class"
        in words
    )
    assert "shadow.decision skip" in words
    assert "What the rule has learned moves on" in words


def test_a_stored_call(
    server: StandIn, instrumented: Telemetry, lessons: str, tmp_path: Path
) -> None:
    call, words = decided(
        server, tmp_path, [said("system", "short"), *question()], "chat", state_file=lessons
    )
    assert call["verdict"] == "store"
    assert "it would have been skipped with any one of - theta above" in words
    assert call["changes"][0]["value"] > 0.5


def test_a_call_that_its_doubt_alone_stores_is_not_turned_by_a_class_that_never_comes_back() -> (
    None
):
    call = offline("--set", "KV_CACHE_RULE=adaptive")
    assert call["verdict"] == "store"
    assert [change["name"] for change in call["changes"]] == ["kvpolicy.adaptive.theta"]


def offline(*arguments: str) -> dict[str, Any]:
    body = json.dumps({"model": "stand-in", "messages": question()})
    answer = ask("--request", "-", "--json", "--role", "batch", *arguments, stdin=body)
    assert (answer.code, answer.err) == (0, "")
    (call,) = answer.calls
    return call


def test_offline_it_decides_by_what_its_file_says_and_leaves_that_alone(lessons: str) -> None:
    before = Path(lessons).read_bytes()
    assert offline("--set", "KV_CACHE_RULE=adaptive")["verdict"] == "store"
    taught = offline("--set", "KV_CACHE_RULE=adaptive", "--set", f"KV_CACHE_STATE_FILE={lessons}")
    assert (taught["verdict"], taught["decision"]["skip_save"]) == ("skip", True)
    assert Path(lessons).read_bytes() == before
    missing = offline(
        "--set", "KV_CACHE_RULE=adaptive", "--set", f"KV_CACHE_STATE_FILE={lessons}.none"
    )
    assert missing["verdict"] == "store"


def test_offline_with_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    path.write_text("{")
    body = json.dumps({"messages": question()})
    answer = ask(
        "--request",
        "-",
        "--set",
        "KV_CACHE_RULE=adaptive",
        "--set",
        f"KV_CACHE_STATE_FILE={path}",
        stdin=body,
    )
    assert answer.code == 1
    assert answer.err.startswith(f"explain: -: KV_CACHE_STATE_FILE: cannot use {path}: ")
    assert path.read_text() == "{"

"""Decisions of the adaptive rule: read back, explained, and made for a request without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from otel_kvpolicy import configure, kv_context
from otel_kvpolicy.policy import KVCacheDecision, Verdict
from otel_kvpolicy.policy.adaptive.reuse_table import CallClass
from otel_kvpolicy.policy.adaptive.why import Why
from otel_kvpolicy.record import CallRecord
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import decision_log
from otel_kvpolicy.telemetry.spans import decision_attributes

from ..conftest import Telemetry
from ..persistence.trained_rule import message, question, trained_file
from .asking import ask, change_keys, codes, failure
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
    lifetime_seconds=st.none() | st.floats(1, 1e5),
    calls=st.floats(0, 1e4),
    visible=SHARE,
)


@given(whys)
def test_a_recorded_decision_is_read_back_unchanged(why: Why) -> None:
    worthy = why.code != "reuse_unlikely"
    decision = KVCacheDecision(
        cache_worthy=worthy, skip_save=not worthy, score=round(why.reuse, 4), reasons=[why.reason]
    )
    verdict = Verdict(decision, "adaptive", why.sentence, why.attributes)
    record = CallRecord(verdict, not worthy, "applied", "enforce", "m", "gb10", 8000, None)
    entry = {
        "trace_id": "1" * 32,
        "span_id": "1" * 16,
        "name": "chat m",
        "attributes": decision_attributes(record),
    }
    entry["timestamp"] = "2026-01-01T00:00:00.000000Z"
    assert read_back(entry).decision == decision


@pytest.fixture
def state_file(tmp_path: Path) -> str:
    """A state file that says that calls of the agent ``batch`` do not come back."""
    return str(trained_file(tmp_path))


def explain_call(
    server: StandIn, tmp_path: Path, messages: list[dict[str, Any]], agent: str, **settings: Any
) -> dict[str, Any]:
    """Makes a call and returns its explanation."""
    log = tmp_path / "decisions.jsonl"
    configure(decision_log=str(log), rule="adaptive", **settings)
    with OpenAI(base_url=server.base_url, api_key="key") as client, kv_context(agent_name=agent):
        client.chat.completions.create(
            model="stand-in",
            messages=cast("Any", messages),
            max_tokens=2,
        )
    assert decision_log.flush()
    trace = json.loads(log.read_text().splitlines()[-1])["trace_id"]
    assert ask(trace, "--from", str(log)).code == 0
    (call,) = ask(trace, "--from", str(log), "--json").calls
    return call


def test_a_skipped_call_would_be_stored_at_another_reuse_or_theta(
    server: StandIn, instrumented: Telemetry, state_file: str, tmp_path: Path
) -> None:
    call = explain_call(server, tmp_path, question(), "batch", state_file=state_file, shadow=True)
    assert (call["verdict"], call["rule"]) == ("skip", "adaptive")
    assert [reason.partition("(")[0] for reason in call["decision"]["reasons"]] == [
        "reuse_unlikely"
    ]
    facts = {fact["name"]: fact["value"] for fact in call["facts"]}
    reuse, doubt, theta = (
        facts[f"kvpolicy.adaptive.{name}"] for name in ("reuse", "doubt", "theta")
    )
    assert [key[:2] for key in change_keys(call)] == [
        ("adaptive", "kvpolicy.adaptive.reuse"),
        ("adaptive", "kvpolicy.adaptive.theta"),
    ]
    assert [change["value"] for change in call["changes"]] == pytest.approx(
        [theta - doubt, reuse + doubt]
    )
    assert facts["kvpolicy.adaptive.class"] == "batch, no turns, 1k-2k tokens, new"
    assert facts["kvpolicy.shadow.decision"] == "skip"
    assert "adaptive_state" in codes(call["caveats"])


def test_a_stored_call_would_be_skipped_at_a_higher_theta(
    server: StandIn, instrumented: Telemetry, state_file: str, tmp_path: Path
) -> None:
    call = explain_call(
        server, tmp_path, [message("system", "short"), *question()], "chat", state_file=state_file
    )
    assert call["verdict"] == "store"
    assert call["changes"][0]["name"] == "kvpolicy.adaptive.theta"
    assert call["changes"][0]["value"] > 0.5


def test_a_call_stored_for_doubt_alone_does_not_depend_on_its_reuse() -> None:
    call = decide("--set", "KV_CACHE_RULE=adaptive")
    assert call["verdict"] == "store"
    assert [change["name"] for change in call["changes"]] == ["kvpolicy.adaptive.theta"]


def decide(*arguments: str) -> dict[str, Any]:
    body = json.dumps({"model": "stand-in", "messages": question()})
    answer = ask("--request", "-", "--json", "--role", "batch", *arguments, stdin=body)
    assert (answer.code, answer.err) == (0, "")
    (call,) = answer.calls
    return call


def test_a_request_is_decided_by_the_state_file_which_stays_unchanged(state_file: str) -> None:
    before = Path(state_file).read_bytes()
    assert decide("--set", "KV_CACHE_RULE=adaptive")["verdict"] == "store"
    call = decide("--set", "KV_CACHE_RULE=adaptive", "--set", f"KV_CACHE_STATE_FILE={state_file}")
    assert (call["verdict"], call["decision"]["skip_save"]) == ("skip", True)
    assert Path(state_file).read_bytes() == before
    missing = decide(
        "--set", "KV_CACHE_RULE=adaptive", "--set", f"KV_CACHE_STATE_FILE={state_file}.none"
    )
    assert missing["verdict"] == "store"


def test_a_damaged_state_file_stops_the_decision_and_stays_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("{")
    body = json.dumps({"messages": question()})
    failed = failure(
        "--request",
        "-",
        "--set",
        "KV_CACHE_RULE=adaptive",
        "--set",
        f"KV_CACHE_STATE_FILE={path}",
        stdin=body,
    )
    assert (failed.exit_code, failed.code) == (1, "cannot_decide")
    assert "KV_CACHE_STATE_FILE" in failed.line
    assert str(path) in failed.line
    assert path.read_text() == "{"

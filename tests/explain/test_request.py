"""``--request``: the decision that a request body would get, with the current or other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import otel_kvpolicy
from otel_kvpolicy.standin import StandIn

from ..conftest import Telemetry
from .asking import ask, change_keys, codes, failure, measure_keys, note_values
from .conftest import HI, MANUAL, REPLY, RULES

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "finds things",
        "parameters": {"type": "object"},
    },
}


def body(*messages: Any, **fields: Any) -> str:
    return json.dumps({"model": "stand-in", "messages": list(messages), **fields})


def decide(text: str, *arguments: str) -> dict[str, Any]:
    answer = ask("--request", "-", "--json", *arguments, stdin=text)
    assert (answer.code, answer.err) == (0, "")
    (call,) = answer.calls
    return call


@pytest.mark.parametrize(
    "request_body",
    [
        {"messages": [RULES, HI]},
        {"messages": [MANUAL, HI], "tools": [TOOL]},
        {
            "messages": [HI, REPLY, HI],
            "extra_body": {"kv_transfer_params": {"lmcache.tag.team": "a"}},
        },
        {"messages": [HI], "extra_body": {"kv_transfer_params": {"lmcache.skip_save": False}}},
    ],
    ids=["skip", "tools", "conversation", "caller"],
)
def test_the_planned_hint_is_what_a_real_call_sends(
    server: StandIn, instrumented: Telemetry, request_body: dict[str, Any]
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.chat.completions.create(model="stand-in", **request_body)
    (span,) = instrumented.decided
    sent = server.requests[-1].body["kv_transfer_params"]
    attributes = span.attributes or {}
    own = {key: value for key, value in request_body.items() if key != "extra_body"}
    call = decide(json.dumps({"model": "stand-in", **own, **request_body.get("extra_body", {})}))
    assert call["verdict"] == attributes["kvpolicy.decision"]
    assert call["hint_outcome"] == attributes["kvpolicy.hint.outcome"]
    assert call["decision"]["signals"] == {
        name.removeprefix("kvpolicy.signals."): value
        for name, value in attributes.items()
        if name.startswith("kvpolicy.signals.")
    }
    assert codes(call["afterwards"]) == ["planned_hint"]
    assert note_values(call["afterwards"], "planned_hint") == {"kv_transfer_params": sent}
    assert json.dumps(sent) in call["afterwards"][0]["text"]


def test_a_request_is_read_from_a_file_or_from_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_text(body(RULES, HI))
    answer = ask("--request", path)
    assert answer.code == 0
    assert answer.out == ask("--request", "-", stdin=body(RULES, HI)).out
    assert answer.out.startswith("SKIPPED  chat stand-in\n")


def test_a_request_to_the_responses_api_is_decided() -> None:
    call = decide(json.dumps({"model": "m", "instructions": "page " * 1000, "input": "hi"}))
    assert call["decision"]["reasons"] == ["long_shared_prefix(1250>=1024t)"]


def test_other_settings_are_tried_with_set() -> None:
    text = body(RULES, HI)
    assert decide(text)["verdict"] == "skip"
    call = decide(text, "--set", "KV_CACHE_MIN_PREFIX_TOKENS=512")
    assert (call["verdict"], measure_keys(call)[0]) == ("store", (812, 512, 300, True))
    call = decide(
        text, "--set", "KV_CACHE_CHARS_PER_TOKEN=2", "--set", "KV_CACHE_MIN_PREFIX_TOKENS=2000"
    )
    assert (call["verdict"], measure_keys(call)[0]) == ("skip", (1625, 2000, -375, False))
    call = decide(text, "--set", "KV_CACHE_HINT_KEYS=max_offload_tokens")
    assert note_values(call["afterwards"], "planned_hint") == {
        "kv_transfer_params": {"lmcache.max_offload_tokens": 0}
    }
    call = decide(text, "--set", "KV_CACHE_LAYERING=false")
    assert (call["verdict"], codes(call["afterwards"])) == ("none", ["no_planned_hint"])
    assert "KV_CACHE_LAYERING" in call["headline"]
    assert call["caveats"] == []
    call = decide(text, "--set", "KV_CACHE_MODE=observe")
    assert (call["verdict"], codes(call["afterwards"])) == ("skip", ["no_planned_hint"])


def test_an_optional_threshold_is_measured_once_it_is_set() -> None:
    tool = {**TOOL, "function": {**TOOL["function"], "description": "word " * 100}}
    text = body(HI, tools=[tool])
    call = decide(text)
    assert "KV_CACHE_MIN_TOOL_TOKENS" not in [measure["setting"] for measure in call["measures"]]
    call = decide(text, "--set", "KV_CACHE_MIN_TOOL_TOKENS=200")
    tools = call["decision"]["signals"]["tool_tokens"]
    (measure,) = [
        measure for measure in call["measures"] if measure["setting"] == "KV_CACHE_MIN_TOOL_TOKENS"
    ]
    assert (call["verdict"], measure["value"], measure["met"]) == ("skip", tools, False)
    assert ("setting", "KV_CACHE_MIN_TOOL_TOKENS", tools) in change_keys(call)
    call = decide(text, "--set", f"KV_CACHE_MIN_TOOL_TOKENS={tools}")
    assert call["verdict"] == "store"
    assert "other_rule" not in codes(call["caveats"])


@pytest.mark.parametrize(
    ("base_url", "outcome", "plan"),
    [
        ("https://api.openai.com/v1", "excluded_target", "no_planned_hint"),
        ("http://gb10:8000/v1", "applied", "planned_hint"),
    ],
)
def test_the_server_decides_whether_a_hint_is_planned(
    base_url: str, outcome: str, plan: str
) -> None:
    call = decide(body(RULES, HI), "--base-url", base_url)
    assert (call["verdict"], call["hint_outcome"]) == ("skip", outcome)
    assert codes(call["afterwards"]) == [plan]


def test_set_overrides_the_configuration_which_overrides_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = body(RULES, HI)
    monkeypatch.setenv("KV_CACHE_MIN_PREFIX_TOKENS", "800")
    assert decide(text)["verdict"] == "store"
    otel_kvpolicy.configure(min_prefix_tokens=900)
    assert decide(text)["verdict"] == "skip"
    assert decide(text, "--set", "KV_CACHE_MIN_PREFIX_TOKENS=812")["verdict"] == "store"


def test_a_given_role_counts_in_the_changes() -> None:
    half = {"role": "user", "content": "x" * 4 * 1024}
    call = decide(body(half), "--role", "planner")
    assert call["decision"]["reasons"] == ["reuse_heavy_role(planner)"]
    assert change_keys(call) == [
        ("signal", "user_tokens", 1023),
        ("setting", "KV_CACHE_MIN_CONTEXT_TOKENS", 2050),
    ]
    # Without the prefix the call would still be stored for its role.
    call = decide(body(MANUAL, half), "--role", "planner")
    assert call["decision"]["reasons"] == [
        "long_shared_prefix(1250>=1024t)",
        "large_fixed_context(2274>=2048t)",
    ]
    assert all(change["name"] != "prefix_tokens" for change in call["changes"])
    # A role needs only half of the context threshold, rounded down.
    call = decide(body(RULES, HI), "--role", "planner")
    assert ("setting", "KV_CACHE_MIN_CONTEXT_TOKENS", 1625) in change_keys(call)
    assert (
        decide(body(RULES, HI), "--role", "planner", "--set", "KV_CACHE_MIN_CONTEXT_TOKENS=1625")[
            "verdict"
        ]
        == "store"
    )
    assert (
        decide(body(RULES, HI), "--role", "planner", "--set", "KV_CACHE_MIN_CONTEXT_TOKENS=1626")[
            "verdict"
        ]
        == "skip"
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "not_json"),
        ("", "not_json"),
        ("[" * 100_000, "not_json"),
        ("[]", "cannot_decide"),
        ('{"prompt": "hi"}', "cannot_decide"),
    ],
    ids=["half", "empty", "too-deep", "list", "completions"],
)
def test_a_body_that_is_no_chat_request_is_an_error_of_one_line(text: str, code: str) -> None:
    failed = failure("--request", "-", stdin=text)
    assert (failed.exit_code, failed.code) == (1, code)
    if code == "cannot_decide":
        assert "'messages'" in failed.line
        assert "'input'" in failed.line


def test_a_body_that_cannot_be_read_is_an_error_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing.json"
    failed = failure("--request", path)
    assert (failed.exit_code, failed.code) == (1, "unreadable")
    assert str(path) in failed.line
    path = tmp_path / "latin"
    path.write_bytes(b'{"messages": "caf\xe9"}')
    failed = failure("--request", path)
    assert (failed.exit_code, failed.code) == (1, "not_json")
    assert str(path) in failed.line


@pytest.mark.parametrize(
    "messages", [None, 5, "hi", {}, [], [5, None, "hi"], [{"role": 5, "content": {"a": [None]}}]]
)
def test_malformed_messages_are_decided_as_in_a_real_call(messages: Any) -> None:
    assert decide(json.dumps({"model": 7, "messages": messages}))["verdict"] == "skip"


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["--request", "-", "feed"], ["--request", "trace id"]),
        (["--request", "-", "--last", "3"], ["--request", "--last"]),
        (["--request", "-", "--from", "x"], ["--request", "--from"]),
        (["--request", "-", "--span", "0"], ["--request", "--span"]),
        (["--request", "-", "--set", "KV_CACHE_MODE"], ["--set", "KV_CACHE_MODE", "NAME=VALUE"]),
        (["--request", "-", "--set", "MODE=observe"], ["--set", "'MODE'", "KV_CACHE_MODE"]),
        (
            ["--request", "-", "--set", "KV_CACHE_MIN_PREFIX_TOKENS=many"],
            ["--set", "KV_CACHE_MIN_PREFIX_TOKENS", "'many'"],
        ),
        (
            ["--request", "-", "--set", "KV_CACHE_REDISURL=redis://:canary@h"],
            ["--set", "'KV_CACHE_REDISURL'"],
        ),
        (
            ["--request", "-", "--set", "KV_CACHE_TARGETS=http://user:canary@h"],
            ["--set", "KV_CACHE_TARGETS"],
        ),
        (
            ["--request", "-", "--set", "KV_CACHE_MIN_HISTORY_TURNS=-1"],
            ["--set", "KV_CACHE_MIN_HISTORY_TURNS", "'-1'"],
        ),
        (["feed", "--from", "x", "--set", "KV_CACHE_MODE=observe"], ["--set", "--request"]),
        (["feed", "--from", "x", "--role", "planner"], ["--role", "--request"]),
        (["feed", "--from", "x", "--base-url", "http://h"], ["--base-url", "--request"]),
        (["--request", "-", "--base-url", "gb10:8000"], ["--base-url", "gb10:8000"]),
        (["feed", "--from", "x", "--last", "3"], ["--last", "trace id"]),
        (["feed"], ["--from URL|FILE", "KV_CACHE_DECISION_LOG"]),
        ([], ["--from URL|FILE", "KV_CACHE_DECISION_LOG"]),
        (["not-an-id", "--from", "x"], ["'not-an-id'", "TRACE_ID"]),
        (["f" * 33, "--from", "x"], ["f" * 33, "TRACE_ID"]),
        (["--from", "ftp://host"], ["--from", "ftp://host", "http"]),
        (["--from", "x", "--since", "yesterday"], ["--since", "'yesterday'"]),
        (["--from", "x", "--last", "0"], ["--last", "0"]),
        (["--from", "http://h", "--header", "key"], ["--header", "NAME: VALUE"]),
        (["--from", "http://h", "--timeout", "0"], ["--timeout", "0"]),
    ],
)
def test_wrong_usage_names_the_option_at_fault(arguments: list[str], mentioned: list[str]) -> None:
    answer = ask(*arguments, stdin=body(HI))
    assert answer.code == 2
    message = " ".join(answer.err.partition("Error: ")[2].split())
    assert [part for part in mentioned if part not in message] == []
    assert "canary" not in answer.err
    assert answer.out == ""

"""``--request``: the decision that a body would get, with the settings in force or others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import otel_kvpolicy
from otel_kvpolicy.standin import StandIn

from ..conftest import Telemetry
from .asking import ask
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
def test_it_says_what_would_really_be_sent(
    server: StandIn, instrumented: Telemetry, request_body: dict[str, Any]
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.chat.completions.create(model="stand-in", **request_body)
    (span,) = instrumented.decided
    sent = server.requests[-1].body["kv_transfer_params"]
    own = {key: value for key, value in request_body.items() if key != "extra_body"}
    call = decide(json.dumps({"model": "stand-in", **own, **request_body.get("extra_body", {})}))
    assert call["verdict"] == span.attributes["kvpolicy.decision"]
    assert call["hint_outcome"] == span.attributes["kvpolicy.hint.outcome"]
    assert call["decision"]["signals"] == {
        name.removeprefix("kvpolicy.signals."): value
        for name, value in span.attributes.items()
        if name.startswith("kvpolicy.signals.")
    }
    (plan,) = call["afterwards"]
    assert plan.startswith("It would go out with kv_transfer_params ")
    assert (
        json.loads(plan.removeprefix("It would go out with kv_transfer_params ").removesuffix("."))
        == sent
    )


def test_a_file_and_standard_input_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_text(body(RULES, HI))
    answer = ask("--request", path)
    assert answer.code == 0
    assert answer.out == ask("--request", "-", stdin=body(RULES, HI)).out
    assert answer.out.startswith(
        "SKIPPED  chat stand-in\nThe call's KV is not to be stored: no signal reached its threshold.\n"
    )


def test_a_body_of_responses() -> None:
    call = decide(json.dumps({"model": "m", "instructions": "page " * 1000, "input": "hi"}))
    assert call["decision"]["reasons"] == ["long_shared_prefix(1250>=1024t)"]


def test_another_setting() -> None:
    text = body(RULES, HI)
    assert decide(text)["verdict"] == "skip"
    call = decide(text, "--set", "KV_CACHE_MIN_PREFIX_TOKENS=512")
    assert (call["verdict"], call["measures"][0]["text"]) == (
        "store",
        "812 of 512 tokens: 300 over",
    )
    call = decide(
        text, "--set", "KV_CACHE_CHARS_PER_TOKEN=2", "--set", "KV_CACHE_MIN_PREFIX_TOKENS=2000"
    )
    assert (call["verdict"], call["measures"][0]["text"]) == (
        "skip",
        "1625 of 2000 tokens: 375 short",
    )
    assert decide(text, "--set", "KV_CACHE_HINT_KEYS=max_offload_tokens")["afterwards"] == [
        'It would go out with kv_transfer_params {"lmcache.max_offload_tokens": 0}.'
    ]
    call = decide(text, "--set", "KV_CACHE_LAYERING=false")
    assert (call["verdict"], call["afterwards"]) == ("none", ["Nothing would be sent."])
    assert (
        call["headline"]
        == "Nothing is decided: KV_CACHE_LAYERING is off, and the server stores by its own rules."
    )
    call = decide(text, "--set", "KV_CACHE_MODE=observe")
    assert (call["verdict"], call["afterwards"]) == ("skip", ["Nothing would be sent."])


def test_the_settings_in_force_are_the_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    text = body(RULES, HI)
    monkeypatch.setenv("KV_CACHE_MIN_PREFIX_TOKENS", "800")
    assert decide(text)["verdict"] == "store"
    otel_kvpolicy.configure(min_prefix_tokens=900)
    assert decide(text)["verdict"] == "skip"
    assert decide(text, "--set", "KV_CACHE_MIN_PREFIX_TOKENS=812")["verdict"] == "store"


def test_the_role_counts_in_what_would_turn_it() -> None:
    half = {"role": "user", "content": "x" * 4 * 1024}
    call = decide(body(half), "--role", "planner")
    assert call["decision"]["reasons"] == ["reuse_heavy_role(planner)"]
    assert [change["text"] for change in call["changes"]] == [
        "1 fewer user token (1023 in all)",
        "KV_CACHE_MIN_CONTEXT_TOKENS=2049",
    ]
    # without the prefix the role would still hold it, so that is no change to tell
    call = decide(body(MANUAL, half), "--role", "planner")
    assert call["decision"]["reasons"] == [
        "long_shared_prefix(1250>=1024t)",
        "large_fixed_context(2274>=2048t)",
    ]
    assert all(change["name"] != "prefix_tokens" for change in call["changes"])
    # a role tips from half the threshold on, so twice the prompt is enough
    call = decide(body(RULES, HI), "--role", "planner")
    assert call["changes"][-1]["text"] == "KV_CACHE_MIN_CONTEXT_TOKENS=1624"
    assert (
        decide(body(RULES, HI), "--role", "planner", "--set", "KV_CACHE_MIN_CONTEXT_TOKENS=1624")[
            "verdict"
        ]
        == "store"
    )
    assert (
        decide(body(RULES, HI), "--role", "planner", "--set", "KV_CACHE_MIN_CONTEXT_TOKENS=1625")[
            "verdict"
        ]
        == "skip"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "- is no JSON: "),
        ("", "- is no JSON: "),
        ("[" * 100_000, "-: "),
        (
            "[]",
            "-: no request body: neither chat completions' 'messages' nor Responses' 'input' is in it",
        ),
        ('{"prompt": "hi"}', "-: no request body: "),
    ],
    ids=["half", "empty", "deep", "list", "completions"],
)
def test_no_body_is_one_line(text: str, said: str) -> None:
    answer = ask("--request", "-", stdin=text)
    assert answer.code == 1
    assert answer.complaint.startswith(f"explain: {said}")


def test_a_body_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    answer = ask("--request", tmp_path / "missing.json")
    assert (answer.code, answer.complaint) == (
        1,
        f"explain: cannot read {tmp_path}/missing.json: No such file or directory",
    )
    (tmp_path / "latin").write_bytes(b'{"messages": "caf\xe9"}')
    answer = ask("--request", tmp_path / "latin")
    assert answer.code == 1
    assert answer.complaint.startswith(f"explain: {tmp_path}/latin: ")


@pytest.mark.parametrize(
    "messages", [None, 5, "hi", {}, [], [5, None, "hi"], [{"role": 5, "content": {"a": [None]}}]]
)
def test_odd_messages_are_decided_like_on_the_wire(messages: Any) -> None:
    assert decide(json.dumps({"model": 7, "messages": messages}))["verdict"] == "skip"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--request", "-", "feed"], "--request decides offline"),
        (["--request", "-", "--last", "3"], "--request decides offline"),
        (["--request", "-", "--from", "x"], "--request decides offline"),
        (
            ["--request", "-", "--set", "KV_CACHE_MIN_PREFIX_TOKENS"],
            "is not NAME=VALUE of a setting",
        ),
        (
            ["--request", "-", "--set", "MIN_PREFIX_TOKENS=1"],
            "is not NAME=VALUE of a setting; there are KV_CACHE_",
        ),
        (
            ["--request", "-", "--set", "KV_CACHE_MIN_PREFIX_TOKENS=many"],
            "KV_CACHE_MIN_PREFIX_TOKENS: cannot read 'many'",
        ),
        (
            ["--request", "-", "--set", "KV_CACHE_REDISURL=redis://:canary@h"],
            "'KV_CACHE_REDISURL' is not NAME=VALUE of a setting",
        ),
        (
            ["--request", "-", "--set", "KV_CACHE_TARGETS=http://user:canary@h"],
            "KV_CACHE_TARGETS: cannot read its value",
        ),
        (
            ["--request", "-", "--set", "KV_CACHE_CHARS_PER_TOKEN=0"],
            "KV_CACHE_CHARS_PER_TOKEN: cannot read '0'",
        ),
        (
            ["feed", "--from", "x", "--set", "KV_CACHE_MODE=observe"],
            "--set and --role go with --request",
        ),
        (["feed", "--from", "x", "--role", "planner"], "--set and --role go with --request"),
        (["feed", "--from", "x", "--last", "3"], "--last lists recent calls"),
        (["feed"], "where from? Give --from URL|FILE, or set KV_CACHE_DECISION_LOG"),
        ([], "where from?"),
        (["not-an-id", "--from", "x"], "'not-an-id' is no trace id"),
        (["f" * 33, "--from", "x"], "is no trace id"),
        (["--from", "ftp://host"], "only http and https can be asked"),
        (
            ["--from", "x", "--since", "yesterday"],
            "'yesterday' is neither so long ago (90m, 2h, 7d) nor a date and time",
        ),
        (["--from", "x", "--last", "0"], "0 is not in the range x>=1"),
        (["--from", "http://h", "--header", "key"], "--header takes 'NAME: VALUE'"),
        (["--from", "http://h", "--timeout", "0"], "is not in the range x>0"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    answer = ask(*arguments, stdin=body(HI))
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert "canary" not in answer.err
    assert answer.out == ""

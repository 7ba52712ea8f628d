"""What is said of a call that was really made: distances, the smallest change, what followed, what to bear in mind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_kvpolicy
from otel_kvpolicy import KVCacheLayeringPolicy, KVPolicyInstrumentor, kv_context
from otel_kvpolicy.standin import FAULT_HEADER, StandIn
from otel_kvpolicy.telemetry import decision_log

from .asking import ask
from .conftest import HI, MANUAL, REPLY, RULES, process

HONOURED = (
    "Whether the server honours it cannot be seen here: LMCache's multi-process server does since 0.5.6 (max_offload_tokens), its "
    "in-process connector since 0.3.6 (skip_save). `otel-kvpolicy doctor` proves it."
)


def user(words: int) -> Any:
    return {"role": "user", "content": "word " * words}


class Told:
    """What ``explain`` said of the last call: as JSON, and in words with the white space folded."""

    def __init__(self, call: dict[str, Any], text: str) -> None:
        self.call = call
        self.words = " ".join(text.split())

    @property
    def measures(self) -> list[str]:
        return [measure["text"] for measure in self.call["measures"]]

    @property
    def changes(self) -> list[str]:
        return [change["text"] for change in self.call["changes"]]


Tell = Callable[..., Told]


@pytest.fixture
def tell(server: StandIn, tmp_path: Path) -> Tell:
    """Makes a call in an instrumented process and asks for its reason."""
    log = tmp_path / "decisions.jsonl"

    def told(*messages: Any, at: StandIn = server, fails: bool = False, **options: Any) -> Told:
        otel_kvpolicy.configure(decision_log=str(log))
        with process(InMemorySpanExporter(), at, "shop") as shop:
            if fails:
                with pytest.raises(APIStatusError):
                    shop.chat(*messages, **options)
            else:
                shop.chat(*messages, **options)
        assert decision_log.flush(20)
        (call,) = ask("--from", log, "--last", 1, "--json").calls
        answer = ask(call["trace_id"], "--from", log)
        assert answer.code == 0
        return Told(ask(call["trace_id"], "--from", log, "--json").calls[0], answer.out)

    return told


def test_a_one_off(tell: Tell) -> None:
    told = tell(RULES, HI)
    assert (
        told.call["headline"]
        == "The call's KV was not to be stored: no signal reached its threshold."
    )
    assert told.measures == [
        "812 of 1024 tokens: 212 short",
        "0 of 1 turns: 1 short",
        "812 of 2048 tokens: 1236 short",
    ]
    assert told.changes == [
        "212 more prefix tokens (1024 in all)",
        "1 more earlier reply of the model",
        "KV_CACHE_MIN_PREFIX_TOKENS=812",
        "KV_CACHE_MIN_CONTEXT_TOKENS=812",
    ]
    assert told.call["afterwards"][0] == "The hint went out with the request."
    assert HONOURED in told.call["caveats"]
    assert told.words.startswith(
        "SKIPPED chat stand-in The call's KV was not to be stored: no signal reached its threshold."
    )
    assert "rule thresholds, enforce mode, score 0.3965: one_off_short_prompt" in told.words
    assert "prompt prefix 812 tokens" in told.words
    assert (
        "it would have been stored with any one of - 212 more prefix tokens (1024 in all) - 1 more"
        in told.words
    )


@pytest.mark.parametrize(
    ("messages", "why", "changes"),
    [
        (
            [MANUAL, HI],
            "its system prompt and tools are long enough to be shared",
            ["227 fewer prefix tokens (1023 in all)", "KV_CACHE_MIN_PREFIX_TOKENS=1251"],
        ),
        (
            [HI, REPLY, HI],
            "it continues a conversation",
            ["1 fewer earlier reply of the model", "KV_CACHE_MIN_HISTORY_TURNS=2"],
        ),
        (
            [user(1639)],
            "the whole prompt is long",
            ["1 fewer user token (2047 in all)", "KV_CACHE_MIN_CONTEXT_TOKENS=2049"],
        ),
        (
            [MANUAL, user(700), REPLY, HI],
            "its system prompt and tools are long enough to be shared and it continues a conversation",
            [],
        ),
    ],
    ids=["prefix", "conversation", "context", "two"],
)
def test_a_stored_call(tell: Tell, messages: list[Any], why: str, changes: list[str]) -> None:
    told = tell(*messages)
    assert told.call["headline"].startswith(f"The call's KV was to be stored: {why}")
    assert told.changes == changes
    if not changes:
        assert (
            "it would have been skipped with - no single change: more than one signal holds it"
            in told.words
        )
    assert HONOURED not in told.call["caveats"]


def test_a_change_that_is_told_does_turn_it(tell: Tell) -> None:
    for name, value in [assignment.split("=") for assignment in tell(RULES, HI).changes[2:]]:
        field = name.removeprefix("KV_CACHE_").lower()
        otel_kvpolicy.configure(**{field: int(value)})
        assert tell(RULES, HI).call["verdict"] == "store"
        otel_kvpolicy.configure(**{field: int(value) + 1})
        assert tell(RULES, HI).call["verdict"] == "skip"
        otel_kvpolicy.configure(**{field: None})
    assert tell({"role": "system", "content": "x" * 4 * 1024}, HI).call["verdict"] == "store"
    assert tell({"role": "system", "content": "x" * (4 * 1024 - 1)}, HI).call["verdict"] == "skip"


def test_a_role_and_a_retrieved_block(tell: Tell) -> None:
    told = tell(user(900))
    roles = "assistant, chat, conversation, orchestrator, planner, router"
    assert f"a reuse-heavy role ({roles}), for it is half long enough" in told.changes
    with kv_context(role="planner"):
        told = tell(user(900))
    assert told.call["decision"]["reasons"] == ["reuse_heavy_role(planner)"]
    assert told.changes == [
        "102 fewer user tokens (1023 in all)",
        "KV_CACHE_MIN_CONTEXT_TOKENS=2251",
    ]
    with kv_context(rag_context="fact " * 1000):
        told = tell({"role": "user", "content": "fact " * 1000 + "?"})
    assert "retrieved context 1250 of 1024 tokens: 226 over" in told.words
    assert told.changes[0] == "227 fewer retrieved context tokens (1023 in all)"


def test_tools_are_told_apart(tell: Tell) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "word " * 100,
            "parameters": {"type": "object"},
        },
    }
    told = tell(RULES, HI, tools=[tool])
    tools = told.call["decision"]["signals"]["tool_tokens"]
    assert tools > 125
    assert f"prefix {812 + tools} tokens ({tools} of the prefix are tools)" in told.words


def test_observe_mode(tell: Tell) -> None:
    otel_kvpolicy.configure(mode="observe")
    told = tell(HI)
    assert told.call["headline"].startswith(
        "The call's KV was not worth storing, but nothing keeps the server from it: "
    )
    assert (
        told.call["afterwards"][0]
        == "Observe mode: nothing was sent, and the server stored by its own rules."
    )
    assert "Observe mode: the verdict is what would have been sent." in told.call["caveats"]
    assert HONOURED not in told.call["caveats"]


@pytest.mark.parametrize(
    ("skips", "verdict"), [(True, "not to be stored"), (False, "to be stored")]
)
def test_the_callers_own_word(tell: Tell, skips: bool, verdict: str) -> None:
    told = tell(HI, extra_body={"kv_transfer_params": {"lmcache.skip_save": skips}})
    assert (
        told.call["headline"]
        == f"The call's KV was {verdict}: the caller has set the hint itself. The rule alone says skip."
    )
    assert told.changes == []
    assert "would have been" not in told.words
    assert told.call["afterwards"][0] == "The caller's own keys went out; nothing was added."
    assert (
        "The caller's keys override the rule; take them out of kv_transfer_params to let it decide."
        in told.call["caveats"]
    )


def test_a_server_that_is_not_sent_the_hint(tell: Tell) -> None:
    otel_kvpolicy.configure(targets="gb10.local")
    told = tell(HI)
    after = (
        "Nothing was sent: the server is not among KV_CACHE_TARGETS, so it stored by its own rules."
    )
    assert told.call["afterwards"][0] == after


def test_a_server_that_refuses_the_hint(tell: Tell) -> None:
    with StandIn(strict="openai") as strict:
        told = tell(HI, at=strict)
    after = "The server refused the hint; the call was repeated without it, and the server stored by its own rules."
    assert told.call["afterwards"][0] == after
    assert "nothing keeps the server from it" in told.call["headline"]


def test_a_call_that_failed(tell: Tell) -> None:
    told = tell(HI, fails=True, extra_headers={FAULT_HEADER: "400"})
    assert "The call itself failed: BadRequestError." in told.call["afterwards"]


def test_what_the_server_took_from_a_cache(tell: Tell) -> None:
    tell(MANUAL, HI)
    told = tell(MANUAL, HI)
    cached, prompt = told.call["usage"]["cached_tokens"], told.call["usage"]["input_tokens"]
    assert 1200 < cached < prompt
    after = f"The server took {cached} of {prompt} prompt tokens from a cache, vLLM's own and LMCache's together."
    assert after in told.call["afterwards"]
    assert (
        f"Tokens are estimated at 4 characters each: 1250 in all, where the server counted {prompt} (+1%)."
        in told.call["caveats"]
    )


def test_a_server_that_does_not_say(tell: Tell) -> None:
    with StandIn(prompt_tokens_details=False) as quiet:
        told = tell(MANUAL, HI, at=quiet)
    said = "The server did not say how many tokens came from a cache (vLLM says so with --enable-prompt-tokens-details)."
    assert said in told.call["afterwards"]


def test_an_estimate_that_was_off(tell: Tell) -> None:
    otel_kvpolicy.configure(chars_per_token=6)
    told = tell(MANUAL, HI)  # 833 tokens at six characters each; the server counts four
    (caveat,) = [
        caveat
        for caveat in told.call["caveats"]
        if caveat.startswith("Tokens are estimated at 6 characters each")
    ]
    assert caveat.endswith("(+51%). By the server's count the rule would have said store.")
    otel_kvpolicy.configure(chars_per_token=4)
    assert (
        "A close call: an estimate that is 15% off would turn it."
        in tell(user(1500)).call["caveats"]
    )
    assert (
        "A close call: an estimate that is 15% off would turn it." not in tell(HI).call["caveats"]
    )


def test_a_prompt_that_is_shorter_than_a_chunk(tell: Tell) -> None:
    short = "LMCache stores whole chunks only (256 tokens by default): so short a prompt is never stored there anyway."
    assert short in tell(HI).call["caveats"]
    assert short not in tell(RULES, HI).call["caveats"]


class Nightly(KVCacheLayeringPolicy):
    """A rule of a user's own: stores whatever it sees."""

    __slots__ = ()

    def judge(self, text: Any, role: str | None = None) -> Any:
        judged = super().judge(text, role)
        return judged.model_copy(
            update={"cache_worthy": True, "skip_save": False, "reasons": ["nightly(7)"]}
        )


def test_a_rule_of_the_users_own(server: StandIn, tmp_path: Path) -> None:
    from openai import OpenAI

    otel_kvpolicy.configure(decision_log=str(tmp_path / "log"))
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(policy=Nightly())
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            client.chat.completions.create(model="stand-in", messages=[RULES, HI])
    finally:
        instrumentor.uninstrument()
    assert decision_log.flush(20)
    (call,) = ask("--from", tmp_path / "log", "--json").calls
    assert call["decision"]["reasons"] == ["nightly"]
    assert call["headline"] == "The call's KV was to be stored: nightly."
    assert call["changes"] == []
    assert (
        "These numbers alone would have said skip: a rule of the user's own decided."
        in call["caveats"]
    )

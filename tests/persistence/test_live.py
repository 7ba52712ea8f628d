"""The learned rule in an instrumented process: in force, in the shadow, fed by the server's answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, OpenAI

from otel_kvpolicy import KVCacheLayeringPolicy, KVPolicyInstrumentor, configure, kv_context
from otel_kvpolicy.policy.adaptive.rule import AdaptiveRule
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

from .taught import SYSTEM, active_state, question, said, task, taught_file

SKIPPED = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_file(tmp_path_factory.mktemp("taught"))


@pytest.fixture
def state(lessons: Path, tmp_path: Path) -> str:
    copy = tmp_path / "learned.json"
    copy.write_bytes(lessons.read_bytes())
    return str(copy)


def call(server: StandIn, messages: Any, agent: str | None = None, **options: Any) -> Any:
    with OpenAI(base_url=server.base_url, api_key="key") as client, kv_context(agent_name=agent):
        return client.chat.completions.create(
            model="stand-in", messages=messages, max_tokens=2, **options
        )


def attributes(telemetry: Telemetry) -> Mapping[str, Any]:
    found = telemetry.decided[-1].attributes
    assert found is not None
    return found


def test_nothing_is_learned_where_nobody_asks(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdaptiveRule, "decide", lambda *_: pytest.fail("asked"))
    call(server, question())
    assert attributes(instrumented)["kvpolicy.rule"] == "thresholds"


def test_in_force_it_decides_by_what_comes_back(
    server: StandIn, instrumented: Telemetry, state: str
) -> None:
    configure(rule="adaptive", state_file=state)
    call(server, question(), "batch")
    assert server.last.body["kv_transfer_params"] == SKIPPED
    told = attributes(instrumented)
    assert (told["kvpolicy.decision"], told["kvpolicy.rule"], told["kvpolicy.reasons"]) == (
        "skip",
        "adaptive",
        ("reuse_unlikely",),
    )
    assert told["kvpolicy.adaptive.class"].startswith("batch, no turns, 1k-2k tokens")
    assert (
        told["kvpolicy.adaptive.reuse"] + told["kvpolicy.adaptive.doubt"]
        < told["kvpolicy.adaptive.theta"]
    )
    assert told["kvpolicy.score"] == round(told["kvpolicy.adaptive.reuse"], 4)
    assert "It would be stored if its class came back more often" in told["kvpolicy.explanation"]
    assert not [name for name in told if name.startswith("kvpolicy.thresholds.")]
    call(server, [said("system", "short"), *question()], "chat")
    assert server.last.body["kv_transfer_params"] == {"lmcache.skip_save": False}
    assert attributes(instrumented)["kvpolicy.reasons"] == ("reuse_expected",)
    reasons = {point["kvpolicy.reason"] for point, _ in instrumented.points("kvpolicy.decisions")}
    assert reasons == {"reuse_unlikely", "reuse_expected"}


@pytest.mark.parametrize(
    ("rule", "decided", "shadow"), [("thresholds", "store", "skip"), ("adaptive", "skip", "store")]
)
def test_the_shadow_tells_what_the_other_rule_says(
    server: StandIn, instrumented: Telemetry, state: str, rule: str, decided: str, shadow: str
) -> None:
    configure(rule=rule, shadow=True, state_file=state, min_context_tokens=1000)
    call(server, question(), "batch")
    told = attributes(instrumented)
    assert (told["kvpolicy.rule"], told["kvpolicy.decision"], told["kvpolicy.shadow.decision"]) == (
        rule,
        decided,
        shadow,
    )
    assert told["kvpolicy.shadow.explanation"].startswith(
        "Stored: " if shadow == "store" else "Skipped: "
    )
    assert server.last.body["kv_transfer_params"]["lmcache.skip_save"] is (decided == "skip")
    [(point, _)] = instrumented.points("kvpolicy.decisions")
    assert point["kvpolicy.shadow.decision"] == shadow


def conversation(server: StandIn, **options: Any) -> None:
    messages = [said("system", SYSTEM), *question()]
    for _ in range(3):
        answer = call(server, messages, "chat", **options)
        if options.get("stream"):
            assert list(answer)
        messages = [*messages, said("assistant", "yes"), said("user", "and " * 600)]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_it_learns_from_what_the_server_had(
    server: StandIn, instrumented: Telemetry, mode: str
) -> None:
    configure(rule="adaptive", mode=mode)
    conversation(server)
    assert "kvpolicy.adaptive.survival" not in (instrumented.decided[0].attributes or {})
    assert attributes(instrumented)["kvpolicy.adaptive.survival"] == 1.0


def test_it_learns_that_the_server_had_nothing(instrumented: Telemetry) -> None:
    configure(rule="adaptive")
    with StandIn(mode="none", gpu_tokens=0) as server:
        conversation(server)
    assert attributes(instrumented)["kvpolicy.adaptive.survival"] == 0.0


async def test_it_learns_from_streams_of_async_clients(
    server: StandIn, instrumented: Telemetry
) -> None:
    configure(rule="adaptive")
    messages = [said("system", SYSTEM), *question()]
    async with AsyncOpenAI(base_url=server.base_url, api_key="key") as client:
        for _ in range(3):
            stream = await client.chat.completions.create(
                model="stand-in",
                messages=messages,
                max_tokens=2,
                stream=True,
                stream_options={"include_usage": True},
            )
            assert [chunk async for chunk in stream]
            messages = [*messages, said("assistant", "yes"), said("user", "and " * 600)]
    assert attributes(instrumented)["kvpolicy.adaptive.survival"] == 1.0


@pytest.fixture
def forgetful() -> Iterator[StandIn]:
    """A server that keeps nothing: what is believed to be stored there is found lost."""
    with StandIn(mode="none", gpu_tokens=0) as server:
        yield server


def twice() -> list[list[dict[str, Any]]]:
    """Two calls under one head, which nobody had before."""
    head = said("system", f"{question()}")
    return [[head, *question()], [head, *question()]]


def test_a_call_that_failed_is_not_taken_for_stored(
    forgetful: StandIn, instrumented: Telemetry
) -> None:
    configure(rule="adaptive")
    first, second = twice()
    with (
        OpenAI(base_url="http://127.0.0.1:9/v1", api_key="key", max_retries=0) as client,
        pytest.raises(APIConnectionError),
    ):
        client.chat.completions.create(model="stand-in", messages=first)  # type: ignore[arg-type]
    call(forgetful, second)
    call(forgetful, question())
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


@pytest.mark.parametrize("begun", [False, True])
def test_a_call_on_its_way_is_not_taken_for_stored(
    forgetful: StandIn, instrumented: Telemetry, begun: bool
) -> None:
    configure(rule="adaptive")
    first, second = twice()
    with (
        OpenAI(base_url=forgetful.base_url, api_key="key") as client,
        client.chat.completions.create(model="stand-in", messages=first, stream=True) as stream,  # type: ignore[call-overload]
    ):
        if begun:
            next(stream)
        call(forgetful, second)
    call(forgetful, question())
    assert attributes(instrumented).get("kvpolicy.adaptive.survival") == (0.0 if begun else None)


@pytest.mark.parametrize("cap", [0, 256])
def test_what_a_caller_let_store_in_part_is_not_missed(
    forgetful: StandIn, instrumented: Telemetry, cap: int
) -> None:
    configure(rule="adaptive")
    for messages in twice():
        call(
            forgetful,
            messages,
            extra_body={"kv_transfer_params": {"lmcache.max_offload_tokens": cap}},
        )
    call(forgetful, question())
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_the_cache_of_a_server_that_is_sent_no_hint_teaches_nothing(
    forgetful: StandIn, instrumented: Telemetry, mode: str
) -> None:
    configure(rule="adaptive", mode=mode, targets="other.example")
    conversation(forgetful)
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


def test_the_cache_of_a_server_that_refuses_the_hint_teaches_nothing(
    instrumented: Telemetry,
) -> None:
    configure(rule="adaptive")
    with StandIn(strict="openai", mode="none", gpu_tokens=0) as server:
        conversation(server)
    assert attributes(instrumented)["kvpolicy.hint.outcome"] == "rejected"
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


def test_without_cached_tokens_it_stays_at_the_floor(instrumented: Telemetry) -> None:
    configure(rule="adaptive")
    with StandIn(prompt_tokens_details=False) as server:
        conversation(server)
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


def test_the_split_of_the_cached_tokens_is_asked_for_and_told(instrumented: Telemetry) -> None:
    configure(cached_token_stats=True)
    with StandIn() as server:
        conversation(server)
        assert server.last.body["kv_transfer_params"] == {
            "lmcache.skip_save": False,
            "cached_token_stats": True,
        }
        first = attributes(instrumented)
        server.reset_prefix_cache()
        call(server, server.last.body["messages"])
    second = attributes(instrumented)
    assert first["kvpolicy.cached.vllm_tokens"] == first["gen_ai.usage.cache_read.input_tokens"] > 0
    assert second["kvpolicy.cached.vllm_tokens"] == 0
    assert (
        second["kvpolicy.cached.lmcache_tokens"]
        >= second["gen_ai.usage.cache_read.input_tokens"]
        > 0
    )
    cached = {}
    for point, value in instrumented.points("kvpolicy.cached.tokens"):
        cached[point["kvpolicy.cache.source"]] = (
            cached.get(point["kvpolicy.cache.source"], 0) + value
        )
    total = sum(
        (span.attributes or {}).get("gen_ai.usage.cache_read.input_tokens", 0)
        for span in instrumented.decided
    )
    assert cached["lmcache"] == second["gen_ai.usage.cache_read.input_tokens"]
    assert sum(cached.values()) == total


def test_a_partial_store_keeps_the_head_that_came_before(
    server: StandIn, instrumented: Telemetry, state: str
) -> None:
    configure(rule="adaptive", state_file=state, partial_store=True)
    call(server, task(), "batch")
    call(server, task(), "batch")
    kept = len(SYSTEM) // 4 // 256 * 256
    assert server.last.body["kv_transfer_params"] == {
        "lmcache.skip_save": True,
        "lmcache.max_offload_tokens": kept,
    }
    told = attributes(instrumented)
    assert (told["kvpolicy.decision"], told["kvpolicy.keep_tokens"]) == ("skip", kept)
    assert (
        f"Its first {kept} tokens were seen before and are stored." in told["kvpolicy.explanation"]
    )
    configure(partial_store=False)
    call(server, task(), "batch")
    assert server.last.body["kv_transfer_params"] == SKIPPED
    configure(partial_store=True, hint_keys="skip_save")
    call(server, task(), "batch")
    assert server.last.body["kv_transfer_params"] == {"lmcache.skip_save": True}


def test_a_rule_given_in_code_and_the_switch_come_first(
    server: StandIn, telemetry: Telemetry, state: str
) -> None:
    configure(rule="adaptive", state_file=state)
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        policy=KVCacheLayeringPolicy(),
    )
    try:
        call(server, question(), "batch")
        assert attributes(telemetry)["kvpolicy.rule"] == "thresholds"
    finally:
        instrumentor.uninstrument()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
    )
    try:
        configure(layering=False)
        call(server, question(), "batch")
        assert "kv_transfer_params" not in server.last.body
        assert attributes(telemetry)["kvpolicy.hint.outcome"] == "disabled"
    finally:
        instrumentor.uninstrument()


@pytest.mark.parametrize("method", ["decide", "settle", "observe"])
def test_a_rule_that_fails_touches_no_call(
    server: StandIn, instrumented: Telemetry, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(AdaptiveRule, method, broken)
    configure(rule="adaptive", shadow=True, mode="observe")
    if method == "settle":
        configure(
            mode="enforce", rule="thresholds"
        )  # thresholds skip what nothing is known of, and the rule would store
    for _ in range(2):
        assert call(server, [said("user", "hi")]).choices
    assert instrumented.total("kvpolicy.errors") == 2


def test_what_is_learned_holds_no_content(
    server: StandIn, instrumented: Telemetry, tmp_path: Path
) -> None:
    path = tmp_path / "learned.json"
    configure(rule="adaptive", state_file=str(path))
    tools = [
        {
            "type": "function",
            "function": {
                "name": "canary_tool",
                "description": "canary",
                "parameters": {"type": "object"},
            },
        }
    ]
    messages = [said("system", "canary " * 900), said("user", "canary " * 900)]
    call(
        server,
        messages,
        tools=tools,
        user="canary",
        extra_headers={"x-canary": "canary"},
        extra_query={"canary": "canary"},
    )
    active_state().sync()
    assert "no turns" not in path.read_text()
    assert "canary" not in path.read_text()

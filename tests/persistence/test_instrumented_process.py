"""The adaptive rule in an instrumented process: active, as a shadow, and with real answers."""

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
from tests.conftest import attributes as span_attributes

from .trained_rule import SYSTEM, active_state, message, question, task, trained_file

SKIPPED = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_file(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def state(trained: Path, tmp_path: Path) -> str:
    copy = tmp_path / "learned.json"
    copy.write_bytes(trained.read_bytes())
    return str(copy)


def call(server: StandIn, messages: Any, agent: str | None = None, **options: Any) -> Any:
    with OpenAI(base_url=server.base_url, api_key="key") as client, kv_context(agent_name=agent):
        return client.chat.completions.create(
            model="stand-in", messages=messages, max_tokens=2, **options
        )


def attributes(telemetry: Telemetry) -> Mapping[str, Any]:
    recorded = telemetry.decided[-1].attributes
    assert recorded is not None
    return recorded


def test_the_adaptive_rule_does_not_run_by_default(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdaptiveRule, "decide", lambda *_: pytest.fail("the adaptive rule ran"))
    call(server, question())
    assert attributes(instrumented)["kvpolicy.rule"] == "thresholds"


def test_the_active_adaptive_rule_skips_classes_that_do_not_come_back(
    server: StandIn, instrumented: Telemetry, state: str
) -> None:
    configure(rule="adaptive", state_file=state)
    call(server, question(), "batch")
    assert server.last.body["kv_transfer_params"] == SKIPPED
    recorded = attributes(instrumented)
    assert (
        recorded["kvpolicy.decision"],
        recorded["kvpolicy.rule"],
        recorded["kvpolicy.reasons"],
    ) == (
        "skip",
        "adaptive",
        ("reuse_unlikely",),
    )
    assert recorded["kvpolicy.adaptive.class"].startswith("batch, no turns, 1k-2k tokens")
    assert (
        recorded["kvpolicy.adaptive.reuse"] + recorded["kvpolicy.adaptive.doubt"]
        < recorded["kvpolicy.adaptive.theta"]
    )
    assert recorded["kvpolicy.score"] == round(recorded["kvpolicy.adaptive.reuse"], 4)
    assert recorded["kvpolicy.explanation"].startswith("Skipped: ")
    assert recorded["kvpolicy.adaptive.class"] in recorded["kvpolicy.explanation"]
    assert not [name for name in recorded if name.startswith("kvpolicy.thresholds.")]
    call(server, [message("system", "short"), *question()], "chat")
    assert server.last.body["kv_transfer_params"] == {"lmcache.skip_save": False}
    assert attributes(instrumented)["kvpolicy.reasons"] == ("reuse_expected",)
    reasons = {point["kvpolicy.reason"] for point, _ in instrumented.points("kvpolicy.decisions")}
    assert reasons == {"reuse_unlikely", "reuse_expected"}


@pytest.mark.parametrize(
    ("rule", "decided", "shadow"), [("thresholds", "store", "skip"), ("adaptive", "skip", "store")]
)
def test_the_shadow_decision_is_that_of_the_other_rule(
    server: StandIn, instrumented: Telemetry, state: str, rule: str, decided: str, shadow: str
) -> None:
    configure(rule=rule, shadow=True, state_file=state, min_context_tokens=1000)
    call(server, question(), "batch")
    recorded = attributes(instrumented)
    assert (
        recorded["kvpolicy.rule"],
        recorded["kvpolicy.decision"],
        recorded["kvpolicy.shadow.decision"],
    ) == (
        rule,
        decided,
        shadow,
    )
    assert recorded["kvpolicy.shadow.explanation"].startswith(
        "Stored: " if shadow == "store" else "Skipped: "
    )
    assert server.last.body["kv_transfer_params"]["lmcache.skip_save"] is (decided == "skip")
    [(point, _)] = instrumented.points("kvpolicy.decisions")
    assert point["kvpolicy.shadow.decision"] == shadow


def conversation(server: StandIn, **options: Any) -> None:
    messages = [message("system", SYSTEM), *question()]
    for _ in range(3):
        answer = call(server, messages, "chat", **options)
        if options.get("stream"):
            assert list(answer)
        messages = [*messages, message("assistant", "yes"), message("user", "and " * 600)]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_cached_tokens_show_that_the_server_kept_the_prefix(
    server: StandIn, instrumented: Telemetry, mode: str
) -> None:
    configure(rule="adaptive", mode=mode)
    conversation(server)
    assert "kvpolicy.adaptive.survival" not in (instrumented.decided[0].attributes or {})
    assert attributes(instrumented)["kvpolicy.adaptive.survival"] == 1.0


def test_missing_cached_tokens_show_that_the_server_lost_the_prefix(
    instrumented: Telemetry,
) -> None:
    configure(rule="adaptive")
    with StandIn(mode="none", gpu_tokens=0) as server:
        conversation(server)
    assert attributes(instrumented)["kvpolicy.adaptive.survival"] == 0.0


async def test_the_rule_learns_from_streams_of_async_clients(
    server: StandIn, instrumented: Telemetry
) -> None:
    configure(rule="adaptive")
    messages: Any = [message("system", SYSTEM), *question()]
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
            messages = [*messages, message("assistant", "yes"), message("user", "and " * 600)]
    assert attributes(instrumented)["kvpolicy.adaptive.survival"] == 1.0


@pytest.fixture
def forgetful() -> Iterator[StandIn]:
    """A server that keeps nothing, so a prefix that counts as stored is found to be lost."""
    with StandIn(mode="none", gpu_tokens=0) as server:
        yield server


def two_calls_with_one_prefix() -> list[list[dict[str, Any]]]:
    """Return two calls that share a new system prompt."""
    head = message("system", f"{question()}")
    return [[head, *question()], [head, *question()]]


def test_a_failed_call_does_not_count_as_stored(
    forgetful: StandIn, instrumented: Telemetry
) -> None:
    configure(rule="adaptive")
    first, second = two_calls_with_one_prefix()
    with (
        OpenAI(base_url="http://127.0.0.1:9/v1", api_key="key", max_retries=0) as client,
        pytest.raises(APIConnectionError),
    ):
        client.chat.completions.create(model="stand-in", messages=first)  # type: ignore[arg-type]
    call(forgetful, second)
    call(forgetful, question())
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


@pytest.mark.parametrize("first_chunk_read", [False, True])
def test_a_call_in_flight_counts_as_stored_only_after_its_first_chunk(
    forgetful: StandIn, instrumented: Telemetry, first_chunk_read: bool
) -> None:
    configure(rule="adaptive")
    first, second = two_calls_with_one_prefix()
    client: Any
    with (
        OpenAI(base_url=forgetful.base_url, api_key="key") as client,
        client.chat.completions.create(model="stand-in", messages=first, stream=True) as stream,
    ):
        if first_chunk_read:
            next(stream)
        call(forgetful, second)
    call(forgetful, question())
    assert attributes(instrumented).get("kvpolicy.adaptive.survival") == (
        0.0 if first_chunk_read else None
    )


@pytest.mark.parametrize("cap", [0, 256])
def test_a_partial_store_of_the_caller_does_not_count_as_lost(
    forgetful: StandIn, instrumented: Telemetry, cap: int
) -> None:
    configure(rule="adaptive")
    for messages in two_calls_with_one_prefix():
        call(
            forgetful,
            messages,
            extra_body={"kv_transfer_params": {"lmcache.max_offload_tokens": cap}},
        )
    call(forgetful, question())
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_nothing_is_learned_from_a_server_that_gets_no_hint(
    forgetful: StandIn, instrumented: Telemetry, mode: str
) -> None:
    configure(rule="adaptive", mode=mode, targets="other.example")
    conversation(forgetful)
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


def test_nothing_is_learned_from_a_server_that_rejects_the_hint(
    instrumented: Telemetry,
) -> None:
    configure(rule="adaptive")
    with StandIn(strict="openai", mode="none", gpu_tokens=0) as server:
        conversation(server)
    assert attributes(instrumented)["kvpolicy.hint.outcome"] == "rejected"
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


def test_without_cached_tokens_the_survival_stays_unknown(instrumented: Telemetry) -> None:
    configure(rule="adaptive")
    with StandIn(prompt_tokens_details=False) as server:
        conversation(server)
    assert "kvpolicy.adaptive.survival" not in attributes(instrumented)


def test_cached_tokens_are_recorded_by_cache_if_enabled(instrumented: Telemetry) -> None:
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
    cached: dict[str, float] = {}
    for point, value in instrumented.points("kvpolicy.cached.tokens"):
        cached[point["kvpolicy.cache.source"]] = (
            cached.get(point["kvpolicy.cache.source"], 0) + value
        )
    total = sum(
        span_attributes(span).get("gen_ai.usage.cache_read.input_tokens", 0)
        for span in instrumented.decided
    )
    assert cached["lmcache"] == second["gen_ai.usage.cache_read.input_tokens"]
    assert sum(cached.values()) == total


def test_a_partial_store_keeps_the_prefix_that_was_seen_before(
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
    recorded = attributes(instrumented)
    assert (recorded["kvpolicy.decision"], recorded["kvpolicy.keep_tokens"]) == ("skip", kept)
    assert f" {kept} tokens " in recorded["kvpolicy.explanation"]
    configure(partial_store=False)
    call(server, task(), "batch")
    assert server.last.body["kv_transfer_params"] == SKIPPED
    configure(partial_store=True, hint_keys="skip_save")
    call(server, task(), "batch")
    assert server.last.body["kv_transfer_params"] == {"lmcache.skip_save": True}


def test_a_policy_in_code_and_the_master_switch_take_precedence(
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
def test_an_error_in_the_adaptive_rule_does_not_change_the_call(
    server: StandIn, instrumented: Telemetry, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(AdaptiveRule, method, broken)
    configure(rule="adaptive", shadow=True, mode="observe")
    if method == "settle":
        # The thresholds rule skips this call, and the adaptive rule would store it.
        configure(mode="enforce", rule="thresholds")
    for _ in range(2):
        assert call(server, [message("user", "hi")]).choices
    assert instrumented.total("kvpolicy.errors") == 2


def test_the_state_file_has_no_prompt_content(
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
    messages = [message("system", "canary " * 900), message("user", "canary " * 900)]
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

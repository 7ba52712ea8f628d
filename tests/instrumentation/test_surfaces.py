"""Every way to make a chat call: it is decided once, hinted, and recorded on one span."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from openai import AzureOpenAI, OpenAI
from opentelemetry.sdk.trace.sampling import Decision as TraceDecision
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
from opentelemetry.trace import SpanKind

from otel_kvpolicy import KVCacheDecision, KVCacheLayeringPolicy, KVPolicyInstrumentor, kv_context
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry
from tests.conftest import attributes as attributes_of

from . import surfaces
from .surfaces import ASYNC, SYNC

SKIP = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}
STORE = {"lmcache.skip_save": False}
LONG_SYSTEM = [{"role": "system", "content": "rule " * 1000}, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize("surface", [*SYNC, *ASYNC], ids=lambda surface: surface.__name__)
def test_every_surface_is_decided_once(
    surface: Callable[..., Any], server: StandIn, instrumented: Telemetry
) -> None:
    surfaces.run(surface, server.base_url)
    [request] = server.requests
    assert request.body["kv_transfer_params"] == SKIP
    [span] = instrumented.spans("otel_kvpolicy")
    attributes = attributes_of(span)
    assert (span.name, span.kind) == ("chat stand-in", SpanKind.CLIENT)
    assert attributes["kvpolicy.decision"] == "skip"
    assert attributes["kvpolicy.hint.outcome"] == "applied"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["server.address"] == "127.0.0.1"
    assert instrumented.total("kvpolicy.decisions") == 1
    assert instrumented.total("kvpolicy.errors") == 0
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 0
    assert attributes["gen_ai.usage.input_tokens"] > 0
    [(tokens, counted)] = instrumented.points("kvpolicy.prompt.tokens")
    assert counted == attributes["gen_ai.usage.input_tokens"]
    assert tokens["kvpolicy.token.source"] == "usage"


@pytest.mark.parametrize(
    "surface", [surfaces.create, surfaces.stream, surfaces.a_create, surfaces.a_responses_stream]
)
def test_exemplars_point_to_the_trace_of_the_call(
    surface: Callable[..., Any], server: StandIn, instrumented: Telemetry
) -> None:
    surfaces.run(surface, server.base_url)
    [span] = instrumented.decided
    metrics = {
        "kvpolicy.decisions",
        "kvpolicy.prompt.tokens",
        "kvpolicy.cached.tokens",
        "kvpolicy.score",
        "kvpolicy.decision.duration",
    }
    assert instrumented.exemplar_traces() == {name: {span.context.trace_id} for name in metrics}


def test_a_sampler_can_use_the_decision(server: StandIn, telemetry: Telemetry) -> None:
    class KeepSkips(Sampler):
        def should_sample(
            self,
            parent_context: Any,
            trace_id: int,
            name: str,
            kind: Any = None,
            attributes: Any = None,
            links: Any = None,
            trace_state: Any = None,
        ) -> SamplingResult:
            kept = (attributes or {}).get("kvpolicy.decision") == "skip"
            return SamplingResult(
                TraceDecision.RECORD_AND_SAMPLE if kept else TraceDecision.DROP, attributes
            )

        def get_description(self) -> str:
            return "skipped calls"

    telemetry.tracer_provider.sampler = KeepSkips()
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
    )
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            for messages in (LONG_SYSTEM, [{"role": "user", "content": "hi"}]):
                client.chat.completions.create(model="stand-in", messages=messages)  # type: ignore[arg-type]
    finally:
        instrumentor.uninstrument()
    assert [attributes_of(span)["kvpolicy.decision"] for span in telemetry.decided] == ["skip"]


@pytest.mark.parametrize(
    "surface",
    [
        surfaces.create,
        surfaces.stream,
        surfaces.responses_create,
        surfaces.a_create,
        surfaces.a_responses_stream,
    ],
)
def test_a_stored_call_is_cached_and_reports_its_cached_tokens(
    surface: Callable[..., Any], server: StandIn, instrumented: Telemetry
) -> None:
    unique = [
        {"role": "system", "content": f"{surface.__name__} " + "rule " * 1000},
        {"role": "user", "content": "hi"},
    ]
    for _ in range(2):
        surfaces.run(surface, server.base_url, messages=unique)
    assert [request.body["kv_transfer_params"] for request in server.requests] == [STORE, STORE]
    first, second = map(attributes_of, instrumented.decided)
    assert second["kvpolicy.reasons"] == ("long_shared_prefix",)
    assert first["gen_ai.usage.cache_read.input_tokens"] == 0
    assert second["gen_ai.usage.cache_read.input_tokens"] > 1000
    assert (
        instrumented.total("kvpolicy.cached.tokens")
        == second["gen_ai.usage.cache_read.input_tokens"]
    )


def test_a_decision_has_all_attributes(server: StandIn, instrumented: Telemetry) -> None:
    surfaces.run(surfaces.create, server.base_url, messages=LONG_SYSTEM, temperature=0.5)
    [span] = instrumented.decided
    attributes = dict(span.attributes or {})
    recorded = {
        name.removeprefix("kvpolicy."): value
        for name, value in attributes.items()
        if name.startswith("kvpolicy.")
    }
    assert recorded == {
        "decision": "store",
        "skip_save": False,
        "cache_worthy": True,
        "score": 0.6104,
        "reasons": ("long_shared_prefix",),
        "explanation": "Stored: long_shared_prefix(1250>=1024t) (prefix 1250 of 1024 tokens, "
        "earlier turns 0 of 1, whole prompt 1250 of 2048 tokens).",
        "rule": "thresholds",
        "mode": "enforce",
        "hint.outcome": "applied",
        "signals.prefix_tokens": 1250,
        "signals.tool_tokens": 0,
        "signals.history_tokens": 0,
        "signals.rag_tokens": 0,
        "signals.user_tokens": 0,
        "signals.total_tokens": 1250,
        "signals.history_turns": 0,
        "thresholds.prefix_tokens": 1024,
        "thresholds.context_tokens": 2048,
        "thresholds.history_turns": 1,
        "chars_per_token": 4.0,
    }
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.response.finish_reasons"]
    assert attributes["gen_ai.response.id"]


@pytest.mark.parametrize(
    "surface",
    [surfaces.create, surfaces.stream, surfaces.a_create, surfaces.a_stream],
    ids=lambda surface: surface.__name__,
)
def test_a_chat_span_of_another_instrumentation_is_annotated(
    surface: Callable[..., Any], server: StandIn, instrumented: Telemetry
) -> None:
    tracer = instrumented.tracer_provider.get_tracer("theirs")
    with tracer.start_as_current_span("chat theirs", attributes={"gen_ai.operation.name": "chat"}):
        surfaces.run(surface, server.base_url)
    assert instrumented.spans("otel_kvpolicy") == []
    [span] = instrumented.spans("theirs")
    assert span.attributes
    assert span.attributes["kvpolicy.decision"] == "skip"
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 0


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m"},
        {"http.request.method": "POST"},
        {},
    ],
)
def test_a_span_that_is_not_a_chat_span_becomes_the_parent(
    attributes: dict[str, Any], server: StandIn, instrumented: Telemetry
) -> None:
    tracer = instrumented.tracer_provider.get_tracer("theirs")
    with tracer.start_as_current_span("outer", attributes=attributes) as outer:
        surfaces.run(surfaces.create, server.base_url)
    [span] = instrumented.spans("otel_kvpolicy")
    assert span.parent
    assert span.parent.span_id == outer.get_span_context().span_id
    assert "kvpolicy.decision" not in (outer.attributes or {})  # type: ignore[attr-defined]


def test_the_http_span_is_a_child_of_the_chat_span_and_its_id_reaches_the_server(
    server: StandIn, instrumented: Telemetry
) -> None:
    surfaces.run(surfaces.create, server.base_url)
    [chat] = instrumented.spans("otel_kvpolicy")
    [http] = [span for span in instrumented.spans() if span is not chat]
    assert http.parent
    assert http.parent.span_id == chat.context.span_id
    assert server.last.headers["traceparent"].startswith(
        f"00-{chat.context.trace_id:032x}-{http.context.span_id:016x}-"
    )


def test_a_client_made_before_instrumenting_is_instrumented_until_it_is_removed(
    server: StandIn, telemetry: Telemetry
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        bound = client.chat.completions.create
        instrumentor = KVPolicyInstrumentor()
        instrumentor.instrument(
            tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
        )
        try:
            bound(model="stand-in", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        finally:
            instrumentor.uninstrument()
        bound(model="stand-in", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
    during, after = server.requests
    assert during.body["kv_transfer_params"] == SKIP
    assert "kv_transfer_params" not in after.body
    assert "traceparent" not in after.headers
    assert len(telemetry.decided) == 1


def test_uninstrument_restores_the_original_functions() -> None:
    from openai._base_client import AsyncAPIClient, SyncAPIClient

    functions = SyncAPIClient.__dict__["request"], AsyncAPIClient.__dict__["request"]
    before = [
        (function.__code__, inspect.signature(function), dict(vars(function)))
        for function in functions
    ]
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument()
    for function, (code, signature, _) in zip(functions, before, strict=True):
        assert function.__code__ is not code
        assert inspect.signature(function) == signature
    instrumentor.uninstrument()
    assert (SyncAPIClient.__dict__["request"], AsyncAPIClient.__dict__["request"]) == functions
    assert [
        (function.__code__, inspect.signature(function), dict(vars(function)))
        for function in functions
    ] == before


def test_a_wrapper_of_another_library_still_works_after_uninstrument(
    server: StandIn, telemetry: Telemetry
) -> None:
    import wrapt
    from openai._base_client import SyncAPIClient

    original = SyncAPIClient.__dict__["request"]
    seen = []
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(tracer_provider=telemetry.tracer_provider)

    def their_wrapper(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        seen.append(1)
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(SyncAPIClient, "request", their_wrapper)
    try:
        instrumentor.uninstrument()
        surfaces.run(surfaces.create, server.base_url)
    finally:
        SyncAPIClient.request = original  # type: ignore[method-assign]
    assert seen == [1]
    assert "kv_transfer_params" not in server.last.body
    assert telemetry.decided == []


def test_calls_to_azure_are_decided_but_get_no_hint(
    server: StandIn, instrumented: Telemetry
) -> None:
    with (
        AzureOpenAI(
            azure_endpoint=server.url, api_key="key", api_version="2025-01-01", max_retries=0
        ) as client,
        pytest.raises(Exception, match="404|Not Found"),
    ):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "hi"}])
    [span] = instrumented.decided
    assert span.attributes
    assert span.attributes["kvpolicy.hint.outcome"] == "excluded_target"
    assert (
        instrumented.points("kvpolicy.decisions")[0][0]["kvpolicy.hint.outcome"]
        == "excluded_target"
    )


def test_other_paths_are_not_touched(server: StandIn, instrumented: Telemetry) -> None:
    with OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        assert client.models.list().data
        with pytest.raises(Exception, match="404|Not Found"):
            client.embeddings.create(model="stand-in", input="hi")
    assert instrumented.decided == []
    assert instrumented.total("kvpolicy.decisions") == 0


@pytest.mark.parametrize(
    ("name", "value", "outcome"),
    [
        ("KV_CACHE_MODE", "observe", "observed"),
        ("KV_CACHE_LAYERING", "false", "disabled"),
        ("KV_CACHE_TARGETS", "gb10.local", "excluded_target"),
    ],
)
def test_no_hint_is_sent_if_settings_forbid_it(
    monkeypatch: pytest.MonkeyPatch,
    server: StandIn,
    instrumented: Telemetry,
    name: str,
    value: str,
    outcome: str,
) -> None:
    monkeypatch.setenv(name, value)
    surfaces.run(surfaces.create, server.base_url)
    assert "kv_transfer_params" not in server.last.body
    [span] = instrumented.decided
    assert span.attributes
    assert span.attributes["kvpolicy.hint.outcome"] == outcome
    assert span.attributes["kvpolicy.decision"] == ("store" if outcome == "disabled" else "skip")


@pytest.mark.parametrize(
    ("given_hint", "decision"),
    [
        ({"lmcache.skip_save": False}, "store"),
        ({"lmcache.max_offload_tokens": 0, "x": 1}, "skip"),
        ({"lmcache.skip_save": True}, "skip"),
    ],
)
def test_a_hint_of_the_caller_is_sent_unchanged(
    server: StandIn, instrumented: Telemetry, given_hint: dict[str, Any], decision: str
) -> None:
    given = {"kv_transfer_params": given_hint, "top_k": 5}
    surfaces.run(surfaces.create, server.base_url, extra_body=given)
    assert server.last.body["kv_transfer_params"] == given_hint
    assert given == {"kv_transfer_params": given_hint, "top_k": 5}
    [span] = instrumented.decided
    assert span.attributes
    assert (span.attributes["kvpolicy.hint.outcome"], span.attributes["kvpolicy.decision"]) == (
        "caller",
        decision,
    )
    assert span.attributes["kvpolicy.reasons"] == ("one_off_short_prompt",)
    assert span.attributes["kvpolicy.cache_worthy"] is False


def test_other_kv_transfer_params_are_kept(server: StandIn, instrumented: Telemetry) -> None:
    given = {"kv_transfer_params": {"do_remote_decode": False, "lmcache.tag.user": "u"}}
    surfaces.run(surfaces.create, server.base_url, extra_body=given)
    assert server.last.body["kv_transfer_params"] == {
        "do_remote_decode": False,
        "lmcache.tag.user": "u",
        **SKIP,
    }
    assert given == {"kv_transfer_params": {"do_remote_decode": False, "lmcache.tag.user": "u"}}


def test_a_cap_that_would_stop_the_server_is_reported_once(
    instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with StandIn() as doomed:
        for _ in range(2):
            with pytest.raises(Exception, match="500"):
                surfaces.run(
                    surfaces.create,
                    doomed.base_url,
                    extra_body={"kv_transfer_params": {"lmcache.max_offload_tokens": "0"}},
                )
        assert doomed.last.body["kv_transfer_params"] == {"lmcache.max_offload_tokens": "0"}
    assert [record.levelname for record in caplog.records if record.name == "otel_kvpolicy"] == [
        "WARNING"
    ]


def test_the_policy_and_hook_options_are_used(server: StandIn, telemetry: Telemetry) -> None:
    seen: list[tuple[Any, KVCacheDecision, Any]] = []
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider,
        policy=KVCacheLayeringPolicy(min_context_tokens=0),
        decision_hook=lambda span, decision, request: seen.append((span, decision, request)),
    )
    try:
        surfaces.run(surfaces.create, server.base_url)
    finally:
        instrumentor.uninstrument()
    assert server.last.body["kv_transfer_params"] == STORE
    [(span, decision, request)] = seen
    assert decision.reason_codes == ["large_fixed_context"]
    assert request["model"] == "stand-in"
    with pytest.raises(TypeError):
        request["model"] = "other"
    assert span.attributes["kvpolicy.decision"] == "store"


def test_a_custom_rule_decides(server: StandIn, instrumented: Telemetry) -> None:
    calls: list[dict[str, Any]] = []

    class StoreAlways(KVCacheLayeringPolicy):
        def decide(self, **call: Any) -> KVCacheDecision:
            calls.append(call)
            return KVCacheDecision(cache_worthy=True, skip_save=False, reasons=["because"])

    KVPolicyInstrumentor().uninstrument()
    KVPolicyInstrumentor().instrument(
        tracer_provider=instrumented.tracer_provider, policy=StoreAlways()
    )
    surfaces.run(surfaces.create, server.base_url, messages=LONG_SYSTEM)
    assert server.last.body["kv_transfer_params"] == STORE
    [call] = calls
    assert call["system_prompt"] == [LONG_SYSTEM[0]["content"]]
    assert call["user_prompt"] == ["hi"]
    [span] = instrumented.decided
    assert span.attributes
    assert span.attributes["kvpolicy.reasons"] == ("because",)


def test_kv_context_adds_role_agent_and_retrieved_block(
    server: StandIn, instrumented: Telemetry
) -> None:
    block = "fact " * 1000
    messages = [{"role": "user", "content": f"Answer from this: {block} What is it?"}]
    with kv_context(role="planner", agent_name="scout"):
        surfaces.run(surfaces.create, server.base_url, messages=messages)
        with kv_context(rag_context=block):
            surfaces.run(surfaces.create, server.base_url, messages=messages)
    surfaces.run(surfaces.create, server.base_url, messages=messages)
    role, rag, neither = instrumented.decided
    assert role.attributes and rag.attributes and neither.attributes
    assert role.attributes["kvpolicy.reasons"] == ("reuse_heavy_role",)
    assert role.attributes["gen_ai.agent.name"] == "scout"
    assert rag.attributes["kvpolicy.reasons"] == ("large_rag_context",)
    assert rag.attributes["kvpolicy.signals.total_tokens"] in range(1250, 1265)
    assert neither.attributes["kvpolicy.reasons"] == ("one_off_short_prompt",)
    assert "gen_ai.agent.name" not in neither.attributes


def test_suppressed_calls_are_not_touched(server: StandIn, instrumented: Telemetry) -> None:
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    with suppress_instrumentation():
        surfaces.run(surfaces.create, server.base_url)
    assert "kv_transfer_params" not in server.last.body
    assert instrumented.decided == []

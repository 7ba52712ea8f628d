"""Internal errors: the call goes out, its result is right, the error is counted and logged once."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from otel_kvpolicy import KVCacheDecision, KVCacheLayeringPolicy, KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

CALL: dict[str, Any] = {
    "model": "stand-in",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
}


class BrokenError(Exception):
    """The error that each broken function raises."""


def broken(*_: Any, **__: Any) -> Any:
    raise BrokenError("do not show this")


SEAMS = {
    "settings": "otel_kvpolicy.instrumentation.runtime.settings.current",
    "context": "otel_kvpolicy.instrumentation.runtime.call_context",
    "policy": "otel_kvpolicy.policy.thresholds.ThresholdsRule.judge",
    "signals": "otel_kvpolicy.policy.thresholds.estimate",
    "origin": "otel_kvpolicy.instrumentation.openai.adapter.Origin.of",
    "hint": "otel_kvpolicy.hints.lmcache.LMCacheDialect.params",
    "hint_merge": "otel_kvpolicy.hints.lmcache.LMCacheDialect.merge",
    "hint_fold": "otel_kvpolicy.instrumentation.openai.adapter.OpenAIRequest.add",
    "span_lookup": "otel_kvpolicy.telemetry.spans.current_chat_span",
    "span_start": "otel_kvpolicy.telemetry.spans.start_chat_span",
    "span_write": "otel_kvpolicy.telemetry.spans.decision_attributes",
    "metric": "otel_kvpolicy.telemetry.instruments.Instruments.decided",
    "answer_metric": "otel_kvpolicy.telemetry.instruments.Instruments.answered",
    "answer": "otel_kvpolicy.instrumentation.openai.streams.read_answer",
    "answer_span": "otel_kvpolicy.telemetry.spans.record_answer",
}


def text_of(client: OpenAI, stream: bool) -> str:
    answer: Any = client.chat.completions.create(**CALL, stream=stream)
    if stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    return str(answer.choices[0].message.content)


async def text_of_async(client: AsyncOpenAI, stream: bool) -> str:
    answer: Any = await client.chat.completions.create(**CALL, stream=stream)
    if stream:
        return "".join(
            [chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices]
        )
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_internal_error_does_not_change_the_call(
    seam: str,
    stream: bool,
    kind: str,
    server: StandIn,
    instrumented: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        expected = text_of(client, stream)
    before = len(server.requests)
    monkeypatch.setattr(SEAMS[seam], broken)
    if kind == "sync":
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            assert [text_of(client, stream) for _ in range(2)] == [expected] * 2
    else:
        async with AsyncOpenAI(base_url=server.base_url, api_key="key") as client:
            assert [await text_of_async(client, stream) for _ in range(2)] == [expected] * 2
    for _ in range(before):
        server.requests.popleft()
    assert len(server.requests) == 2
    if not (stream and seam == "answer"):  # another function reads the chunks of a stream
        assert instrumented.total("kvpolicy.errors") == 2
        [record] = [record for record in caplog.records if record.name == "otel_kvpolicy"]
        assert "BrokenError" in record.message
        assert "do not show this" not in caplog.text
    reached = [("kv_transfer_params" in request.body) for request in server.requests]
    fails_after_sending = {"metric", "answer_metric", "answer", "answer_span"}
    assert reached == [seam in fails_after_sending] * 2
    if seam.startswith("hint"):  # the call is recorded with the outcome "error"
        outcomes = [
            (span.attributes or {})["kvpolicy.hint.outcome"] for span in instrumented.decided
        ]
        assert outcomes[-2:] == ["error", "error"]
        points = instrumented.points("kvpolicy.decisions")
        assert {p["kvpolicy.hint.outcome"]: count for p, count in points}["error"] == 2


def test_an_error_on_the_span_of_another_instrumentation_does_not_change_the_call(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_kvpolicy.telemetry.spans.annotate", broken)
    tracer = instrumented.tracer_provider.get_tracer("another")
    chat = tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"})
    with OpenAI(base_url=server.base_url, api_key="key") as client, chat:
        assert client.chat.completions.create(**CALL).id
    assert "kv_transfer_params" not in server.last.body
    assert instrumented.total("kvpolicy.errors") == 1


def test_an_error_while_reading_chunks_does_not_change_the_stream(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_kvpolicy.instrumentation.openai.streams.read_chunk", broken)
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        assert [chunk for chunk in client.chat.completions.create(**CALL, stream=True)]
    assert instrumented.total("kvpolicy.errors") > 0
    assert len(instrumented.decided) == 1


def test_an_error_in_a_hook_or_a_custom_rule_does_not_change_the_call(
    server: StandIn, telemetry: Telemetry
) -> None:
    class Broken(KVCacheLayeringPolicy):
        def decide(self, **_: Any) -> KVCacheDecision:
            raise BrokenError

    instrumentor = KVPolicyInstrumentor()
    for options, hinted in (
        ({"decision_hook": broken}, True),
        ({"policy": Broken()}, False),
        ({"policy": "nonsense"}, False),
    ):
        instrumentor.instrument(
            tracer_provider=telemetry.tracer_provider,
            meter_provider=telemetry.meter_provider,
            **options,
        )
        try:
            with OpenAI(base_url=server.base_url, api_key="key") as client:
                assert client.chat.completions.create(**CALL).id
        finally:
            instrumentor.uninstrument()
        assert ("kv_transfer_params" in server.last.body) is hinted
    assert telemetry.total("kvpolicy.errors") == 3


class RaisingHandler(logging.Handler):
    """A log handler of the application that raises. Logging does not catch the error."""

    def emit(self, record: logging.LogRecord) -> None:
        raise BrokenError


def test_a_log_handler_that_raises_does_not_change_the_call(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SEAMS["policy"], broken)
    handler = RaisingHandler()
    logging.getLogger("otel_kvpolicy").addHandler(handler)
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            assert client.chat.completions.create(**CALL).id
    finally:
        logging.getLogger("otel_kvpolicy").removeHandler(handler)
    assert instrumented.total("kvpolicy.errors") == 1


@pytest.mark.parametrize("seam", ["answer", "answer_span"])
def test_an_error_after_a_with_block_does_not_reach_the_caller(
    seam: str, server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SEAMS[seam], broken)
    tracer = instrumented.tracer_provider.get_tracer("another")
    with (
        OpenAI(base_url=server.base_url, api_key="key") as client,
        tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}),
        client.chat.completions.with_streaming_response.create(**CALL) as response,
    ):
        assert response.parse().id
    assert instrumented.total("kvpolicy.errors") == 1
    assert instrumented.total("kvpolicy.decisions") == 1


@pytest.mark.parametrize("seam", ["_watch_chunks", "_watch_closing"])
def test_a_stream_that_cannot_be_watched_is_delivered(
    seam: str, server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"otel_kvpolicy.instrumentation.openai.streams.{seam}", broken)
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        assert text_of(client, stream=True)
        assert list(client.chat.completions.with_raw_response.create(**CALL, stream=True).parse())
    assert instrumented.total("kvpolicy.errors") >= 2
    assert len(instrumented.decided) == 2


def test_an_error_while_checking_for_suppression_does_not_change_the_call(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "otel_kvpolicy.instrumentation.openai.choke_point.current_chat_span", broken
    )
    with OpenAI(base_url=server.base_url, api_key="key") as client, suppress_instrumentation():
        assert client.chat.completions.create(**CALL).id
    assert "kv_transfer_params" not in server.last.body
    assert instrumented.total("kvpolicy.errors") == 1


def test_an_error_while_reading_a_rejection_leaves_the_servers_error(
    instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_kvpolicy.instrumentation.call.rejects", broken)
    with (
        StandIn(strict="openai") as strict,
        OpenAI(base_url=strict.base_url, api_key="key", max_retries=0) as client,
    ):
        with pytest.raises(BadRequestError):
            client.chat.completions.create(**CALL)
        assert len(strict.requests) == 1
    assert instrumented.total("kvpolicy.errors") == 1
    assert len(instrumented.decided) == 1


def test_the_hook_runs_in_the_thread_of_the_caller(server: StandIn, telemetry: Telemetry) -> None:
    """So a hook that hangs makes the call hang: only the application could set a time limit."""
    threads: list[int] = []
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider,
        decision_hook=lambda *_: threads.append(threading.get_ident()),
    )
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            assert client.chat.completions.create(**CALL).id
    finally:
        instrumentor.uninstrument()
    assert threads == [threading.get_ident()]


class BrokenInstrument:
    """A counter and histogram that raises."""

    add = record = broken


class BrokenMeterProvider(NoOpMeterProvider):
    """Returns broken instruments for this package and no-op instruments for others."""

    def get_meter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name != "otel_kvpolicy":
            return super().get_meter(name, *args, **kwargs)
        return SimpleNamespace(
            create_counter=lambda *_, **__: BrokenInstrument(),
            create_histogram=lambda *_, **__: BrokenInstrument(),
        )


@pytest.mark.parametrize("meters", [BrokenMeterProvider, NoOpMeterProvider])
def test_broken_or_missing_instruments_do_not_change_the_call(
    server: StandIn, telemetry: Telemetry, meters: type[NoOpMeterProvider]
) -> None:
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(tracer_provider=telemetry.tracer_provider, meter_provider=meters())
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            assert text_of(client, stream=False)
            assert text_of(client, stream=True)
    finally:
        instrumentor.uninstrument()
    assert len(telemetry.decided) == 2
    assert "kv_transfer_params" in server.last.body


class BrokenTracerProvider(TracerProvider):
    """Returns spans with one failing method for this package, and working spans for others."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> Any:
        if instrumenting_module_name != "otel_kvpolicy":
            return super().get_tracer(instrumenting_module_name, *args, **kwargs)
        span = MagicMock(spec=NonRecordingSpan)
        span.is_recording.return_value = True
        span.get_span_context.return_value = INVALID_SPAN_CONTEXT
        getattr(span, self.method).side_effect = BrokenError
        return SimpleNamespace(start_span=lambda *_, **__: span)


@pytest.mark.parametrize("method", ["set_attributes", "is_recording", "end"])
def test_broken_spans_do_not_change_the_call(
    server: StandIn, telemetry: Telemetry, method: str
) -> None:
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=BrokenTracerProvider(method), meter_provider=telemetry.meter_provider
    )
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            assert client.chat.completions.create(**CALL).id
            assert [chunk for chunk in client.chat.completions.create(**CALL, stream=True)]
    finally:
        instrumentor.uninstrument()
    assert telemetry.total("kvpolicy.errors") >= 2

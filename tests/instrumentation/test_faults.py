"""Whatever of ours fails, the caller's call does not: it goes out, its result is right, the fault is counted and said once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from openai import OpenAI
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from otel_kvpolicy import KVCacheDecision, KVCacheLayeringPolicy, KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

CALL: dict[str, Any] = {"model": "stand-in", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


class BrokenError(Exception):
    """What every seam raises here."""


def broken(*_: Any, **__: Any) -> Any:
    raise BrokenError("do not show this")


SEAMS = {
    "settings": "otel_kvpolicy.instrumentation.call.settings.current",
    "context": "otel_kvpolicy.instrumentation.call.call_context",
    "policy": "otel_kvpolicy.policy.thresholds.KVCacheLayeringPolicy.judge",
    "signals": "otel_kvpolicy.policy.thresholds.estimate",
    "origin": "otel_kvpolicy.instrumentation.call.Origin.of",
    "hint": "otel_kvpolicy.hint.hint_params",
    "span_lookup": "otel_kvpolicy.telemetry.spans.current_chat_span",
    "span_start": "otel_kvpolicy.telemetry.spans.start_chat_span",
    "span_write": "otel_kvpolicy.telemetry.spans.decision_attributes",
    "metric": "otel_kvpolicy.telemetry.instruments.Instruments.decided",
    "answer_metric": "otel_kvpolicy.telemetry.instruments.Instruments.answered",
    "answer": "otel_kvpolicy.instrumentation.answers.read_answer",
    "answer_span": "otel_kvpolicy.telemetry.spans.record_answer",
}


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_seam(
    seam: str, stream: bool, server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SEAMS[seam], broken)
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        for _ in range(2):
            answer = client.chat.completions.create(**CALL, stream=stream)
            text = (
                "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
                if stream
                else answer.choices[0].message.content
            )  # type: ignore[union-attr]
            assert text
    assert len(server.requests) == 2
    if not (stream and seam == "answer"):  # a stream's chunks are read elsewhere
        assert instrumented.total("kvpolicy.errors") == 2
        [record] = [record for record in caplog.records if record.name == "otel_kvpolicy"]
        assert "BrokenError" in record.message
        assert "do not show this" not in caplog.text
    reached = [("kv_transfer_params" in request.body) for request in server.requests]
    sent_all_the_same = {"metric", "answer_metric", "answer", "answer_span"}  # they fail when the request is out
    assert reached == [seam in sent_all_the_same] * 2


def test_a_broken_write_on_the_span_of_another(server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_kvpolicy.telemetry.spans.annotate", broken)
    tracer = instrumented.tracer_provider.get_tracer("another")
    chat = tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"})
    with OpenAI(base_url=server.base_url, api_key="key") as client, chat:
        assert client.chat.completions.create(**CALL).id
    assert "kv_transfer_params" not in server.last.body
    assert instrumented.total("kvpolicy.errors") == 1


def test_a_broken_chunk_reader(server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_kvpolicy.instrumentation.answers.read_chunk", broken)
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        assert [chunk for chunk in client.chat.completions.create(**CALL, stream=True)]
    assert instrumented.total("kvpolicy.errors") > 0
    assert len(instrumented.decided) == 1


def test_a_broken_hook_and_a_broken_rule(server: StandIn, telemetry: Telemetry) -> None:
    class Broken(KVCacheLayeringPolicy):
        def decide(self, **_: Any) -> KVCacheDecision:
            raise BrokenError

    instrumentor = KVPolicyInstrumentor()
    for options, hinted in (({"decision_hook": broken}, True), ({"policy": Broken()}, False), ({"policy": "nonsense"}, False)):
        instrumentor.instrument(tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider, **options)
        try:
            with OpenAI(base_url=server.base_url, api_key="key") as client:
                assert client.chat.completions.create(**CALL).id
        finally:
            instrumentor.uninstrument()
        assert ("kv_transfer_params" in server.last.body) is hinted
    assert telemetry.total("kvpolicy.errors") == 3


class BrokenInstrument:
    """Counter and histogram in one, broken."""

    add = record = broken


class BrokenMeterProvider(NoOpMeterProvider):
    """Gives this package broken instruments, or none at all, and everyone else working ones."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def get_meter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name != "otel_kvpolicy":
            return super().get_meter(name, *args, **kwargs)
        create = broken if self.fault == "create" else lambda *_, **__: BrokenInstrument()
        return SimpleNamespace(create_counter=create, create_histogram=create)


def test_broken_instruments(server: StandIn, telemetry: Telemetry) -> None:
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(tracer_provider=telemetry.tracer_provider, meter_provider=BrokenMeterProvider("use"))
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            assert client.chat.completions.create(**CALL).id
    finally:
        instrumentor.uninstrument()
    assert len(telemetry.decided) == 1
    assert "kv_transfer_params" in server.last.body


class BrokenTracerProvider(TracerProvider):
    """Gives this package spans that fail at one of their methods, and everyone else working ones."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def get_tracer(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name != "otel_kvpolicy":
            return super().get_tracer(name, *args, **kwargs)
        span = MagicMock(spec=NonRecordingSpan)
        span.is_recording.return_value = True
        span.get_span_context.return_value = INVALID_SPAN_CONTEXT
        getattr(span, self.method).side_effect = BrokenError
        return SimpleNamespace(start_span=lambda *_, **__: span)


@pytest.mark.parametrize("method", ["set_attributes", "is_recording", "end"])
def test_broken_spans(server: StandIn, telemetry: Telemetry, method: str) -> None:
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(tracer_provider=BrokenTracerProvider(method), meter_provider=telemetry.meter_provider)
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            assert client.chat.completions.create(**CALL).id
            assert [chunk for chunk in client.chat.completions.create(**CALL, stream=True)]
    finally:
        instrumentor.uninstrument()
    assert telemetry.total("kvpolicy.errors") >= 2

"""Streams: the span ends when the stream ends, fails, or is closed, dropped or canceled."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI, AsyncStream, OpenAI, Stream
from opentelemetry.trace import StatusCode

from otel_kvpolicy.standin import FAULT_HEADER, StandIn
from tests.conftest import Telemetry

BODY: dict[str, Any] = {
    "model": "stand-in",
    "messages": [{"role": "user", "content": "hello there"}],
    "max_tokens": 8,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def only_span(telemetry: Telemetry) -> Any:
    [span] = telemetry.spans("otel_kvpolicy")
    return span


def test_the_span_ends_with_the_stream(server: StandIn, instrumented: Telemetry) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        stream = client.chat.completions.create(**BODY)
        assert type(stream) is Stream
        next(stream)
        assert instrumented.spans("otel_kvpolicy") == []
        for _ in stream:
            pass
    assert only_span(instrumented).attributes["gen_ai.usage.input_tokens"] > 0
    assert instrumented.total("kvpolicy.decisions") == 1


def test_a_half_read_stream_that_is_closed_ends_its_span(
    server: StandIn, instrumented: Telemetry
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        stream = client.chat.completions.create(**BODY)
        next(stream)
        stream.close()
        assert stream.response.is_closed
        span = only_span(instrumented)
        stream.close()
    assert span.status.status_code is StatusCode.UNSET
    assert "gen_ai.usage.input_tokens" not in span.attributes
    [(attributes, estimated)] = instrumented.points("kvpolicy.prompt.tokens")
    assert (attributes["kvpolicy.token.source"], estimated) == (
        "estimate",
        span.attributes["kvpolicy.signals.total_tokens"],
    )


def test_leaving_the_with_block_ends_the_span(server: StandIn, instrumented: Telemetry) -> None:
    with (
        OpenAI(base_url=server.base_url, api_key="key") as client,
        client.chat.completions.create(**BODY) as stream,
    ):
        next(stream)
    assert only_span(instrumented)


def test_a_half_read_stream_that_is_dropped_ends_its_span(
    server: StandIn, instrumented: Telemetry
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        stream = client.chat.completions.create(**BODY)
        next(stream)
        del stream
        gc.collect()
        assert only_span(instrumented)


def test_an_unread_stream_that_is_dropped_ends_its_span(
    server: StandIn, instrumented: Telemetry
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.chat.completions.create(**BODY)
        gc.collect()
        assert only_span(instrumented)


def test_the_instrumentation_does_not_keep_the_stream_alive(
    server: StandIn, instrumented: Telemetry
) -> None:
    import weakref

    with OpenAI(base_url=server.base_url, api_key="key") as client:
        stream = client.chat.completions.create(**BODY)
        response = weakref.ref(stream.response)
        for _ in stream:
            pass
        del stream
        gc.collect()
        assert response() is None


@pytest.mark.parametrize("fault", ["reset", "broken_sse"])
def test_a_failing_stream_marks_its_span_as_failed(
    server: StandIn, instrumented: Telemetry, fault: str
) -> None:
    with OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        stream = client.chat.completions.create(**BODY, extra_headers={FAULT_HEADER: fault})
        with pytest.raises(Exception, match=r".") as raised:
            for _ in stream:
                pass
    span = only_span(instrumented)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"].endswith(type(raised.value).__qualname__)
    assert span.events == ()  # an exception's message may quote the prompt
    assert (
        instrumented.total("kvpolicy.prompt.tokens")
        == span.attributes["kvpolicy.signals.total_tokens"]
        > 0
    )  # the server had processed the prompt


def test_a_raw_stream_read_by_lines_ends_its_span(server: StandIn, instrumented: Telemetry) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        with client.chat.completions.with_streaming_response.create(**BODY) as response:
            assert instrumented.spans("otel_kvpolicy") == []
            assert any(line.startswith("data:") for line in response.iter_lines())
        assert only_span(instrumented)


async def test_async_streams_that_are_closed_or_cancelled_end_their_spans(
    server: StandIn, instrumented: Telemetry
) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        stream = await client.chat.completions.create(**BODY)
        assert type(stream) is AsyncStream
        await stream.__anext__()
        assert instrumented.spans("otel_kvpolicy") == []
        await stream.close()
        assert len(instrumented.spans("otel_kvpolicy")) == 1

        stalled = await client.chat.completions.create(
            **BODY, extra_headers={FAULT_HEADER: "stall"}
        )
        started = asyncio.Event()

        async def read() -> None:
            async for _ in stalled:
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stalled.close()
    canceled = instrumented.spans("otel_kvpolicy")[1]
    assert canceled.attributes
    assert str(canceled.attributes["error.type"]).endswith("CancelledError")


async def test_an_async_call_cancelled_before_its_answer_marks_its_span_as_failed(
    instrumented: Telemetry,
) -> None:
    with StandIn(latency=30) as slow:
        async with AsyncOpenAI(base_url=slow.base_url, api_key="key") as client:
            task = asyncio.create_task(client.chat.completions.create(**{**BODY, "stream": False}))
            while not slow.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert only_span(instrumented).status.status_code is StatusCode.ERROR
    assert instrumented.total("kvpolicy.decisions") == 1


async def test_an_async_stream_that_is_dropped_ends_its_span(
    server: StandIn, instrumented: Telemetry
) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key="key") as client:
        stream = await client.chat.completions.create(**BODY)
        await stream.__anext__()
        del stream
        for _ in range(100):
            gc.collect()
            await asyncio.sleep(0)
            if instrumented.spans("otel_kvpolicy"):
                break
    assert only_span(instrumented)


def test_the_context_of_the_caller_does_not_change(
    server: StandIn, instrumented: Telemetry
) -> None:
    from opentelemetry import trace

    before = trace.get_current_span()
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        stream = client.chat.completions.create(**BODY)
        assert trace.get_current_span() is before
        for _ in stream:
            assert trace.get_current_span() is before


@pytest.mark.parametrize("status", [429, 500])
def test_retries_are_one_decision(
    instrumented: Telemetry, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.time.sleep", lambda _: None)
    with (
        StandIn(fail_first=2, fail_status=status) as flaky,
        OpenAI(base_url=flaky.base_url, api_key="key", max_retries=2) as client,
    ):
        client.chat.completions.create(**{**BODY, "stream": False})
        assert len(flaky.requests) == 3
        assert len({request.raw for request in flaky.requests}) == 1
    assert instrumented.total("kvpolicy.decisions") == 1
    assert only_span(instrumented).status.status_code is StatusCode.UNSET


def test_a_failed_call_keeps_its_exception_and_marks_the_span(instrumented: Telemetry) -> None:
    with (
        StandIn(fail_first=1, fail_status=500) as broken,
        OpenAI(base_url=broken.base_url, api_key="key", max_retries=0) as client,
    ):
        with pytest.raises(APIError) as raised:
            client.chat.completions.create(**{**BODY, "stream": False})
        assert raised.value.__cause__ is None
    span = only_span(instrumented)
    assert span.attributes["error.type"] == "openai.InternalServerError"
    assert span.status.description is None
    assert instrumented.points("kvpolicy.prompt.tokens") == []
    assert sys.exc_info() == (None, None, None)

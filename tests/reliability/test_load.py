"""Concurrent calls over real sockets, ending in every way a call can end.

Each call is decided once and leaves nothing behind. The suite makes 400 calls. ``make stress``
makes 50,000, or as many as ``KVPOLICY_LOAD_CALLS`` says, and checks the memory too.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from opentelemetry.context import Context
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.instrumentation import finalizers
from otel_kvpolicy.instrumentation.call import ChatCall
from otel_kvpolicy.standin import FAULT_HEADER, StandIn
from tests.conftest import Telemetry

CALLS = int(os.environ.get("KVPOLICY_LOAD_CALLS", "400"))
CONCURRENCY = 64
WARM_UP = 5
"""One call in this many is made before the memory is first measured."""

MEASURED = 10_000
"""Memory is checked from this many calls on; with fewer the figures mean nothing."""

BYTES_PER_CALL = 2_000
"""Limit of the growth in bytes: calls of an uninstrumented client fragment the heap as well."""

OBJECTS_PER_CALL = 0.1
"""Limit of the growth in objects: fewer than one per call."""

PROC = Path("/proc/self")
FAULTS = ("stall", "reset", "broken_sse", "429", "500")
WAYS = ("plain", "stream", "half", "drop", "cancel")
PASSING = "x-test-passing"
"""Request header of a fault that does not occur again on a retry."""


class Plan(NamedTuple):
    """How a call is made, which fault the server answers with, and when the call is cancelled.

    Attributes:
        way: how the caller reads the answer.
        fault: fault that the stand-in is asked for.
        passing: the fault does not occur again on a retry.
        responses: call the Responses API instead of Chat Completions.
        turns: turns of the event loop after which the call is cancelled.
    """

    way: str
    fault: str | None
    passing: bool
    responses: bool
    turns: int

    @classmethod
    def of(cls, seed: int) -> Plan:
        dice = random.Random(seed)
        fault = dice.choice(FAULTS) if dice.random() < 0.2 else None
        return cls(
            dice.choice(WAYS),
            fault,
            dice.random() < 0.5,
            dice.random() < 0.25,
            dice.randrange(1, 60),
        )

    def call(self, client: Any, seed: int) -> Any:
        """Send the call and return what the client's ``create`` returns, sync or async."""
        headers = {FAULT_HEADER: self.fault} if self.fault else {}
        if self.fault and self.passing:
            headers[PASSING] = "yes"
        common = {"model": "stand-in", "stream": self.way != "plain", "extra_headers": headers}
        text = f"question {seed} " * (seed % 40 + 1)
        if self.responses:
            return client.responses.create(**common, input=text, max_output_tokens=16)
        return client.chat.completions.create(
            **common, messages=[{"role": "user", "content": text}], max_tokens=4
        )


class SentRequests:
    """Counts the requests sent, and removes a passing fault from a retry."""

    def __init__(self) -> None:
        self.requests = 0
        self._lock = threading.Lock()

    def __call__(self, request: Any) -> None:
        with self._lock:
            self.requests += 1
        if request.headers.get(PASSING) and request.headers.get("x-stainless-retry-count") != "0":
            del request.headers[FAULT_HEADER]

    async def when_async(self, request: Any) -> None:
        self(request)


class OpenSpans(SpanProcessor):
    """Counts this package's spans as they start and end, without keeping them."""

    def __init__(self) -> None:
        self.started = self.ended = 0
        self._lock = threading.Lock()

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        self._count(span, 1, 0)

    def on_end(self, span: ReadableSpan) -> None:
        self._count(span, 0, 1)

    def _count(self, span: Any, started: int, ended: int) -> None:
        if span.instrumentation_scope.name == "otel_kvpolicy":
            with self._lock:
                self.started += started
                self.ended += ended


def sync_call(client: OpenAI, seed: int) -> str:
    plan = Plan.of(seed)
    try:
        answer = plan.call(client, seed)
        if plan.way == "stream":
            for _ in answer:
                pass
        elif plan.way != "plain":
            next(iter(answer))
            if plan.way != "drop":
                answer.close()
    except Exception as error:
        return type(error).__name__
    return plan.way


async def async_call(client: AsyncOpenAI, seed: int) -> str:
    plan = Plan.of(seed)
    task = asyncio.create_task(_run(client, seed, plan))
    try:
        if plan.way == "cancel":
            for _ in range(plan.turns):  # at least one turn, so that the call has started
                await asyncio.sleep(0)
            task.cancel()
        return await task
    except asyncio.CancelledError:
        return "cancelled"
    except Exception as error:
        return type(error).__name__


async def _run(client: AsyncOpenAI, seed: int, plan: Plan) -> str:
    answer = await plan.call(client, seed)
    if plan.way in {"stream", "cancel"}:
        async for _ in answer:
            pass
    elif plan.way != "plain":
        await answer.__anext__()
        if plan.way != "drop":
            await answer.close()
    return plan.way


async def async_half(base_url: str, seeds: list[int], sent: SentRequests) -> list[str]:
    waiting = iter(seeds)
    ends: list[str] = []
    http = DefaultAsyncHttpxClient(event_hooks={"request": [sent.when_async]})
    async with AsyncOpenAI(
        base_url=base_url, api_key="key", max_retries=1, timeout=1, http_client=http
    ) as client:

        async def worker() -> None:
            for seed in waiting:
                ends.append(await async_call(client, seed))

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY // 2)))
        assert len(asyncio.all_tasks()) == 1
    return ends


def sync_half(base_url: str, seeds: list[int], sent: SentRequests) -> list[str]:
    http = DefaultHttpxClient(event_hooks={"request": [sent]})
    client = OpenAI(base_url=base_url, api_key="key", max_retries=1, timeout=1, http_client=http)
    with client, ThreadPoolExecutor(CONCURRENCY // 2) as pool:
        return list(pool.map(lambda seed: sync_call(client, seed), seeds))


def both_halves(base_url: str, seeds: list[int], sent: SentRequests) -> Counter[str]:
    """Make half of the calls in threads and half in one event loop; count how they ended."""
    with ThreadPoolExecutor(1) as beside:
        half = beside.submit(sync_half, base_url, seeds[::2], sent)
        ends = asyncio.run(async_half(base_url, seeds[1::2], sent))
        return Counter(ends + half.result())


@contextmanager
def collecting(reader: InMemoryMetricReader) -> Iterator[None]:
    """Reads the metrics all the time, as a periodic reader does now and then."""
    over = threading.Event()

    def collect() -> None:
        while not over.wait(0.01):
            reader.get_metrics_data()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(20)
    assert not thread.is_alive()


def sockets() -> int:
    return sum(map(_is_socket, (PROC / "fd").iterdir()))


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except OSError:
        return False


def collected() -> bool:
    """Collect garbage and finish dropped streams.

    ``gc.collect`` returns at once if another thread is collecting, so callers repeat this.
    """
    gc.collect()
    return finalizers.flush(20)


def memory_in_use() -> tuple[int, int]:
    """Return the resident bytes and the number of live objects."""
    gc.collect()
    return int((PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(
        gc.get_objects()
    )


def soon(holds: Callable[[], bool]) -> bool:
    """Wait until a condition holds, for at most 20 seconds. Return whether it does."""
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


@pytest.fixture
def spans(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[OpenSpans]:
    """Instrument openai and count its spans. Spans that are kept would hide leaks."""
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.001)
    # pytest keeps the tracebacks of generators that are dropped while they run, and with the
    # tracebacks everything that their frames refer to.
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    # asyncio's log records about dropped streams and cut connections would keep frames alive.
    caplog.set_level(logging.CRITICAL, logger="asyncio")
    counted, provider, instrumentor = OpenSpans(), TracerProvider(), KVPolicyInstrumentor()
    provider.add_span_processor(counted)
    instrumentor.instrument(tracer_provider=provider, meter_provider=telemetry.meter_provider)
    yield counted
    instrumentor.uninstrument()
    provider.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not (PROC / "fd").is_dir(), reason="counts sockets in /proc")
def test_every_call_is_decided_once_and_leaves_nothing_behind(
    spans: OpenSpans, telemetry: Telemetry
) -> None:
    seeds = list(range(CALLS))
    warm_up, rest = seeds[: CALLS // WARM_UP], seeds[CALLS // WARM_UP :]
    sent = SentRequests()
    with StandIn(keep_requests=10) as server:
        finalizers.prepare()
        opened, threads, began = sockets(), threading.active_count(), time.monotonic()
        with collecting(telemetry.reader):
            ended = both_halves(server.base_url, warm_up, sent)
            bytes_before, objects_before = memory_in_use()
            ended += both_halves(server.base_url, rest, sent)
            held_bytes, objects = memory_in_use()
        seconds = time.monotonic() - began
        assert soon(lambda: sockets() <= opened), (sockets(), opened)
        assert threading.active_count() <= threads
    grown, more = held_bytes - bytes_before, objects - objects_before
    memory = f"{bytes_before / 1e6:.0f} {grown / 1e6:+.1f} MB, {objects_before} {more:+} objects"
    print(f"{CALLS} calls, {sent.requests} requests, {seconds:.0f} s, {memory}: {dict(ended)}")
    assert sum(ended.values()) == CALLS
    assert {"plain", "stream", "half", "drop", "cancel", "cancelled"} <= set(ended)
    assert sent.requests > CALLS, "some calls were retried"
    assert telemetry.total("kvpolicy.decisions") == CALLS
    assert telemetry.total("kvpolicy.errors") == 0
    assert soon(lambda: collected() and spans.started == spans.ended == CALLS), (
        spans.started,
        spans.ended,
    )
    assert soon(
        lambda: collected() and not any(isinstance(item, ChatCall) for item in gc.get_objects())
    )
    if len(rest) >= MEASURED:
        assert more < OBJECTS_PER_CALL * len(rest)
        assert grown < BYTES_PER_CALL * len(rest)

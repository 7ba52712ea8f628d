"""What a whole call through the real openai client costs with a mock transport: alone, with us, and with others' instrumentation.

Each set-up runs in a process of its own (instrumentors patch classes for good), one call of each per round, so that a slow moment of the
machine meets them all. What an instrumentation adds is the median of the paired differences to the plain client in the same round.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

OTHERS = {
    "genai-openai": ("opentelemetry.instrumentation.genai.openai", "OpenAIInstrumentor"),
    "openinference": ("openinference.instrumentation.openai", "OpenAIInstrumentor"),
    "traceloop": ("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
    "bare": ("benchmarks.bare", "BareInstrumentor"),
}
SETUPS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "ours": ("ours",),
    "genai-openai": ("genai-openai",),
    "ours+genai-openai": ("genai-openai", "ours"),
    "openinference": ("openinference",),
    "traceloop": ("traceloop",),
    "bare": ("bare",),
}
WAYS = ("sync", "stream", "async1", "async8", "async64")
ROUNDS = 60
BATCH = {"sync": 20, "stream": 10, "async1": 20, "async8": 32, "async64": 64}


def installed(setup: tuple[str, ...]) -> bool:
    def found(module: str) -> bool:
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    return all(name == "ours" or found(OTHERS[name][0]) for name in setup)


def set_up(setup: tuple[str, ...]) -> dict[str, Callable[[int], Any]]:  # noqa: C901 - one process, set up from top to bottom
    """Sets this process up and warms it.

    Args:
        setup: the instrumentations to switch on, in this order.

    Returns:
        What makes so many calls in each of the ways.
    """
    import asyncio

    import httpx2
    from openai import AsyncOpenAI, OpenAI
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(tracer_provider)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    for name in setup:
        if name == "ours":
            from otel_kvpolicy.instrumentation import KVPolicyInstrumentor

            instrumentor = KVPolicyInstrumentor()
            instrumentor.instrument(
                skip_dep_check=True
            )  # as opentelemetry-instrument does: the HTTP client's instrumentation is not ours
        else:
            module, kind = OTHERS[name]
            getattr(importlib.import_module(module), kind)().instrument()

    usage = {
        "prompt_tokens": 900,
        "completion_tokens": 5,
        "total_tokens": 905,
        "prompt_tokens_details": {"cached_tokens": 512},
    }
    head = {"id": "c", "created": 1, "model": "m"}
    answer = {**head, "object": "chat.completion", "usage": usage}
    answer["choices"] = [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "a few words"},
        }
    ]
    chunk = {
        **head,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}],
    }
    last = {**chunk, "choices": [], "usage": usage}
    stream = (
        "".join(f"data: {json.dumps(each)}\n\n" for each in [*[chunk] * 30, last])
        + "data: [DONE]\n\n"
    )
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": "rule " * 600}]
        + [
            {"role": "user" if at % 2 == 0 else "assistant", "content": "some words " * 30}
            for at in range(9)
        ],
    }

    def respond(request: httpx2.Request) -> httpx2.Response:
        if b'"stream":true' in request.content:
            return httpx2.Response(200, text=stream, headers={"content-type": "text/event-stream"})
        return httpx2.Response(200, json=answer)

    client = OpenAI(
        api_key="k",
        base_url="http://gb10.local/v1",
        http_client=httpx2.Client(transport=httpx2.MockTransport(respond)),
    )
    loop = asyncio.new_event_loop()
    asynchronous = AsyncOpenAI(
        api_key="k",
        base_url="http://gb10.local/v1",
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(respond)),
    )

    async def at_once(calls: int, concurrency: int) -> None:
        turn = asyncio.Semaphore(concurrency)

        async def one() -> None:
            async with turn:
                await asynchronous.chat.completions.create(**body)  # type: ignore[call-overload]

        await asyncio.gather(*(one() for _ in range(calls)))

    def sync(calls: int) -> None:
        for _ in range(calls):
            client.chat.completions.create(**body)  # type: ignore[call-overload]

    def streamed(calls: int) -> None:
        for _ in range(calls):
            for _ in client.chat.completions.create(**body, stream=True):  # type: ignore[call-overload]
                pass

    ways: dict[str, Callable[[int], Any]] = {
        "sync": sync,
        "stream": streamed,
        "async1": lambda calls: loop.run_until_complete(at_once(calls, 1)),
        "async8": lambda calls: loop.run_until_complete(at_once(calls, 8)),
        "async64": lambda calls: loop.run_until_complete(at_once(calls, 64)),
    }
    for way, call in ways.items():
        call(BATCH[way])
    return ways


def _serve(pipe: Any, setup: tuple[str, ...]) -> None:
    """A worker: makes a batch of calls whenever it is asked to and answers with wall and CPU seconds for one."""
    import time

    ways = set_up(setup)
    pipe.send("ready")
    while (way := pipe.recv()) is not None:
        wall, cpu = time.perf_counter(), time.process_time()
        ways[way](BATCH[way])
        pipe.send(
            ((time.perf_counter() - wall) / BATCH[way], (time.process_time() - cpu) / BATCH[way])
        )


def run() -> list[dict[str, Any]]:
    """Measures all set-ups that are installed; ``added_share`` is what a set-up adds over what genai-openai adds, by CPU time."""
    context = multiprocessing.get_context("spawn")
    workers = {}
    for name, setup in SETUPS.items():
        if installed(setup):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, setup), daemon=True)
            process.start()
            ours.recv()
            workers[name] = ours
    rows = []
    for way in WAYS:
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in workers}
        for _ in range(ROUNDS):
            for name, pipe in workers.items():
                pipe.send(way)
                taken[name].append(pipe.recv())
        added = {
            name: [
                statistics.median(
                    mine[at] - plain[at] for mine, plain in zip(times, taken["plain"], strict=True)
                )
                for at in (0, 1)
            ]
            for name, times in taken.items()
        }
        for name, times in taken.items():
            low, median, high = statistics.quantiles([cpu for _, cpu in times], n=4)
            rows.append(
                {
                    "way": way,
                    "set-up": name,
                    "wall_us": statistics.median(wall for wall, _ in times) * 1e6,
                    "cpu_us": median * 1e6,
                    "cpu_low_us": low * 1e6,
                    "cpu_high_us": high * 1e6,
                    "added_wall_us": added[name][0] * 1e6,
                    "added_cpu_us": added[name][1] * 1e6,
                    "added_share": added[name][1] / added["genai-openai"][1]
                    if "genai-openai" in added
                    else float("nan"),
                }
            )
    for pipe in workers.values():
        pipe.send(None)
    return rows

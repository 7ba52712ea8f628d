"""The cost of a whole call through the openai client with a mock transport.

Compares the plain client, this package, and other instrumentations. Each setup runs in its own
process, because instrumentors patch classes permanently. Every round has one batch of each setup,
so that a slow moment of the machine affects all of them. What a setup adds is the median of its
differences to the plain client in the same round.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

OURS = "otel-kvpolicy"
OTHERS = {
    "genai-openai": ("opentelemetry.instrumentation.genai.openai", "OpenAIInstrumentor"),
    "openinference": ("openinference.instrumentation.openai", "OpenAIInstrumentor"),
    "traceloop": ("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
    "bare": ("benchmarks.bare", "BareInstrumentor"),
}
SETUPS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "otel-kvpolicy": (OURS,),
    "genai-openai": ("genai-openai",),
    "otel-kvpolicy+genai-openai": ("genai-openai", OURS),
    "openinference": ("openinference",),
    "traceloop": ("traceloop",),
    "bare": ("bare",),
}
WAYS = ("sync", "stream", "async1", "async8", "async64")
ROUNDS = 60
BATCH = {"sync": 20, "stream": 10, "async1": 20, "async8": 32, "async64": 64}


def installed(setup: tuple[str, ...]) -> bool:
    """Return whether the packages of a setup are installed."""

    def is_importable(module: str) -> bool:
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    return all(name == OURS or is_importable(OTHERS[name][0]) for name in setup)


def set_up(setup: tuple[str, ...]) -> dict[str, Callable[[int], Any]]:  # noqa: C901
    """Set up this process and warm it up.

    Args:
        setup: the instrumentations to enable, in this order.

    Returns:
        For each way to call, a function that makes the given number of calls.
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
        if name == OURS:
            from otel_kvpolicy.instrumentation import KVPolicyInstrumentor

            instrumentor = KVPolicyInstrumentor()
            # As opentelemetry-instrument does it: without instrumenting the HTTP client.
            instrumentor.instrument(skip_dep_check=True)
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
        "".join(f"data: {json.dumps(event)}\n\n" for event in [*[chunk] * 30, last])
        + "data: [DONE]\n\n"
    )
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": "rule " * 600}]
        + [
            {"role": "user" if index % 2 == 0 else "assistant", "content": "some words " * 30}
            for index in range(9)
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
        streaming: dict[str, Any] = {**body, "stream": True}
        for _ in range(calls):
            for _ in client.chat.completions.create(**streaming):
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
    """Run a worker: for each request, make a batch of calls and send wall and CPU time per call."""
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
    """Measure all installed setups.

    ``added_share`` is the CPU time that a setup adds, divided by what genai-openai adds.
    """
    context = multiprocessing.get_context("spawn")
    workers = {}
    for name, setup in SETUPS.items():
        if installed(setup):
            pipe, worker_pipe = context.Pipe()
            process = context.Process(target=_serve, args=(worker_pipe, setup), daemon=True)
            process.start()
            pipe.recv()
            workers[name] = pipe
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
                    own[clock] - plain[clock]
                    for own, plain in zip(times, taken["plain"], strict=True)
                )
                for clock in (0, 1)
            ]
            for name, times in taken.items()
        }
        for name, times in taken.items():
            low, median, high = statistics.quantiles([cpu for _, cpu in times], n=4)
            rows.append(
                {
                    "way": way,
                    "setup": name,
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

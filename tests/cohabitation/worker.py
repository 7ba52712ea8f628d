"""Turn this instrumentation and another one on and off, and print what was recorded as JSON.

Run it with ``python -m tests.cohabitation.worker OTHER before|after``, which says whether the other
one is switched on before or after this one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from openai import AsyncOpenAI, OpenAI
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn

from .others import OTHERS, Off

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "stand-in", "messages": MESSAGES, "max_tokens": 4}
RESPONSES: dict[str, Any] = {"model": "stand-in", "input": "hi"}
STREAMING: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

Call = Callable[[], object]


def _openai_calls(base_url: str, loop: asyncio.AbstractEventLoop) -> dict[str, Call]:
    """Return the calls; their clients are created before anything is instrumented."""
    client = OpenAI(base_url=base_url, api_key="key", max_retries=0)
    async_client = AsyncOpenAI(base_url=base_url, api_key="key", max_retries=0)

    calls: dict[str, Call] = {}
    for kind, body, streaming in (
        ("chat", CHAT, STREAMING),
        ("responses", RESPONSES, {"stream": True}),
    ):
        for how, given in (("", body), (" stream", {**body, **streaming})):
            calls[f"{kind} sync{how}"] = partial(_call_sync, client, kind, given)
            calls[f"{kind} async{how}"] = partial(_call_async, async_client, kind, given, loop)
    return calls


def _create(client: Any, kind: str) -> Any:
    # Looked up for each call, as applications do, so that the call goes through all wrappers.
    return client.chat.completions.create if kind == "chat" else client.responses.create


def _call_sync(client: OpenAI, kind: str, body: dict[str, Any]) -> None:
    answer = _create(client, kind)(**body)
    if body.get("stream"):
        for _ in answer:
            pass


def _call_async(
    client: AsyncOpenAI, kind: str, body: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> None:
    async def use() -> None:
        answer = await _create(client, kind)(**body)
        if body.get("stream"):
            async for _ in answer:
                pass

    loop.run_until_complete(use())


def _pydantic_ai_calls(base_url: str, loop: asyncio.AbstractEventLoop) -> dict[str, Call]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=base_url, api_key="key")

    async def stream(agent: Any) -> None:
        async with agent.run_stream("hi") as result:
            async for _ in result.stream_text():
                pass

    def run(how: Callable[[Any], Any], agent: Any) -> None:
        loop.run_until_complete(how(agent))

    calls: dict[str, Call] = {}
    for kind, model in (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel)):
        agent = Agent(model("stand-in", provider=provider), name="scout")
        calls[f"{kind} sync"] = partial(agent.run_sync, "hi")
        calls[f"{kind} async"] = partial(run, lambda agent: agent.run("hi"), agent)
        calls[f"{kind} async stream"] = partial(run, stream, agent)
    return calls


class Process:
    """The calls that this process makes and the telemetry that it records."""

    def __init__(self, other: str, server: StandIn) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([self.reader]))
        OTHERS[other].provide(SimpleSpanProcessor(self.exporter))
        self.server = server
        self.counted = 0
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        calls = _openai_calls if OTHERS[other].over == "openai" else _pydantic_ai_calls
        self.calls = calls(server.base_url, loop)

    def observe(self) -> dict[str, Any]:
        """Make every call once and return what each one sent and recorded."""
        return {name: self._one(call) for name, call in self.calls.items()}

    def _one(self, call: Call) -> dict[str, Any]:
        self.exporter.clear()
        self.server.requests.clear()
        call()
        spans = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        before, self.counted = self.counted, self._decisions()
        return {
            "hints": ["kv_transfer_params" in request.body for request in self.server.requests],
            "traceparents": ["traceparent" in request.headers for request in self.server.requests],
            "decisions": self.counted - before,
            "spans": [
                {
                    "scope": span.instrumentation_scope.name if span.instrumentation_scope else "",
                    "name": span.name,
                    "decision": (span.attributes or {}).get("kvpolicy.decision"),
                    "cached": (span.attributes or {}).get("gen_ai.usage.cache_read.input_tokens"),
                    "ended": span.end_time is not None,
                }
                for span in spans
            ],
        }

    def _decisions(self) -> int:
        data = self.reader.get_metrics_data()
        return sum(
            int(point.value)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "kvpolicy.decisions"
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        )


def main(other: str, order: str) -> None:
    """Observe all calls in each phase and print the observations."""
    ours = KVPolicyInstrumentor()
    with StandIn() as server:
        process = Process(other, server)
        theirs_off: Off
        if order == "before":
            theirs_off = OTHERS[other].on()
            ours.instrument()
        else:
            ours.instrument()
            theirs_off = OTHERS[other].on()
        found = {"both": process.observe()}
        ours.uninstrument()
        found["ours off"] = process.observe()
        ours.instrument()
        found["ours on again"] = process.observe()
        theirs_off()
        found["theirs off"] = process.observe()
        ours.uninstrument()
        found["both off"] = process.observe()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

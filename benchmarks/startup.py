"""The cost of startup and memory: import, ``instrument()``, calls in flight, and memory kept."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

ROUNDS = 7

IMPORT = """
import time
import openai, opentelemetry.instrumentation.httpx
started = time.perf_counter()
import otel_kvpolicy
imported = time.perf_counter()
otel_kvpolicy.KVPolicyInstrumentor().instrument()
print((imported - started) * 1e3, (time.perf_counter() - imported) * 1e3)
"""

OPENAI = """
import time
started = time.perf_counter()
import openai, opentelemetry.instrumentation.httpx
print((time.perf_counter() - started) * 1e3)
"""

MEMORY = """
import gc, json, tracemalloc
import httpx2
from openai import OpenAI
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_kvpolicy import KVPolicyInstrumentor
message = {"role": "assistant", "content": "a"}
answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m",
          "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
         "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
def respond(request):
    if b'"stream":true' in request.content:
        events = f"data: {json.dumps(chunk)}\\n\\ndata: [DONE]\\n\\n"
        return httpx2.Response(200, text=events, headers={"content-type": "text/event-stream"})
    return httpx2.Response(200, json=answer)
http_client = httpx2.Client(transport=httpx2.MockTransport(respond))
client = OpenAI(api_key="k", base_url="http://gb10.local/v1", http_client=http_client)
call = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
def in_flight(count):
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = [client.chat.completions.create(**call, stream=True) for _ in range(count)]
    gc.collect()
    size = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    return size
in_flight(50)
plain = in_flight(500)
KVPolicyInstrumentor().instrument(meter_provider=MeterProvider([InMemoryMetricReader()]))
in_flight(50)
ours = in_flight(500)
def grown(calls):
    for _ in range(2000):
        client.chat.completions.create(**call)
    gc.collect()
    tracemalloc.start()
    for _ in range(calls):
        client.chat.completions.create(**call)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size
print(plain, ours, grown(CALLS))
"""


def _run(code: str) -> list[float]:
    return [
        float(word)
        for word in subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    ]


def run(*, calls: int = 20_000) -> list[dict[str, Any]]:
    """Measure startup in new processes, in milliseconds, and memory, in bytes."""
    startups = [_run(IMPORT) for _ in range(ROUNDS)]
    openai = statistics.median(_run(OPENAI)[0] for _ in range(ROUNDS))
    plain, instrumented, grown = _run(MEMORY.replace("CALLS", str(calls)))
    return [
        {"what": "import openai and the httpx instrumentation", "value": openai, "unit": "ms"},
        {
            "what": "import otel_kvpolicy after it",
            "value": statistics.median(imported for imported, _ in startups),
            "unit": "ms",
        },
        {
            "what": "instrument()",
            "value": statistics.median(instrumented for _, instrumented in startups),
            "unit": "ms",
        },
        {"what": "a streamed call in flight, plain", "value": plain, "unit": "bytes"},
        {"what": "a streamed call in flight, instrumented", "value": instrumented, "unit": "bytes"},
        {"what": f"kept after {calls} calls", "value": grown, "unit": "bytes"},
    ]

"""An instrumented application that makes calls on request and exposes its metrics.

It runs in a separate process, because instrumentation is global. Each line of JSON on its standard
input describes calls to make, and each line of its output holds what the client saw of them.

It serves a metrics page. If its argument is the address of an OTLP endpoint, it sends metrics and
spans there instead.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import start_http_server

from otel_kvpolicy import KVPolicyInstrumentor, kv_context

RESOURCE = Resource({"service.name": "app", "service.instance.id": "one"})
WORDS = [
    f"{one}{two}{three}" for one in "bdfgklmnprst" for two in "aeiou" for three in "bdfgklmnprst"
]


def words(seed: str, count: int) -> str:
    """Return ``count`` words, always the same for a seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def messages(kind: str, number: int, scale: float) -> list[Any]:
    """Return a one-off prompt, or for some kinds a prompt with one of three long system prompts.

    Both are longer than a chunk.
    """
    if kind in ("store", "rejected"):
        system = words(f"system {number % 3}", round(1600 * scale))
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": words(f"{number}", round(300 * scale))},
        ]
    return [{"role": "user", "content": words(f"once {kind} {number}", round(700 * scale))}]


def fail(_span: Any, _decision: Any, request: Any) -> None:
    """Raise an error if the call asks for it (``decision_hook``)."""
    if request.get("user") == "fault":
        raise LookupError


def call(client: OpenAI, model: str, kind: str, number: int, scale: float) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if kind == "caller":
        extra["extra_body"] = {
            "kv_transfer_params": {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}
        }
    if kind == "fault":
        extra["user"] = "fault"
    with kv_context(agent_name="planner" if kind == "store" else None):
        answer = client.chat.completions.create(
            model=model, messages=messages(kind, number, scale), max_tokens=4, **extra
        )
    assert answer.usage
    details = answer.usage.prompt_tokens_details
    return {
        "kind": kind,
        "prompt": answer.usage.prompt_tokens,
        "cached": (details and details.cached_tokens) or 0,
    }


def serve_metrics() -> int:
    """Instrument this process, serve a metrics page and return its port."""
    provider = MeterProvider([PrometheusMetricReader()], resource=RESOURCE)
    KVPolicyInstrumentor().instrument(meter_provider=provider, decision_hook=fail)
    return int(start_http_server(0, addr="127.0.0.1")[0].server_port)


def send_otlp(endpoint: str) -> None:
    """Instrument this process and send metrics and spans to an OTLP endpoint."""
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(f"{endpoint}/v1/metrics"), export_interval_millis=500
    )
    tracing = TracerProvider(resource=RESOURCE)
    tracing.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces"), schedule_delay_millis=300)
    )
    trace.set_tracer_provider(tracing)
    KVPolicyInstrumentor().instrument(meter_provider=MeterProvider([reader], resource=RESOURCE))


def main() -> None:
    if len(sys.argv) > 1:
        port = 0
        send_otlp(sys.argv[1])
    else:
        port = serve_metrics()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        client = OpenAI(api_key="none", base_url=order["base_url"], max_retries=0)
        seen = [
            call(client, order["model"], kind, number, order["scale"])
            for kind, number in order["calls"]
        ]
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

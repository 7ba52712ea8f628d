"""An instrumented application that makes the calls it is told to, one JSON line each, and tells Prometheus.

Run by the live tests in a process of its own: instrumentation is global. Serves a metrics page; with the address of an OTLP endpoint as
its argument it sends metrics and spans there instead. Answers each line with what the client itself saw.
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
    """Always the same words for a seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def messages(kind: str, number: int, scale: float) -> list[Any]:
    """A one-off prompt of more than a chunk, or one behind one of three long system prompts."""
    if kind in ("store", "rejected"):
        system = words(f"system {number % 3}", round(1600 * scale))
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": words(f"{number}", round(300 * scale))},
        ]
    return [{"role": "user", "content": words(f"once {kind} {number}", round(700 * scale))}]


def fail(_span: Any, _decision: Any, request: Any) -> None:
    """A hook that raises when the call asks for it."""
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


def scraped() -> int:
    """Instruments for a metrics page; its port."""
    provider = MeterProvider([PrometheusMetricReader()], resource=RESOURCE)
    KVPolicyInstrumentor().instrument(meter_provider=provider, decision_hook=fail)
    return int(start_http_server(0, addr="127.0.0.1")[0].server_port)


def sent(endpoint: str) -> None:
    """Instruments for OTLP."""
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
        sent(sys.argv[1])
    else:
        port = scraped()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        given = json.loads(line)
        client = OpenAI(api_key="none", base_url=given["base_url"], max_retries=0)
        seen = [
            call(client, given["model"], kind, number, given["scale"])
            for kind, number in given["calls"]
        ]
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Observe mode, enabled in code: decide and record, but send no hint. A careful way to start.

    python examples/observe_mode.py

Do not run it under ``opentelemetry-instrument``, which would instrument the client before this file
does.
"""

from openai import OpenAI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from server import base_url

from otel_kvpolicy import KVCacheDecision, KVPolicyInstrumentor, configure

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))


def print_decision(span: object, decision: KVCacheDecision, request: object) -> None:
    """Print a decision. A decision hook is called before the request is sent."""
    print(
        "would",
        "skip" if decision.skip_save else "store",
        "because of",
        ", ".join(decision.reasons),
    )


configure(mode="observe")
KVPolicyInstrumentor().instrument(tracer_provider=provider, decision_hook=print_decision)

with base_url() as url, OpenAI(base_url=url, api_key="none") as client:
    model = client.models.list().data[0].id
    client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Name a color."}], max_tokens=8
    )

[span] = [
    span for span in exporter.get_finished_spans() if "kvpolicy.decision" in (span.attributes or {})
]
attributes = span.attributes or {}
print(f"{attributes['kvpolicy.hint.outcome']}: {attributes['kvpolicy.explanation']}")

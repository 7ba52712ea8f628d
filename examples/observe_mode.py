"""Observe mode, switched on in code: decisions are made and recorded, and nothing is sent. How a careful operator starts.

python examples/observe_mode.py

Not under ``opentelemetry-instrument``, which would have instrumented before this file does.
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
    """A decision hook: called with each decision, before the request goes out."""
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
        model=model, messages=[{"role": "user", "content": "Name a colour."}], max_tokens=8
    )

[span] = [
    span for span in exporter.get_finished_spans() if "kvpolicy.decision" in (span.attributes or {})
]
print((span.attributes or {})["kvpolicy.explanation"])

"""A pydantic-ai agent with tools and a sub-agent. Prints the trace of its run as a tree.

Nothing here asks for a decision.

    pip install 'otel-kvpolicy[demo]' 'pydantic-ai-slim[openai]'
    opentelemetry-instrument --traces_exporter none --metrics_exporter none --logs_exporter none \\
        python examples/pydantic_ai_agent.py

Uses the server at ``OPENAI_BASE_URL``. If that is not set, uses an embedded stand-in for vLLM with
LMCache.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence

from openai import AsyncOpenAI, OpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from server import base_url

SHELVES = {
    number: f"shelf {number} holds books on subject {number % 17}" for number in range(1, 80)
}
SHOWN = (
    "kvpolicy.agent.calls",
    "kvpolicy.agent.skipped",
    "kvpolicy.agent.stored",
    "kvpolicy.explanation",
)


def agents(url: str) -> Agent:
    """Return a librarian that looks things up and leaves summaries to a second agent."""
    with OpenAI(base_url=url, api_key="none") as client:
        name = client.models.list().data[0].id
    model = OpenAIChatModel(
        name, provider=OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key="none"))
    )
    summarizer = Agent(model, name="summarizer", instructions="Summarize in one sentence.")
    librarian = Agent(
        model,
        name="librarian",
        instructions="You are a librarian. Use your tools.",
        metadata={"role": "assistant"},
    )

    @librarian.tool_plain
    def list_shelves() -> dict[int, str]:
        """The contents of each shelf."""
        return SHELVES

    @librarian.tool_plain
    async def summarize_shelves() -> str:
        """A one-sentence summary of all shelves."""
        return (await summarizer.run(f"Summarize: {SHELVES}")).output

    return librarian


def print_tree(spans: Sequence[ReadableSpan]) -> None:
    """Print spans below their parents, with the decisions."""
    children: dict[int | None, list[ReadableSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        children[span.parent.span_id if span.parent else None].append(span)

    def walk(parent: int | None, depth: int) -> None:
        for span in children[parent]:
            print(f"{'   ' * depth}{span.name}")
            for name in SHOWN:
                if name in (span.attributes or {}):
                    label = name.removeprefix("kvpolicy.")
                    print(f"{'   ' * depth}   · {label}: {span.attributes[name]}")
            walk(span.context.span_id, depth + 1)

    walk(None, 0)


provider = trace.get_tracer_provider()
if not isinstance(provider, TracerProvider):
    sys.exit("Run this example under opentelemetry-instrument; see its docstring.")
exporter = InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
Agent.instrument_all()

with base_url() as url:
    librarian = agents(url)
    first = librarian.run_sync("What do we have? See list_shelves.")
    librarian.run_sync("And in short? See summarize_shelves.", message_history=first.all_messages())
print_tree(exporter.get_finished_spans())

"""Several streamed calls at once with the async client.

``kv_context`` adds facts that the request body lacks: the agent's name and the RAG block.

    opentelemetry-instrument --traces_exporter console --metrics_exporter none \\
        python examples/async_streaming.py
"""

import asyncio

from openai import AsyncOpenAI
from server import base_url

from otel_kvpolicy import kv_context

ARTICLE = "The lighthouse was built in 1871 and rebuilt after the storm of 1902. " * 80


async def ask(client: AsyncOpenAI, model: str, question: str) -> str:
    """Return a streamed answer. The span of the call ends with the stream."""
    messages = [{"role": "user", "content": f"{ARTICLE}\n\n{question}"}]
    with kv_context(agent_name="reader", rag_context=ARTICLE):
        stream = await client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    cached = 0
    async for chunk in stream:
        if chunk.usage and chunk.usage.prompt_tokens_details:
            cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
    return f"{question} ({cached} prompt tokens came from a cache)"


async def main() -> None:
    """Ask three questions about one article at the same time, then one more."""
    with base_url() as url:
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            model = (await client.models.list()).data[0].id
            for line in await asyncio.gather(
                *(ask(client, model, question) for question in ("When?", "Where?", "Why?"))
            ):
                print(line)
            print(await ask(client, model, "Who?"))


asyncio.run(main())

"""Every way to run an agent to its end, as ``way(loop, agent, prompt)``; the streamed ones also as what they yield."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from pydantic_ai import Agent

Loop = asyncio.AbstractEventLoop
Stream = Callable[..., AsyncGenerator[Any, None]]


async def texts(agent: Agent[Any, Any], prompt: str, **given: Any) -> AsyncGenerator[Any, None]:
    async with agent.run_stream(prompt, **given) as result:
        async for text in result.stream_text():
            yield text


async def events(agent: Agent[Any, Any], prompt: str, **given: Any) -> AsyncGenerator[Any, None]:
    stream = agent.run_stream_events(prompt, **given)
    if hasattr(stream, "__aenter__"):  # 2.x
        async with stream as entered:
            async for event in entered:
                yield event
    else:
        async for event in stream:
            yield event


async def node_events(agent: Agent[Any, Any], prompt: str, **given: Any) -> AsyncGenerator[Any, None]:
    async with agent.iter(prompt, **given) as steps:
        async for node in steps:
            if Agent.is_model_request_node(node):
                async with node.stream(steps.ctx) as stream:
                    async for event in stream:
                        yield event


async def _drain(stream: AsyncGenerator[Any, None]) -> None:
    async for _ in stream:
        pass


def run(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> Any:
    return loop.run_until_complete(agent.run(prompt, **given))


def run_sync(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> Any:
    return agent.run_sync(prompt, **given)


def run_stream(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    loop.run_until_complete(_drain(texts(agent, prompt, **given)))


def run_stream_sync(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    for _ in agent.run_stream_sync(prompt, **given).stream_text():
        pass


def run_stream_events(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    loop.run_until_complete(_drain(events(agent, prompt, **given)))


def iterate(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    async def use() -> None:
        async with agent.iter(prompt, **given) as steps:
            async for _ in steps:
                pass

    loop.run_until_complete(use())


def iterate_streamed(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    loop.run_until_complete(_drain(node_events(agent, prompt, **given)))


STREAMS: list[Stream] = [texts, events, node_events]
WAYS: list[Callable[..., Any]] = [run, run_sync, run_stream, run_stream_sync, run_stream_events, iterate, iterate_streamed]

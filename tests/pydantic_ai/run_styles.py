"""Every way to run an agent to its end: ``style(loop, agent, prompt)``.

Streamed runs also exist as generators of what they yield, and as runs that are left early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from importlib.metadata import version
from typing import Any

from pydantic_ai import Agent

PYDANTIC_AI_1 = version("pydantic-ai-slim").startswith("1.")

Loop = asyncio.AbstractEventLoop
Stream = Callable[..., AsyncGenerator[Any, None]]
Act = Callable[[], Awaitable[None]]
EarlyExit = Callable[[Agent[Any, Any], str, Act], Awaitable[None]]


async def texts(agent: Agent[Any, Any], prompt: Any, **given: Any) -> AsyncGenerator[Any, None]:
    async with agent.run_stream(prompt, **given) as result:
        async for text in result.stream_text():
            yield text


async def events(agent: Agent[Any, Any], prompt: Any, **given: Any) -> AsyncGenerator[Any, None]:
    async with agent.run_stream_events(prompt, **given) as stream:
        async for event in stream:
            yield event


async def node_events(
    agent: Agent[Any, Any], prompt: Any, **given: Any
) -> AsyncGenerator[Any, None]:
    async with agent.iter(prompt, **given) as steps:
        async for node in steps:
            if Agent.is_model_request_node(node):
                async with node.stream(steps.ctx) as stream:
                    async for event in stream:
                        yield event


async def leave_texts(agent: Agent[Any, Any], prompt: str, act: Act) -> None:
    async with agent.run_stream(prompt) as result:
        async for _ in result.stream_text():
            await act()
            break


async def leave_events(agent: Agent[Any, Any], prompt: str, act: Act) -> None:
    async with agent.run_stream_events(prompt) as stream:
        async for _ in stream:
            await act()
            break


async def leave_node_events(agent: Agent[Any, Any], prompt: str, act: Act) -> None:
    async with agent.iter(prompt) as steps:
        async for node in steps:
            if Agent.is_model_request_node(node):
                async with node.stream(steps.ctx) as stream:
                    async for _ in stream:
                        await act()
                        break
                break


def closing(stream: Stream) -> EarlyExit:
    """Return a run that leaves a generator around the stream.

    A web framework does this when its client disconnects.
    """

    async def leave(agent: Agent[Any, Any], prompt: str, act: Act) -> None:
        async with aclosing(stream(agent, prompt)) as items:
            async for _ in items:
                await act()
                break

    return leave


async def _drain(stream: AsyncGenerator[Any, None]) -> None:
    async for _ in stream:
        pass


def run(loop: Loop, agent: Agent[Any, Any], prompt: Any, **given: Any) -> Any:
    return loop.run_until_complete(agent.run(prompt, **given))


def run_sync(loop: Loop, agent: Agent[Any, Any], prompt: Any, **given: Any) -> Any:
    return agent.run_sync(prompt, **given)


def run_stream(loop: Loop, agent: Agent[Any, Any], prompt: Any, **given: Any) -> None:
    loop.run_until_complete(_drain(texts(agent, prompt, **given)))


def run_stream_sync(loop: Loop, agent: Agent[Any, Any], prompt: Any, **given: Any) -> None:
    for _ in agent.run_stream_sync(prompt, **given).stream_text():
        pass


def run_stream_events(loop: Loop, agent: Agent[Any, Any], prompt: Any, **given: Any) -> None:
    loop.run_until_complete(_drain(events(agent, prompt, **given)))


def iterate(loop: Loop, agent: Agent[Any, Any], prompt: Any, **given: Any) -> None:
    async def use() -> None:
        async with agent.iter(prompt, **given) as steps:
            async for _ in steps:
                pass

    loop.run_until_complete(use())


def iterate_streamed(loop: Loop, agent: Agent[Any, Any], prompt: Any, **given: Any) -> None:
    loop.run_until_complete(_drain(node_events(agent, prompt, **given)))


STREAMS: list[Stream] = [texts, events, node_events]
EARLY_EXITS: list[EarlyExit] = [leave_texts, leave_events, leave_node_events]
STYLES: list[Callable[..., Any]] = [
    run,
    run_sync,
    run_stream,
    run_stream_sync,
    run_stream_events,
    iterate,
    iterate_streamed,
]

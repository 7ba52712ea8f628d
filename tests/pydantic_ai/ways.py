"""Every way to run an agent, as ``way(loop, agent, prompt)``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent

Loop = asyncio.AbstractEventLoop


def run(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> Any:
    return loop.run_until_complete(agent.run(prompt, **given))


def run_sync(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> Any:
    return agent.run_sync(prompt, **given)


def run_stream(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    async def use() -> None:
        async with agent.run_stream(prompt, **given) as result:
            async for _ in result.stream_text():
                pass

    loop.run_until_complete(use())


def run_stream_sync(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    for _ in agent.run_stream_sync(prompt, **given).stream_text():
        pass


def run_stream_events(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    async def use() -> None:
        events = agent.run_stream_events(prompt, **given)
        if hasattr(events, "__aenter__"):  # 2.x
            async with events as entered:
                async for _ in entered:
                    pass
        else:
            async for _ in events:
                pass

    loop.run_until_complete(use())


def iterate(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    async def use() -> None:
        async with agent.iter(prompt, **given) as steps:
            async for _ in steps:
                pass

    loop.run_until_complete(use())


def iterate_streamed(loop: Loop, agent: Agent[Any, Any], prompt: str, **given: Any) -> None:
    async def use() -> None:
        async with agent.iter(prompt, **given) as steps:
            async for node in steps:
                if Agent.is_model_request_node(node):
                    async with node.stream(steps.ctx) as stream:
                        async for _ in stream:
                            pass

    loop.run_until_complete(use())


WAYS: list[Callable[..., Any]] = [run, run_sync, run_stream, run_stream_sync, run_stream_events, iterate, iterate_streamed]

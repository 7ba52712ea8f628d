"""Many calls at once, over real sockets, that end in every way a call can end: each is decided once, and nothing is left behind.

1,000 calls as part of the suite; ``KVPOLICY_LOAD_CALLS=50000 make stress`` for the long run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from otel_kvpolicy.instrumentation.call import ChatCall
from otel_kvpolicy.standin import FAULT_HEADER, StandIn
from tests.conftest import Telemetry

CALLS = int(os.environ.get("KVPOLICY_LOAD_CALLS", "1000"))
CONCURRENCY = 64
FDS = Path("/proc/self/fd")
FAULTS = ("stall", "reset", "broken_sse", "429", "500")


def plan(seed: int) -> tuple[str, str | None]:
    """How a call is made and what the server does to it."""
    dice = random.Random(seed)
    return dice.choice(("plain", "stream", "half", "cancel")), dice.choice(FAULTS) if dice.random() < 0.2 else None


def body(way: str, fault: str | None, seed: int) -> dict[str, Any]:
    return {
        "model": "stand-in",
        "messages": [{"role": "user", "content": f"question {seed} " * (seed % 40 + 1)}],
        "max_tokens": 4,
        "stream": way != "plain",
        "extra_headers": {FAULT_HEADER: fault} if fault else {},
    }


def sync_call(client: OpenAI, seed: int) -> str:
    way, fault = plan(seed)
    try:
        answer: Any = client.chat.completions.create(**body(way, fault, seed))
        if way == "stream":
            for _ in answer:
                pass
        elif way in {"half", "cancel"}:
            next(iter(answer))
            answer.close()
    except Exception as error:
        return type(error).__name__
    return way


async def async_call(client: AsyncOpenAI, seed: int) -> str:
    way, fault = plan(seed)

    async def run() -> str:
        answer: Any = await client.chat.completions.create(**body(way, fault, seed))
        if way == "stream":
            async for _ in answer:
                pass
        elif way != "plain":
            await answer.__anext__()
            if way == "cancel":
                asyncio.current_task().cancel()  # type: ignore[union-attr]
            await answer.close()
        return way

    try:
        return await asyncio.create_task(run())
    except asyncio.CancelledError:
        return "cancelled"
    except Exception as error:
        return type(error).__name__


async def async_half(base_url: str, seeds: list[int]) -> list[str]:
    waiting = iter(seeds)
    ends: list[str] = []
    async with AsyncOpenAI(base_url=base_url, api_key="key", max_retries=1, timeout=1) as client:

        async def worker() -> None:
            for seed in waiting:
                ends.append(await async_call(client, seed))

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY // 2)))
    assert len(asyncio.all_tasks()) == 1
    return ends


def sync_half(base_url: str, seeds: list[int]) -> list[str]:
    with OpenAI(base_url=base_url, api_key="key", max_retries=1, timeout=1) as client, ThreadPoolExecutor(CONCURRENCY // 2) as pool:
        return list(pool.map(lambda seed: sync_call(client, seed), seeds))


def open_sockets() -> int:
    return sum(1 for fd in FDS.iterdir() if _is_socket(fd))


def _is_socket(fd: Path) -> bool:
    try:
        return str(fd.readlink()).startswith("socket:")
    except OSError:
        return False


@pytest.mark.skipif(not FDS.is_dir(), reason="counts sockets by /proc")
def test_every_call_is_accounted_for(instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.001)
    seeds = list(range(CALLS))
    with StandIn(keep_requests=10) as server:
        before = open_sockets()
        ends: list[list[str]] = []
        thread = threading.Thread(target=lambda: ends.append(sync_half(server.base_url, seeds[::2])))
        thread.start()
        ends.append(asyncio.run(async_half(server.base_url, seeds[1::2])))
        thread.join()
        gc.collect()
        assert open_sockets() <= before + CONCURRENCY, "the server may hold some of its own for a moment"
    ended = Counter(end for half in ends for end in half)
    assert sum(ended.values()) == CALLS
    assert {"plain", "stream", "half", "cancelled"} <= set(ended)
    assert instrumented.total("kvpolicy.decisions") == CALLS
    assert instrumented.total("kvpolicy.errors") == 0
    assert len(instrumented.spans("otel_kvpolicy")) == CALLS
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, ChatCall)] == []

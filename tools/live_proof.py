"""Compare rules on running servers, by the servers' own counters and by replay.

    python tools/live_proof.py --base-url http://gb10:8000/v1 --lmcache-url http://gb10:8080 \\
        --chunks 900

The traffic is mixed: conversations of one agent continue every few seconds, and long questions of
another agent never come back. Each rule gets the same calls at the same times. Each run has its own
system prompts, so that it finds nothing that an earlier run stored. To measure LMCache alone, start
vLLM with ``--no-enable-prefix-caching`` and LMCache without L2. L1 must be too small to hold all
prompts.
"""

# ruff: noqa: S311 - traffic, not secrets

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx2
from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from otel_kvpolicy import KVPolicyInstrumentor, configure, kv_context, series
from otel_kvpolicy.cli.metrics_page import Page
from otel_kvpolicy.cli.replay.simulator.engine import Tiers
from otel_kvpolicy.cli.replay.simulator.players import parse_rule
from otel_kvpolicy.cli.replay.trace.readers import load

CHUNK = 256
WORDS = (
    "every",
    "request",
    "carries",
    "a",
    "hint",
    "and",
    "every",
    "decision",
    "leaves",
    "a",
    "trace",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "always": {"mode": "observe"},  # no hint is sent, so everything is stored
    "thresholds": {},
    "adaptive": {"rule": "adaptive"},
}


class Planned(NamedTuple):
    """A call to make.

    Attributes:
        time: seconds after the start of the run.
        agent: agent that makes the call.
        talk: id of the conversation.
        messages: messages to send.
        turns: model replies before the call.
    """

    time: float
    agent: str
    talk: str
    messages: list[dict[str, Any]]
    turns: int


def words(draw: random.Random, count: int) -> str:
    """Return random text, about one token per word for a tokenizer trained on these words."""
    return " ".join(draw.choice(WORDS) for _ in range(count))


def plan(seed: int, seconds: float, talks: int, gap: float, once: float) -> list[Planned]:
    """Return the calls of a run, in order of time.

    Args:
        seed: seed of the random numbers.
        seconds: length of the run.
        talks: number of conversations at the same time.
        gap: mean seconds between two calls of a conversation.
        once: calls per second that never come back.
    """
    draw = random.Random(seed)
    system = {"role": "system", "content": words(draw, 300)}
    calls = []
    for lane in range(talks):
        moment, number = draw.uniform(0, gap), 0
        while moment < seconds:
            number += 1
            messages = [system, {"role": "user", "content": words(draw, 600)}]
            for turns in range(6):
                calls.append(Planned(moment, "chat", f"{lane}/{number}", list(messages), turns))
                messages += [
                    {"role": "assistant", "content": words(draw, 60)},
                    {"role": "user", "content": words(draw, 200)},
                ]
                moment += draw.uniform(0.6, 1.4) * gap
    moment = 0.0
    while moment < seconds:
        moment += draw.expovariate(once)
        question = [{"role": "user", "content": words(draw, 2600)}]
        calls.append(Planned(moment, "extract", f"once {moment}", question, 0))
    return sorted((call for call in calls if call.time < seconds), key=lambda call: call.time)


def chunk_id(call: Planned, index: int) -> int:
    """Return an id for a chunk of a call: all conversations share the first, the system prompt."""
    shared = call.agent == "chat" and index == 0
    return hash((call.agent if shared else call.talk, index)) & 0xFFFFFFFFFF


def metrics_page(lmcache_url: str) -> Page:
    """Read LMCache's counters."""
    answer = httpx2.get(f"{lmcache_url}/metrics", timeout=10, trust_env=False)
    return Page.parse(answer.raise_for_status().text)


async def run(calls: list[Planned], base_url: str, model: str, nonce: str) -> list[dict[str, Any]]:
    """Make the calls at their times. Return each as a line of a Mooncake trace.

    Args:
        calls: what to send.
        base_url: URL of vLLM's API.
        model: model to ask.
        nonce: first words of every prompt, different in each run.
    """
    lines: list[dict[str, Any]] = []
    started = time.monotonic()
    slots = asyncio.Semaphore(8)

    async def one(client: AsyncOpenAI, call: Planned) -> None:
        await asyncio.sleep(max(0.0, started + call.time - time.monotonic()))
        head = {**call.messages[0], "content": f"{nonce} {call.messages[0]['content']}"}
        async with slots:
            now = time.monotonic() - started
            with kv_context(agent_name=call.agent):
                answer = await client.chat.completions.create(
                    model=model,
                    messages=[head, *call.messages[1:]],  # type: ignore[list-item]
                    max_tokens=1,
                )
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        lines.append(
            {
                "timestamp": int(now * 1000),
                "input_length": answer.usage.prompt_tokens,
                "output_length": 1,
                "hash_ids": [
                    chunk_id(call, index)
                    for index in range(-(-answer.usage.prompt_tokens // CHUNK))
                ],
                "turns": call.turns,
                "class": call.agent,
                "block_size": CHUNK,
                "cached": (details.cached_tokens or 0) if details else 0,
            }
        )

    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120) as client:
        await asyncio.gather(*(one(client, call) for call in calls))
    return sorted(lines, key=lambda line: line["timestamp"])


def replayed(lines: list[dict[str, Any]], rule: str, chunks: int) -> tuple[float, int]:
    """Return the hit rate and the chunks written that replay computes for the same calls."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        trace = load([path]).trace
        outcome = parse_rule(rule).runner(trace)(Tiers(chunks))
    return outcome.hit_rate, outcome.written


def halves(lines: list[dict[str, Any]], seconds: float) -> Iterator[float]:
    """Yield the share of cached prompt tokens in the first and in the second half of the run."""
    for half in (False, True):
        part = [line for line in lines if (line["timestamp"] >= seconds * 500) is half]
        yield sum(line["cached"] for line in part) / max(
            1, sum(line["input_length"] for line in part)
        )


def main() -> None:
    """Run the rules one after the other and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--lmcache-url", required=True)
    parser.add_argument(
        "--chunks",
        type=int,
        required=True,
        help="chunks that L1 holds before it evicts, for replay",
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--talks", type=int, default=8, help="conversations at a time")
    parser.add_argument(
        "--gap", type=float, default=8, help="seconds between the calls of a conversation"
    )
    parser.add_argument(
        "--once", type=float, default=1.5, help="calls per second that never come back"
    )
    parser.add_argument("--rules", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the calls of each run, as traces for `otel-kvpolicy replay`",
    )
    options = parser.parse_args()
    models = (
        httpx2.get(f"{options.base_url}/models", timeout=10, trust_env=False)
        .raise_for_status()
        .json()
    )
    calls = plan(1, options.seconds, options.talks, options.gap, options.once)
    skipped: Counter[bool] = Counter()
    KVPolicyInstrumentor().instrument(
        decision_hook=lambda _, decision, __: skipped.update([decision.skip_save])
    )
    table = Table(
        "rule",
        "calls",
        "hit rate",
        "in replay",
        "1st half",
        "2nd half",
        "chunks written",
        "in replay",
        "skipped",
    )
    for rule in options.rules:
        KVPolicyInstrumentor()._runtime.adaptive.rule = None  # noqa: SLF001 - start with an empty state
        skipped.clear()
        configure(rule=None, mode=None)
        configure(**SETTINGS[rule])
        before = metrics_page(options.lmcache_url)
        lines = asyncio.run(
            run(calls, options.base_url, models["data"][0]["id"], f"{rule} {time.time_ns()}")
        )
        time.sleep(2)  # stores are counted in the background
        after = metrics_page(options.lmcache_url)
        hit, written = (
            after.total(counter) - before.total(counter)
            for counter in (series.LOOKUP_HIT, series.L1_WRITE)
        )
        replayed_rate, replayed_chunks = replayed(lines, rule, options.chunks)
        first, second = halves(lines, options.seconds)
        total = sum(line["input_length"] for line in lines)
        table.add_row(
            rule,
            str(len(lines)),
            f"{hit / total:.1%}",
            f"{replayed_rate:.1%}",
            f"{first:.1%}",
            f"{second:.1%}",
            f"{written:.0f}",
            f"{replayed_chunks}",
            f"{skipped[True] / skipped.total():.0%}" if rule != "always" else "0%",
        )
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"{rule}.jsonl").write_text(
                "".join(f"{json.dumps(line)}\n" for line in lines)
            )
    Console().print(table)


if __name__ == "__main__":
    main()

"""Generated traffic that is hard for the adaptive rule."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

from otel_kvpolicy.cli.replay.trace import Request, Trace, build_trace

CHUNK = 512
_fresh = count()


def blocks(number: int) -> list[int]:
    """Return block ids that no other prompt has."""
    return [next(_fresh) for _ in range(number)]


def conversations(
    seed: int,
    start: float,
    end: float,
    number: int,
    *,
    continues: float,
    gap: float = 60,
    system: int = 2,
    first: float = 10,
    role: str | None = None,
) -> Iterator[Request]:
    """Yield conversations that begin between two times.

    Args:
        seed: seed of the random numbers.
        start: earliest start, in seconds.
        end: latest start, in seconds.
        number: number of conversations.
        continues: probability that a call is followed by another one.
        gap: typical time between two calls, in seconds.
        system: blocks in the system prompt that all conversations share.
        first: mean number of blocks in the first message.
        role: role of all calls.
    """
    draw = random.Random(seed)
    head = blocks(system)
    for _ in range(number):
        time = draw.uniform(start, end)
        prompt, turns = [*head, *blocks(1 + int(draw.expovariate(1 / first)))], 0
        while True:
            yield Request(time, len(prompt) * CHUNK, 200, list(prompt), turns, system * CHUNK, role)
            if draw.random() >= continues:
                break
            time, turns = time + gap * draw.lognormvariate(0, 0.8), turns + 1
            prompt += blocks(1 + int(draw.expovariate(1 / 3)))


def document_questions(seed: int, requests: int, number: int, tail: float) -> Iterator[Request]:
    """Yield questions about documents. A few documents are asked about often, most rarely.

    Args:
        seed: seed of the random numbers.
        requests: number of questions.
        number: number of documents.
        tail: exponent of the popularity; the smaller, the more even.
    """
    draw = random.Random(seed)
    head, texts = blocks(4), [blocks(10) for _ in range(number)]
    weights = [(rank + 1) ** -tail for rank in range(number)]
    for time in range(requests):
        prompt = [*head, *draw.choices(texts, weights)[0], *blocks(2)]
        yield Request(time, len(prompt) * CHUNK, 100, prompt, 0, 4 * CHUNK)


NAMES = (
    "no reuse, then full reuse",
    "full reuse, then none",
    "alternating",
    "agents among one-offs",
    "agents among one-offs, without roles",
    "slow conversations",
    "documents",
    "documents, long tail",
)


@lru_cache
def generated(name: str) -> Trace:
    """Return the generated trace with one of :data:`NAMES`."""
    requests: dict[str, Sequence[Iterator[Request]]] = {
        "no reuse, then full reuse": (
            conversations(1, 0, 3000, 3000, continues=0),
            conversations(2, 3000, 6000, 500, continues=0.85),
        ),
        "full reuse, then none": (
            conversations(1, 0, 3000, 500, continues=0.85),
            conversations(2, 3000, 6000, 3000, continues=0),
        ),
        "alternating": tuple(
            conversations(
                phase,
                phase * 1500,
                (phase + 1) * 1500,
                250 if phase % 2 else 1500,
                continues=0.85 if phase % 2 else 0,
            )
            for phase in range(6)
        ),
        "agents among one-offs": (
            conversations(1, 0, 5000, 400, continues=0.9, gap=20, system=8, role="agent"),
            conversations(2, 0, 5000, 3000, continues=0.02, role="batch"),
        ),
        "agents among one-offs, without roles": (
            conversations(1, 0, 5000, 400, continues=0.9, gap=20, system=8),
            conversations(2, 0, 5000, 3000, continues=0.02),
        ),
        "slow conversations": (conversations(1, 0, 20_000, 1500, continues=0.6, gap=400),),
        "documents": (document_questions(1, 5000, 1500, 1.0),),
        "documents, long tail": (document_questions(1, 5000, 1500, 0.3),),
    }
    return build_trace((request for part in requests[name] for request in part), CHUNK)

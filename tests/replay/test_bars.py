"""What the learned rule promises, on real traffic and on traffic made to trip it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

import pytest

from otel_kvpolicy.cli.replay.simulator.engine import Outcome, Tiers
from otel_kvpolicy.cli.replay.simulator.players import parse_rule
from otel_kvpolicy.cli.replay.trace.trace import Request, Trace, build_trace

from .traces import AIRLINE, CODING, MOONCAKE, real_trace

CAPACITIES = (2_500, 5_000, 10_000, 20_000, 50_000, 200_000)
POINT = 0.01


@lru_cache
def mooncake(rule: str, clients: int = 1) -> list[Outcome]:
    run = parse_rule(rule).runner(real_trace(MOONCAKE), clients=clients)
    return [run(Tiers(capacity)) for capacity in CAPACITIES]


def test_an_hour_of_chat_is_never_a_point_below_storing_everything() -> None:
    for learned, always in zip(mooncake("adaptive"), mooncake("always"), strict=True):
        assert learned.hit_rate >= always.hit_rate - 0.1 * POINT
        assert learned.written <= always.written


def test_an_hour_of_chat_under_pressure() -> None:
    learned, always = mooncake("adaptive"), mooncake("always")
    assert learned[0].hit_rate >= always[0].hit_rate + 5 * POINT
    assert learned[1].hit_rate >= always[1].hit_rate + 4 * POINT
    assert learned[1].written <= 0.40 * always[1].written
    assert learned[2].hit_rate >= always[2].hit_rate + 0.5 * POINT
    assert learned[2].written <= 0.60 * always[2].written


@pytest.mark.parametrize("rule", ["thresholds", "turns", "seen"])
def test_no_fixed_rule_is_as_good_at_every_size(rule: str) -> None:
    learned, fixed = mooncake("adaptive"), mooncake(rule)
    assert all(
        mine.hit_rate >= theirs.hit_rate - 0.1 * POINT
        for mine, theirs in zip(learned, fixed, strict=True)
    )


@pytest.mark.parametrize("clients", [2, 8, 32])
def test_any_number_of_clients_stays_near_storing_everything(clients: int) -> None:
    for learned, always in zip(mooncake("adaptive", clients), mooncake("always"), strict=True):
        assert learned.hit_rate >= always.hit_rate - 0.5 * POINT


@pytest.mark.parametrize("clients", [4, 16])
def test_many_clients_that_share_nothing_are_not_below_storing_everything(clients: int) -> None:
    for learned, always in zip(mooncake("adaptive", clients), mooncake("always"), strict=True):
        assert learned.hit_rate >= always.hit_rate - 0.05 * POINT
    assert mooncake("adaptive", clients)[1].hit_rate >= mooncake("always")[1].hit_rate + POINT


def test_coding_agents_are_stored() -> None:
    trace = real_trace(CODING)
    for capacity in (500, 2_000, 5_000, 10_000, 20_000, 100_000):
        learned, always = (
            parse_rule(rule).runner(trace)(Tiers(capacity)) for rule in ("adaptive", "always")
        )
        assert learned.hit_rate >= always.hit_rate - 0.1 * POINT


def test_agents_with_tools_are_stored() -> None:
    trace = real_trace(AIRLINE)
    for capacity in (50, 200, 1_500):
        learned, always = (
            parse_rule(rule).runner(trace)(Tiers(capacity)) for rule in ("adaptive", "always")
        )
        assert learned.hit_rate >= always.hit_rate - 0.1 * POINT


CHUNK = 512
_fresh = count()


def blocks(number: int) -> list[int]:
    return [next(_fresh) for _ in range(number)]


def talks(
    seed: int,
    start: float,
    end: float,
    number: int,
    *,
    goes_on: float,
    gap: float = 60,
    system: int = 2,
    first: float = 10,
    role: str | None = None,
) -> Iterator[Request]:
    """Conversations that begin between two moments, each call of which is followed by another with the chance ``goes_on``."""
    draw = random.Random(seed)
    head = blocks(system)
    for _ in range(number):
        time, prompt, turns = (
            draw.uniform(start, end),
            [*head, *blocks(1 + int(draw.expovariate(1 / first)))],
            0,
        )
        while True:
            yield Request(time, len(prompt) * CHUNK, 200, list(prompt), turns, system * CHUNK, role)
            if draw.random() >= goes_on:
                break
            time, turns = time + gap * draw.lognormvariate(0, 0.8), turns + 1
            prompt += blocks(1 + int(draw.expovariate(1 / 3)))


def documents(seed: int, requests: int, number: int, tail: float) -> Iterator[Request]:
    """Questions about documents, of which a few are asked about often and most rarely."""
    draw = random.Random(seed)
    head, texts = blocks(4), [blocks(10) for _ in range(number)]
    weights = [(at + 1) ** -tail for at in range(number)]
    for at in range(requests):
        prompt = [*head, *draw.choices(texts, weights)[0], *blocks(2)]
        yield Request(at, len(prompt) * CHUNK, 100, prompt, 0, 4 * CHUNK)


@lru_cache
def made(name: str) -> Trace:
    requests: dict[str, Sequence[Iterator[Request]]] = {
        "no reuse, then full reuse": (
            talks(1, 0, 3000, 3000, goes_on=0),
            talks(2, 3000, 6000, 500, goes_on=0.85),
        ),
        "full reuse, then none": (
            talks(1, 0, 3000, 500, goes_on=0.85),
            talks(2, 3000, 6000, 3000, goes_on=0),
        ),
        "by turns": tuple(
            talks(
                at,
                at * 1500,
                (at + 1) * 1500,
                250 if at % 2 else 1500,
                goes_on=0.85 if at % 2 else 0,
            )
            for at in range(6)
        ),
        "agents among one-offs": (
            talks(1, 0, 5000, 400, goes_on=0.9, gap=20, system=8, role="agent"),
            talks(2, 0, 5000, 3000, goes_on=0.02, role="batch"),
        ),
        "agents among one-offs, without names": (
            talks(1, 0, 5000, 400, goes_on=0.9, gap=20, system=8),
            talks(2, 0, 5000, 3000, goes_on=0.02),
        ),
        "slow talks": (talks(1, 0, 20_000, 1500, goes_on=0.6, gap=400),),
        "documents": (documents(1, 5000, 1500, 1.0),),
        "documents, a long tail": (documents(1, 5000, 1500, 0.3),),
    }
    return build_trace((request for part in requests[name] for request in part), CHUNK)


MADE = (
    "no reuse, then full reuse",
    "full reuse, then none",
    "by turns",
    "agents among one-offs",
    "agents among one-offs, without names",
    "slow talks",
    "documents",
    "documents, a long tail",
)


@pytest.mark.parametrize("clients", [1, 16])
@pytest.mark.parametrize("name", MADE)
def test_traffic_made_to_trip_it_costs_it_no_point(name: str, clients: int) -> None:
    trace = made(name)
    learned, always = (
        parse_rule("adaptive").runner(trace, clients=clients),
        parse_rule("always").runner(trace),
    )
    for share in (128, 64, 32, 16, 8, 4, 1):
        tiers = Tiers(max(1, trace.unique_blocks // share))
        mine, theirs = learned(tiers), always(tiers)
        assert mine.hit_rate >= theirs.hit_rate - 0.6 * POINT, share
        assert mine.written <= 1.02 * theirs.written, share


@pytest.mark.parametrize(
    "name",
    [
        "agents among one-offs",
        "agents among one-offs, without names",
        "full reuse, then none",
        "by turns",
    ],
)
def test_one_offs_no_longer_push_out_what_comes_back(name: str) -> None:
    trace = made(name)
    tiers = Tiers(trace.unique_blocks // 64)
    mine, theirs = (parse_rule(rule).runner(trace)(tiers) for rule in ("adaptive", "always"))
    assert mine.hit_rate >= theirs.hit_rate + 2 * POINT
    assert mine.written < 0.8 * theirs.written


def test_a_gpu_cache_in_front_and_a_backend_behind() -> None:
    trace = real_trace(MOONCAKE)
    for tiers in (Tiers(2_500, 5_000, 1_000), Tiers(5_000, 20_000, 500), Tiers(1_000, 0, 5_000)):
        mine, theirs = (parse_rule(rule).runner(trace)(tiers) for rule in ("adaptive", "always"))
        assert mine.hit_rate >= theirs.hit_rate - 0.5 * POINT
        assert mine.l2_written <= theirs.l2_written

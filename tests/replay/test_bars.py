"""The results that the adaptive rule must reach on full public traces and on generated traffic.

Hit rates are compared in points: 1 point is 1 % of the prompt tokens.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from otel_kvpolicy.cli.replay.simulator import Outcome, Tiers, parse_rule
from otel_kvpolicy.cli.replay.trace import Trace

from .full_traces import AIRLINE, CODING, MOONCAKE
from .traces import full_trace
from .traffic import NAMES, generated

pytestmark = pytest.mark.bars

CAPACITIES = (2_500, 5_000, 10_000, 20_000, 50_000, 200_000)
POINT = 0.01


@lru_cache
def mooncake(rule: str, clients: int = 1) -> list[Outcome]:
    run = parse_rule(rule).runner(full_trace(MOONCAKE), clients=clients)
    return [run(Tiers(capacity)) for capacity in CAPACITIES]


def adaptive_and_always(trace: Trace, tiers: Tiers) -> tuple[Outcome, Outcome]:
    adaptive, always = (parse_rule(rule).runner(trace)(tiers) for rule in ("adaptive", "always"))
    return adaptive, always


def test_on_chat_adaptive_hits_as_much_as_always_at_every_size() -> None:
    for adaptive, always in zip(mooncake("adaptive"), mooncake("always"), strict=True):
        assert adaptive.hit_rate >= always.hit_rate - 0.1 * POINT
        assert adaptive.written <= always.written


def test_on_chat_adaptive_hits_more_and_writes_less_in_a_small_cache() -> None:
    adaptive, always = mooncake("adaptive"), mooncake("always")
    assert adaptive[0].hit_rate >= always[0].hit_rate + 5 * POINT
    assert adaptive[1].hit_rate >= always[1].hit_rate + 4 * POINT
    assert adaptive[1].written <= 0.40 * always[1].written
    assert adaptive[2].hit_rate >= always[2].hit_rate + 0.5 * POINT
    assert adaptive[2].written <= 0.60 * always[2].written


@pytest.mark.parametrize("rule", ["thresholds", "turns", "seen"])
def test_on_chat_adaptive_hits_as_much_as_each_fixed_rule_at_every_size(rule: str) -> None:
    for adaptive, fixed in zip(mooncake("adaptive"), mooncake(rule), strict=True):
        assert adaptive.hit_rate >= fixed.hit_rate - 0.1 * POINT


@pytest.mark.parametrize("clients", [2, 8, 32])
def test_on_chat_any_number_of_clients_hits_almost_as_much_as_always(clients: int) -> None:
    for adaptive, always in zip(mooncake("adaptive", clients), mooncake("always"), strict=True):
        assert adaptive.hit_rate >= always.hit_rate - 0.5 * POINT


@pytest.mark.parametrize("clients", [4, 16])
def test_on_chat_clients_that_share_nothing_hit_as_much_as_always(clients: int) -> None:
    for adaptive, always in zip(mooncake("adaptive", clients), mooncake("always"), strict=True):
        assert adaptive.hit_rate >= always.hit_rate - 0.05 * POINT
    assert mooncake("adaptive", clients)[1].hit_rate >= mooncake("always")[1].hit_rate + POINT


@pytest.mark.parametrize("capacity", [500, 2_000, 5_000, 10_000, 20_000, 100_000])
def test_on_coding_agents_adaptive_hits_as_much_as_always(capacity: int) -> None:
    adaptive, always = adaptive_and_always(full_trace(CODING), Tiers(capacity))
    assert adaptive.hit_rate >= always.hit_rate - 0.1 * POINT


@pytest.mark.parametrize("capacity", [50, 200, 1_500])
def test_on_agents_with_tools_adaptive_hits_as_much_as_always(capacity: int) -> None:
    adaptive, always = adaptive_and_always(full_trace(AIRLINE), Tiers(capacity))
    assert adaptive.hit_rate >= always.hit_rate - 0.1 * POINT


@pytest.mark.parametrize(
    "tiers", [Tiers(2_500, 5_000, 1_000), Tiers(5_000, 20_000, 500), Tiers(1_000, 0, 5_000)]
)
def test_on_chat_adaptive_hits_almost_as_much_as_always_with_several_tiers(tiers: Tiers) -> None:
    adaptive, always = adaptive_and_always(full_trace(MOONCAKE), tiers)
    assert adaptive.hit_rate >= always.hit_rate - 0.5 * POINT
    assert adaptive.l2_written <= always.l2_written


@pytest.mark.parametrize("clients", [1, 16])
@pytest.mark.parametrize("name", NAMES)
def test_on_generated_traffic_adaptive_hits_almost_as_much_as_always(
    name: str, clients: int
) -> None:
    trace = generated(name)
    adaptive = parse_rule("adaptive").runner(trace, clients=clients)
    always = parse_rule("always").runner(trace)
    for share in (128, 64, 32, 16, 8, 4, 1):
        tiers = Tiers(max(1, trace.unique_blocks // share))
        ours, reference = adaptive(tiers), always(tiers)
        assert ours.hit_rate >= reference.hit_rate - 0.6 * POINT, share
        assert ours.written <= 1.02 * reference.written, share


@pytest.mark.parametrize(
    "name", ["agents among one-offs, without roles", "full reuse, then none", "alternating"]
)
def test_one_offs_do_not_evict_what_returns(name: str) -> None:
    trace = generated(name)
    adaptive, always = adaptive_and_always(trace, Tiers(trace.unique_blocks // 64))
    assert adaptive.hit_rate >= always.hit_rate + 2 * POINT
    assert adaptive.written < 0.8 * always.written

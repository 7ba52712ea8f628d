"""How long a cache keeps a prefix, and what a place in the cache is worth."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_kvpolicy.policy.adaptive.lifetime import Lifetime


def after_returns(keeps: float, gaps: list[float], reuse: float = 0.5) -> Lifetime:
    """Return the lifetime after these returns to a cache that keeps for ``keeps`` seconds."""
    lifetime = Lifetime()
    for gap in gaps:
        lifetime.called()
        lifetime.stored(reuse)
        lifetime.returned(gap)
        lifetime.found(gap, held=gap < keeps)
    return lifetime


def spread(count: int, low: float, high: float) -> list[float]:
    draw = random.Random(1)
    return [low * (high / low) ** draw.random() for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(keeps=st.floats(5, 20_000))
def test_the_lifetime_is_estimated_within_a_factor_of_1_6(keeps: float) -> None:
    lifetime = after_returns(keeps, spread(500, keeps / 8, keeps * 8))
    assert lifetime.seconds is not None
    assert keeps / 1.6 < lifetime.seconds < keeps * 1.6
    assert lifetime.survival == pytest.approx(0.5, abs=0.15)


def test_the_lifetime_is_unknown_after_a_few_finds() -> None:
    assert after_returns(60, spread(8, 10, 1000)).seconds is None
    assert Lifetime().survival is None


def test_the_price_is_the_density_of_returns_at_the_lifetime() -> None:
    """Check a price that can be computed by hand.

    Returns are spread evenly over log time, from 8 to 4096 s. At 64 s a third of them has come
    back, so the density is 1 / ln(8) of these.
    """
    lifetime = after_returns(64, spread(6000, 8, 4096), reuse=0.4)
    expected = 0.4 * 2 / 2.08
    assert lifetime.price == pytest.approx(expected, rel=0.25)


def test_the_price_is_zero_if_the_cache_keeps_everything() -> None:
    lifetime = after_returns(1e9, spread(500, 10, 1000))
    assert (lifetime.seconds, lifetime.price, lifetime.survival) == (None, 0.0, 1.0)


def test_the_price_is_near_zero_if_nothing_comes_back_around_the_lifetime() -> None:
    lifetime = after_returns(64, spread(500, 1, 8) + [5000.0] * 40 + spread(200, 1, 8))
    assert lifetime.price < 0.02


def test_evidence_fades_with_calls_that_add_none() -> None:
    lifetime = after_returns(60, spread(500, 10, 1000))
    for _ in range(4000):
        lifetime.called()
    assert (lifetime.seconds, lifetime.price, lifetime.survival) == (None, 0.0, None)


def test_a_shrinking_cache_is_noticed() -> None:
    lifetime = after_returns(1e9, spread(3000, 10, 1000))
    for gap in spread(300, 10, 1000):
        lifetime.found(gap, held=gap < 100)
    assert lifetime.seconds is not None
    assert 50 < lifetime.seconds < 200


def test_a_restored_lifetime_equals_the_exported_one() -> None:
    lifetime = after_returns(60, spread(500, 10, 1000))
    other = Lifetime.restored(json.loads(json.dumps(lifetime.export())))
    assert other.seconds == lifetime.seconds
    assert other.survival == pytest.approx(lifetime.survival)
    assert other.price == pytest.approx(lifetime.price)


@pytest.mark.parametrize(
    "change",
    [
        {"held": [-1.0] * 34},
        {"lost": [float("nan")] * 34},
        {"gaps": [1.0]},
        {"reuse": 2},
        {"reuse": "x"},
    ],
)
def test_an_invalid_state_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Lifetime.restored({**Lifetime().export(), **change})


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.floats(-1e9, 1e12), st.booleans(), st.integers(0, 300)), max_size=80
    )
)
def test_any_order_of_events_keeps_the_values_in_range(
    steps: list[tuple[float, bool, int]],
) -> None:
    lifetime = Lifetime()
    for gap, held, calls in steps:
        lifetime.returned(gap)
        lifetime.found(gap, held=held)
        for _ in range(calls):
            lifetime.called()
        assert 0 <= lifetime.price <= 1
        assert lifetime.survival is None or 0 <= lifetime.survival <= 1
        assert lifetime.seconds is None or 1 <= lifetime.seconds <= 2**17

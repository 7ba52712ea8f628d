"""The stand-in's cache tiers and their counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_kvpolicy.standin.cache import Counts, Lookup, Tier, TieredCache


def keys(name: str, count: int) -> list[bytes]:
    return [f"{name}{index}".encode() for index in range(count)]


def cache(
    l1: int, l2: int | None = None, *, watermark: float = 1.0, ratio: float = 0.2
) -> tuple[TieredCache, Counts]:
    """Return a cache with room for this many chunks of one byte."""
    counts = Counts()
    second = None if l2 is None else Tier(l2, 1, watermark, ratio)
    return TieredCache(Tier(l1, 1, watermark, ratio), second, counts), counts


def test_a_lookup_stops_at_the_first_missing_chunk() -> None:
    tiers, _ = cache(100)
    tiers.store([*keys("a", 2), *keys("b", 2)])
    assert tiers.lookup([*keys("a", 2), b"other", *keys("b", 2)]) == Lookup(2, 0)
    assert tiers.lookup([b"other", *keys("a", 2)]) == Lookup(0, 0)


def test_a_chunk_is_written_once() -> None:
    tiers, counts = cache(100, 100)
    assert tiers.store(keys("a", 3)) == 3
    assert tiers.store(keys("a", 4)) == 1
    assert counts.total("l1_write_chunks") == counts.total("l2_store_completed_objects_chunks") == 4


def test_a_chunk_that_only_l2_has_is_a_hit_of_l2_and_moves_to_l1() -> None:
    tiers, counts = cache(100, 100)
    tiers.store(keys("a", 3))
    tiers.clear_l1()
    assert tiers.lookup(keys("a", 3)) == Lookup(0, 3)
    assert counts.total("l2_prefetch_load_completed_chunks") == 3
    assert counts.total("l1_write_chunks") == 6
    assert tiers.lookup(keys("a", 3)) == Lookup(3, 0)


def test_hits_after_a_gap_in_l1_are_hits_of_l2() -> None:
    tiers, _ = cache(100, 100)
    tiers.store(keys("a", 3))
    tiers.clear_l1()
    tiers.l1.add([b"a0", b"a2"])
    assert tiers.lookup(keys("a", 3)) == Lookup(1, 2)


def test_without_l2_an_evicted_chunk_is_gone() -> None:
    tiers, _ = cache(2, ratio=1.0)
    tiers.store(keys("a", 2))
    assert tiers.lookup(keys("a", 2)) == Lookup(0, 0)


def test_the_least_recently_used_prompt_is_evicted_from_its_end() -> None:
    tiers, counts = cache(10, watermark=0.8, ratio=0.25)
    tiers.store(keys("a", 4))
    tiers.store(keys("b", 3))
    tiers.lookup(keys("a", 1))
    tiers.store(keys("c", 1))
    assert counts.total("l1_evicted_chunks") == 2
    assert tiers.lookup(keys("a", 4)) == Lookup(2, 0)
    assert tiers.lookup(keys("b", 3)) == Lookup(3, 0)


def test_a_prompt_larger_than_the_tier_keeps_its_first_chunks() -> None:
    tiers, counts = cache(3, watermark=2.0)
    assert tiers.store(keys("a", 5)) == 3
    assert tiers.lookup(keys("a", 5)) == Lookup(3, 0)
    assert counts.total("l1_write_chunks") == 3


def test_a_series_exists_after_its_first_increment_even_by_zero() -> None:
    counts = Counts()
    assert counts.total("x") == 0
    assert "x" not in counts.values
    counts.add("x", 0, tier="l1")
    assert counts.values["x"] == {(("tier", "l1"),): 0}


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 12)), max_size=60),
    st.integers(1, 20),
    st.integers(0, 40),
)
def test_a_tier_never_exceeds_its_capacity_and_its_counters_add_up(
    operations: list[tuple[bool, int, int]], l1: int, l2: int
) -> None:
    tiers, counts = cache(l1, l2 or None, watermark=0.8)
    for is_store, prompt, length in operations:
        chunks = keys(f"p{prompt}-", length)
        found = tiers.lookup(chunks)
        assert 0 <= found.hit <= length
        if is_store:
            tiers.store(chunks[found.hit :])
        assert tiers.l1.used_bytes <= l1
        assert tiers.l2 is None or tiers.l2.used_bytes <= l2
    assert counts.total("l1_write_chunks") - counts.total("l1_evicted_chunks") == len(tiers.l1)


@pytest.mark.parametrize("used", [0, 7])
def test_no_eviction_is_due_below_the_watermark(used: int) -> None:
    tier = Tier(10, 1, 0.8, 0.5)
    tier.add(keys("a", used))
    assert tier.due() == 0


def test_an_eviction_takes_its_share_but_at_least_one_chunk() -> None:
    tier = Tier(10, 1, 0.8, 0.5)
    tier.add(keys("a", 8))
    assert tier.due() == 4
    assert Tier(1, 1, 0.0, 0.2).due() == 0
    small = Tier(2, 1, 0.5, 0.2)
    small.add([b"a"])
    assert small.due() == 1

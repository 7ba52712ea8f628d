"""The table of reuse by class: its size is bounded, and tables can be merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_kvpolicy.policy.adaptive.reuse_table import (
    MAX_CLASSES,
    MAX_LABELS,
    CallClass,
    ReuseTable,
    class_of,
)


@pytest.mark.parametrize(
    ("turns", "tokens", "seen", "text"),
    [
        (0, 10, 0.0, "chat, no turns, under 1k tokens, new"),
        (1, 1024, 0.1, "chat, 1 turn, 1k-2k tokens, 0-25% seen"),
        (3, 2047, 0.25, "chat, 2-3 turns, 1k-2k tokens, 25-50% seen"),
        (7, 40_000, 0.75, "chat, 4-7 turns, 32k-64k tokens, 75-100% seen"),
        (99, 40_000, 1.0, "chat, 8+ turns, 32k-64k tokens, 75-100% seen"),
    ],
)
def test_a_class_is_described_in_words(turns: int, tokens: int, seen: float, text: str) -> None:
    assert str(class_of("chat", turns, tokens, seen)) == text


@given(turns=st.integers(0, 10**9), tokens=st.integers(0, 10**7), seen=st.floats(0, 1))
def test_buckets_are_few(turns: int, tokens: int, seen: float) -> None:
    group = class_of("x" * 1000, turns, tokens, seen)
    assert len(group.label) == 64
    assert 0 <= group.turns <= 4
    assert 1 <= group.length <= 16
    assert 0 <= group.seen <= 4
    assert str(group)


def test_reuse_starts_from_the_overall_share_and_then_follows_the_class() -> None:
    table = ReuseTable()
    chat, batch = table.tally(CallClass("chat", 0, 1, 0)), table.tally(CallClass("batch", 0, 1, 0))
    assert table.reuse(chat, 1.0)[0] == pytest.approx(0.3)
    for _ in range(200):
        table.count(batch, 1.0, 0.0)
    assert table.reuse(chat, 1.0)[0] < 0.05
    for _ in range(200):
        table.count(chat, 1.0, 1.0)
    assert table.reuse(chat, 1.0)[0] > 0.95
    assert table.reuse(batch, 1.0)[0] < 0.02


def test_the_error_shrinks_with_more_calls_and_grows_if_few_returns_are_visible() -> None:
    table = ReuseTable()
    tally = table.tally(CallClass("", 0, 1, 0))
    share, few = table.reuse(tally, 1.0)
    assert share == pytest.approx(0.3)
    table.count(tally, 100.0, 30.0)
    share, error = table.reuse(tally, 1.0)
    assert share == pytest.approx(0.3)
    assert error < few / 4
    assert table.reuse(tally, 1 / 16)[1] == pytest.approx(4 * error)


def test_old_counts_fade() -> None:
    table = ReuseTable()
    tally = table.tally(CallClass("", 0, 1, 0))
    for _ in range(5000):
        table.count(tally, 1.0, 0.0)
    for _ in range(1500):
        table.count(tally, 1.0, 1.0)
    assert table.reuse(tally, 1.0)[0] > 0.6


def test_labels_and_classes_are_bounded() -> None:
    table = ReuseTable()
    for number in range(10_000):
        table.tally(CallClass(f"agent {number}", number % 5, 1 + number % 16, number % 4))
    assert len(table) <= MAX_CLASSES
    assert len({label for label, *_ in table.export()}) <= MAX_LABELS + 1
    assert table.tally(CallClass("one more", 0, 1, 0)) is table.tally(
        CallClass("and another", 0, 1, 0)
    )


def test_new_counts_are_returned_once_and_can_be_given_back() -> None:
    table = ReuseTable()
    group = CallClass("", 0, 1, 0)
    table.count(table.tally(group), 3.0, 1.0)
    assert table.take_new() == {group: (3.0, 1.0)}
    assert table.take_new() == {}
    table.give_back({group: (3.0, 1.0)})
    table.count(table.tally(group), 1.0, 0.0)
    assert table.take_new() == {group: (4.0, 1.0)}


def test_counts_of_a_fleet_replace_own_counts_and_new_counts_are_added() -> None:
    table = ReuseTable()
    group = CallClass("", 0, 1, 0)
    table.count(table.tally(group), 10.0, 5.0)
    table.take_new()
    table.count(table.tally(group), 2.0, 0.0)
    table.adopt([(group, 100.0, 90.0), (CallClass("bad", 0, 1, 0), float("inf"), 1.0)])
    assert table.export() == [("", 0, 1, 0, 102.0, 90.0)]

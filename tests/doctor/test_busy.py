"""The doctor on a server that others use at the same time: right, or inconclusive, and never a wrong "honoured"."""

from __future__ import annotations

from typing import Any

import pytest

from otel_kvpolicy.standin import StandIn

from .asking import found_in, notes, outcomes
from .traffic import Traffic

TOLD_APART: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"mode": "mp"}, ("ignored", "honoured", "honoured")),
    ({"mode": "mp", "honour_hints": False}, ("ignored", "ignored", "ignored")),
    ({"mode": "in_process"}, ("honoured", "ignored", "honoured")),
    ({"mode": "in_process", "honour_hints": False}, ("ignored", "ignored", "ignored")),
    ({"mode": "none"}, ("no_connector", "no_connector", "no_connector")),
]

COUNTED_ONLY: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"mode": "in_process", "prompt_tokens_details": False}, ("honoured", "ignored", "honoured")),
    (
        {"mode": "in_process", "prompt_tokens_details": False, "honour_hints": False},
        ("ignored", "ignored", "ignored"),
    ),
    ({"mode": "mp", "vendored_connector": True}, ("ignored", "ignored", "ignored")),
]


@pytest.mark.parametrize(
    ("options", "expected"), TOLD_APART, ids=[str(options) for options, _ in TOLD_APART]
)
def test_prompts_that_can_be_asked_after_are_told_apart(
    options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    with StandIn(**options) as server, Traffic(server.base_url, "stand-in") as traffic:
        found = found_in(server)
    assert traffic.sent > 10
    assert outcomes(found) == expected


@pytest.mark.parametrize(
    ("options", "truth"), COUNTED_ONLY, ids=[str(options) for options, _ in COUNTED_ONLY]
)
def test_counters_alone_say_nothing_wrong(options: dict[str, Any], truth: tuple[str, ...]) -> None:
    with StandIn(**options) as server, Traffic(server.base_url, "stand-in"):
        found = found_in(server, "--refresh", "0")
    said = outcomes(found)
    assert all(one in {right, "inconclusive"} for one, right in zip(said, truth, strict=True)), said
    if "inconclusive" in said:
        assert "quieter hour" in notes(found)


def test_other_traffic_is_told() -> None:
    with StandIn() as server, Traffic(server.base_url, "stand-in"):
        found = found_in(server)
    assert sum(trial["counted"] for trial in found["trials"] if trial["arm"] == "control") > 0
    assert "Other traffic was stored while this ran" in notes(found)

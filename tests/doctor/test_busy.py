"""The doctor on a server with other traffic: right or inconclusive, never a wrong "honoured"."""

from __future__ import annotations

from typing import Any

import pytest

from otel_kvpolicy.standin import StandIn

from .asking import codes, found_in, outcomes
from .traffic import Traffic

DISTINGUISHED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
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
    ("options", "expected"), DISTINGUISHED, ids=[str(options) for options, _ in DISTINGUISHED]
)
def test_evidence_on_single_prompts_is_right_despite_other_traffic(
    options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    with StandIn(**options) as server, Traffic(server.base_url, "stand-in") as traffic:
        found = found_in(server)
    assert traffic.sent > 10
    assert outcomes(found) == expected


@pytest.mark.parametrize(
    ("options", "truth"), COUNTED_ONLY, ids=[str(options) for options, _ in COUNTED_ONLY]
)
def test_counters_alone_are_right_or_inconclusive(
    options: dict[str, Any], truth: tuple[str, ...]
) -> None:
    with StandIn(**options) as server, Traffic(server.base_url, "stand-in"):
        found = found_in(server, "--refresh", "0")
    concluded = outcomes(found)
    for outcome, right in zip(concluded, truth, strict=True):
        assert outcome in {right, "inconclusive"}
    if found["outcome"] == "inconclusive":
        assert codes(found)[0] == "not_proven"


def test_other_traffic_is_reported() -> None:
    with StandIn() as server, Traffic(server.base_url, "stand-in"):
        found = found_in(server)
    assert sum(trial["counted"] for trial in found["trials"] if trial["arm"] == "control") > 0
    assert "other_traffic" in codes(found)

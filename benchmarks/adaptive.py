"""The cost of a decision by the adaptive rule, compared with the thresholds rule."""

from __future__ import annotations

from itertools import count
from typing import Any

from otel_kvpolicy import settings
from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
from otel_kvpolicy.policy.adaptive.rule import AdaptiveRule
from otel_kvpolicy.requests import reader_of

from .decision import body, decide
from .measure import interleave

MESSAGES = (2, 10, 100, 1_000)
KINDS = ("ascii", "tools", "images")
CALLS = 4_000


def run(*, rounds: int = 25) -> list[dict[str, Any]]:
    """Measure settings, reading and deciding with both rules.

    Each call ends with a new message, so that the adaptive rule has something to learn.
    """
    read = reader_of("/chat/completions")
    assert read is not None
    rows = []
    for kind in KINDS:
        for messages in MESSAGES:
            wire, rule, numbers = body(messages, kind), AdaptiveRule(), count()

            def fresh(wire: dict[str, Any] = wire, numbers: count[int] = numbers) -> dict[str, Any]:
                wire["messages"][-1] = {
                    "role": "user",
                    "content": f"question {next(numbers)} " * 60,
                }
                return wire

            def thresholds(fresh: Any = fresh) -> None:
                decide(fresh())

            def adaptive(fresh: Any = fresh, rule: AdaptiveRule = rule) -> None:
                wire = fresh()
                settings.current()
                text = read(wire)
                rule.decide(text, None, boundaries_of(wire, rule.key, text))

            calls = max(5, CALLS // messages)
            samples = interleave(
                {"thresholds": thresholds, "adaptive": adaptive, "body": fresh},
                rounds=rounds,
                repeat={"thresholds": calls, "adaptive": calls, "body": calls},
            )
            cost = {
                name: samples[name].median - samples["body"].median
                for name in ("thresholds", "adaptive")
            }
            rows.append(
                {
                    "body": kind,
                    "messages": messages,
                    "thresholds_us": cost["thresholds"] * 1e6,
                    "adaptive_us": cost["adaptive"] * 1e6,
                    "ratio": cost["adaptive"] / cost["thresholds"],
                }
            )
    return rows

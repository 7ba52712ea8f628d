"""A rule that has learned: calls of the agent ``batch`` never come back, conversations of the agent ``chat`` do."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.persistence import AdaptiveState
from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
from otel_kvpolicy.policy.adaptive.rule import AdaptiveRule
from otel_kvpolicy.requests import read_chat

SYSTEM = "You answer questions about the harbour. " * 100
"""About a thousand tokens: shorter than the fixed rule's threshold."""

_numbers = count()


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def question() -> list[dict[str, Any]]:
    """A call that goes on no other."""
    return [said("user", f"once {next(_numbers)} " + "pier " * 1000)]


def task() -> list[dict[str, Any]]:
    """The same under a system prompt that other tasks share."""
    return [said("system", SYSTEM), said("user", f"task {next(_numbers)} " + "mole " * 1000)]


def teach(rule: AdaptiveRule, clock: list[float]) -> None:
    """Makes some thousand calls, with nobody to answer them."""

    def ask(messages: list[dict[str, Any]], label: str) -> None:
        body = {"model": "stand-in", "messages": messages}
        rule.decide(read_chat(body), label, boundaries_of(body, rule.key))
        clock[0] += 1

    for _ in range(1000):
        messages = [said("system", "short"), *question()]
        ask(messages, "chat")
        ask([*messages, said("assistant", "yes"), said("user", "and then?")], "chat")
        ask(question(), "batch")
        ask(task(), "batch")


def active_state() -> AdaptiveState:
    """The state of the instrumentor that is on."""
    return KVPolicyInstrumentor()._runtime.adaptive


def taught_file(folder: Path) -> Path:
    """A state file of such a rule."""
    clock = [0.0]
    rule = AdaptiveRule(clock=lambda: clock[0])
    teach(rule, clock)
    path = folder / "learned.json"
    path.write_text(json.dumps(rule.export()))
    return path

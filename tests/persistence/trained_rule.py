"""A trained adaptive rule: calls of agent ``batch`` never come back, those of ``chat`` do."""

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
"""About a thousand tokens: less than the prefix threshold."""

_numbers = count()


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def question() -> list[dict[str, Any]]:
    """Return the messages of a call that continues no other."""
    return [message("user", f"once {next(_numbers)} " + "pier " * 1000)]


def task() -> list[dict[str, Any]]:
    """Return the messages of such a call, with a system prompt that other tasks share."""
    return [message("system", SYSTEM), message("user", f"task {next(_numbers)} " + "mole " * 1000)]


def train(rule: AdaptiveRule, clock: list[float]) -> None:
    """Make a few thousand calls without answers."""

    def ask(messages: list[dict[str, Any]], label: str) -> None:
        body = {"model": "stand-in", "messages": messages}
        rule.decide(read_chat(body), label, boundaries_of(body, rule.key))
        clock[0] += 1

    for _ in range(1000):
        messages = [message("system", "short"), *question()]
        ask(messages, "chat")
        ask([*messages, message("assistant", "yes"), message("user", "and then?")], "chat")
        ask(question(), "batch")
        ask(task(), "batch")


def active_state() -> AdaptiveState:
    """Return the state of the active instrumentor."""
    return KVPolicyInstrumentor()._runtime.adaptive


def trained_file(folder: Path) -> Path:
    """Return a state file of such a rule."""
    clock = [0.0]
    rule = AdaptiveRule(clock=lambda: clock[0])
    train(rule, clock)
    path = folder / "learned.json"
    path.write_text(json.dumps(rule.export()))
    return path

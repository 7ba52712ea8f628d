"""The gain of each optimization: the plain way and the fast way, measured in one run.

The plain ways are written here. The fast ways are the functions that the package uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from otel_kvpolicy import KVCacheDecision, settings
from otel_kvpolicy.policy import counting
from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
from otel_kvpolicy.requests import read_chat, tools

from .decision import body
from .measure import interleave

CALLS = 500


def run(*, rounds: int = 25) -> list[dict[str, Any]]:
    """Measure each plain way and each fast way, in microseconds."""
    return [_measured(name, plain, fast, rounds) for name, plain, fast in _changes()]


def _measured(
    name: str, plain: Callable[[], Any], fast: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    samples = interleave(
        {"plain": plain, "fast": fast}, rounds=rounds, repeat={"plain": CALLS, "fast": CALLS}
    )
    before, after = samples["plain"].median, samples["fast"].median
    return {
        "change": name,
        "plain_us": before * 1e6,
        "fast_us": after * 1e6,
        "ratio": before / after,
    }


def _changes() -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    short, long, tooled = body(2, "ascii"), body(100, "ascii"), body(10, "tools")
    current = settings.current()
    names = [settings.env_name(field) for field in settings.Settings.model_fields]
    raw: dict[str, Any] = {
        "min_prefix_tokens": "1024",
        "min_context_tokens": "2048",
        "chars_per_token": "4",
        "targets": "*.lan",
    }
    decided = current.policy.judge(read_chat(short))
    values = {**decided.model_dump()}
    trusted = {name: values[name] for name in ("cache_worthy", "score", "reasons", "signals")}
    text, given = read_chat(long), tooled["tools"]

    def read_plainly() -> Any:
        messages = long["messages"]
        return [counting.speaker(message) for message in messages], [
            counting.message_chars(message) for message in messages
        ]

    return [
        (
            "settings: compare the raw environment instead of os.environ.get",
            lambda: [os.environ.get(name) for name in names],
            settings.current,
        ),
        (
            "settings: validate on change instead of on every call",
            lambda: settings.Settings(**raw),
            settings.current,
        ),
        (
            "rule: keep it with its settings",
            lambda: settings.Settings.policy.func(current),
            lambda: current.policy,
        ),
        (
            "decision: build it without validation",
            lambda: KVCacheDecision(**values),
            lambda: KVCacheDecision.trusted(**trusted),
        ),
        (
            "body: read 100 plain messages without a Python loop",
            read_plainly,
            lambda: read_chat(long),
        ),
        (
            "tools: remember their sizes",
            lambda: counting.json_chars(given),
            lambda: tools.tool_chars(given),
        ),
        (
            "adaptive rule: reuse the character counts of the body",
            lambda: boundaries_of(long, 7),
            lambda: boundaries_of(long, 7, text),
        ),
    ]

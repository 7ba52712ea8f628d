"""What each thing that was done for speed gives: the plain way and ours, measured in one run.

The plain ways are written out here; ours are the functions that calls go through.
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
    """Microseconds of each plain way and of ours."""
    return [_measured(name, plain, ours, rounds) for name, plain, ours in _changes()]


def _measured(
    name: str, plain: Callable[[], Any], ours: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    samples = interleave(
        {"plain": plain, "ours": ours}, rounds=rounds, repeat={"plain": CALLS, "ours": CALLS}
    )
    before, after = samples["plain"].median, samples["ours"].median
    return {
        "change": name,
        "plain_us": before * 1e6,
        "ours_us": after * 1e6,
        "ratio": before / after,
    }


def _changes() -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    short, long, tooled = body(2, "ascii"), body(100, "ascii"), body(10, "tools")
    knobs = settings.current()
    names = [settings.env_name(field) for field in settings.Settings.model_fields]
    raw: dict[str, Any] = {
        "min_prefix_tokens": "1024",
        "min_context_tokens": "2048",
        "chars_per_token": "4",
        "targets": "*.lan",
    }
    decided = knobs.policy.judge(read_chat(short))
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
            "settings: raw environment, not os.environ.get",
            lambda: [os.environ.get(name) for name in names],
            settings.current,
        ),
        (
            "settings: validated when changed, not each time",
            lambda: settings.Settings(**raw),
            settings.current,
        ),
        (
            "rule: kept with its settings",
            lambda: settings.Settings.policy.func(knobs),
            lambda: knobs.policy,
        ),
        (
            "decision: made without validation",
            lambda: KVCacheDecision(**values),
            lambda: KVCacheDecision.trusted(**trusted),
        ),
        ("body: 100 plain messages at C speed", read_plainly, lambda: read_chat(long)),
        (
            "tools: sizes remembered by their outline",
            lambda: counting.json_chars(given),
            lambda: tools.tool_chars(given),
        ),
        (
            "adaptive rule: what was counted is not counted again",
            lambda: boundaries_of(long, 7),
            lambda: boundaries_of(long, 7, text),
        ),
    ]

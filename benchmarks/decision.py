"""The cost of a decision, compared with ``json.dumps`` of the body and with a naive rule."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

from otel_kvpolicy import KVCacheDecision, settings
from otel_kvpolicy.policy import CallText, ThresholdsRule
from otel_kvpolicy.requests import reader_of

from .measure import interleave

MESSAGES = (2, 10, 100, 1_000, 10_000)
CHARS = 1_000
KINDS = ("ascii", "tools", "images", "cjk")


def body(count: int, kind: str) -> dict[str, Any]:
    """Return a request body with ``count`` alternating messages of ``CHARS`` characters each."""
    text = ("汉字" if kind == "cjk" else "ab") * (CHARS // 2)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}

    def content() -> Any:
        fresh = "".join([text[:-1], "."])  # a new object, like a parsed string
        return [{"type": "text", "text": fresh}, image] if kind == "images" else fresh

    messages = [{"role": "system", "content": content()}]
    messages += [
        {"role": "user" if i % 2 == 0 else "assistant", "content": content()}
        for i in range(count - 1)
    ]
    wire: dict[str, Any] = {"model": "m", "messages": messages}
    if kind == "tools":
        parameters = {
            f"field_{i}": {"type": "string", "description": "what the field means to the tool"}
            for i in range(5)
        }
        wire["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": f"tool_{i}",
                    "description": "what the tool does, when to call it, and what it answers",
                    "parameters": {
                        "type": "object",
                        "properties": dict(parameters),
                        "required": ["field_0"],
                    },
                },
            }
            for i in range(20)
        ]
    return wire


def decide(wire: dict[str, Any]) -> Any:
    """Do what the instrumentation does for each call: get settings, read the body, decide."""
    current = settings.current()
    return current.policy.judge(reader_of("/chat/completions")(wire))  # type: ignore[misc]


def naive(wire: dict[str, Any]) -> KVCacheDecision:
    """Decide in a naive way.

    It parses the settings for each call, joins the history into one string, and validates the
    decision.
    """
    policy = ThresholdsRule(
        {
            "min_prefix_tokens": int(os.environ.get("KV_CACHE_MIN_PREFIX_TOKENS", "1024")),
            "min_context_tokens": int(os.environ.get("KV_CACHE_MIN_CONTEXT_TOKENS", "2048")),
            "min_history_turns": int(os.environ.get("KV_CACHE_MIN_HISTORY_TURNS", "1")),
        },
        enabled=os.environ.get("KV_CACHE_LAYERING", "true").lower() in {"true", "yes", "1"},
        chars_per_token=float(os.environ.get("KV_CACHE_CHARS_PER_TOKEN", "4.0")),
    )
    messages = wire["messages"]
    system = " ".join(
        str(message.get("content")) for message in messages if message.get("role") == "system"
    )
    history = " ".join(
        str(message.get("content")) for message in messages[:-1] if message.get("role") != "system"
    )
    text = CallText(
        prefix_chars=len(system),
        tool_chars=len(json.dumps(wire["tools"])) if "tools" in wire else 0,
        history_chars=len(history),
        user_chars=len(str(messages[-1].get("content"))),
        history_turns=len([message for message in messages if message.get("role") == "assistant"]),
    )
    return KVCacheDecision(**policy.judge(text).model_dump())


def run(*, rounds: int = 25) -> list[dict[str, Any]]:
    """Measure every kind of body at every length."""
    rows = []
    for kind in KINDS:
        for count in MESSAGES:
            wire = body(count, kind)
            calls = max(1, 4_000 // count)
            samples = interleave(
                {
                    "decide": partial(decide, wire),
                    "naive": partial(naive, wire),
                    "dumps": partial(json.dumps, wire),
                },
                rounds=rounds,
                repeat={"decide": calls, "naive": calls, "dumps": max(1, calls // 40)},
            )
            rows.append(
                {
                    "body": kind,
                    "messages": count,
                    "decide_us": samples["decide"].median * 1e6,
                    "decide_best_us": samples["decide"].best * 1e6,
                    "naive_us": samples["naive"].median * 1e6,
                    "dumps_us": samples["dumps"].median * 1e6,
                    "share_of_dumps": samples["decide"].median / samples["dumps"].median,
                    "naive_ratio": samples["naive"].median / samples["decide"].median,
                }
            )
    return rows

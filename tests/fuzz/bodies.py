"""Request bodies from a fuzzer's bytes: JSON, or values built of the fields that are read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Protocol

FIELDS = (
    "messages", "input", "instructions", "tools", "functions", "function", "name",
    "description", "parameters", "properties", "role", "content", "type", "text", "image_url",
    "url", "tool_calls", "arguments", "output", "refusal", "summary", "previous_response_id",
    "conversation", "model", "response", "usage", "prompt_tokens", "input_tokens",
    "completion_tokens", "prompt_tokens_details", "input_tokens_details", "cached_tokens",
    "choices", "finish_reason", "status", "id", "parts", "kind", "kv_transfer_params", "args",
    "thinking",
)  # fmt: skip

WORDS = (
    "system", "developer", "user", "assistant", "tool", "function", "text", "input_text",
    "output_text", "image_url", "function_call", "function_call_output", "reasoning", "message",
    "response.created", "stop", "request", "",
)  # fmt: skip

MAX_DEPTH = 12
MAX_ITEMS = 6


class Chooser(Protocol):
    """The methods of atheris's ``FuzzedDataProvider`` that are used here."""

    def ConsumeIntInRange(self, low: int, high: int) -> int: ...
    def ConsumeUnicode(self, count: int) -> str: ...
    def ConsumeBytes(self, count: int) -> bytes: ...
    def ConsumeFloat(self) -> float: ...
    def ConsumeInt(self, count: int) -> int: ...


def parse(data: bytes) -> Any:
    """Parse the bytes as JSON.

    Raises:
        ValueError: the bytes are not JSON.
        RecursionError: the values nest deeper than Python's parser goes.
    """
    return json.loads(data)


def body_of(choose: Chooser) -> dict[Any, Any]:
    """Build a body that a caller could write, mostly with fields that the readers look at."""
    return _fields(choose, 0)


def _value(choose: Chooser, depth: int) -> Any:
    kind = choose.ConsumeIntInRange(0, 12 if depth < MAX_DEPTH else 6)
    if kind > 6:
        return _nested(choose, kind, depth)
    if kind == 0:
        return choose.ConsumeUnicode(choose.ConsumeIntInRange(0, 8))
    if kind == 1:
        return choose.ConsumeBytes(choose.ConsumeIntInRange(0, 4))
    if kind == 2:
        return choose.ConsumeFloat()
    if kind == 3:
        return choose.ConsumeInt(9)
    return (WORDS[choose.ConsumeIntInRange(0, len(WORDS) - 1)], None, True)[kind - 4]


def _nested(choose: Chooser, kind: int, depth: int) -> Any:
    if kind < 9:
        items = [_value(choose, depth + 1) for _ in range(choose.ConsumeIntInRange(0, MAX_ITEMS))]
        return items if kind == 7 else tuple(items)
    fields = _fields(choose, depth)
    if kind == 12:
        return SimpleNamespace(
            **{name: value for name, value in fields.items() if isinstance(name, str)}
        )
    return fields


def _fields(choose: Chooser, depth: int) -> dict[Any, Any]:
    return {
        _key(choose): _value(choose, depth + 1)
        for _ in range(choose.ConsumeIntInRange(0, MAX_ITEMS))
    }


def _key(choose: Chooser) -> Any:
    index = choose.ConsumeIntInRange(0, len(FIELDS) + 1)
    if index < len(FIELDS):
        return FIELDS[index]
    return choose.ConsumeInt(1) if index == len(FIELDS) else choose.ConsumeUnicode(4)

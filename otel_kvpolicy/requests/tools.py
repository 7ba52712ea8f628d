"""Counts tool definitions, which chat templates write into the head of the prompt as JSON."""

from __future__ import annotations

from typing import Any, Final

from ..policy.counting import json_chars

_MAX_SIZES: Final = 1024
_sizes: dict[tuple[Any, ...], int] = {}


def tool_chars(tools: Any) -> int:
    """Return the characters of a request's ``tools``; 0 if they are not a list.

    An agent sends the same tools with every call, and walking their schemas would cost more than
    the rest of the decision. So their size is remembered by a cheap outline: names, lengths of
    descriptions, numbers of parameters. Tools with the same outline count alike even if they
    differ, which is accurate enough for an estimate in characters.
    """
    if not isinstance(tools, (list, tuple)):
        return 0
    try:
        outline = _outline(tools)
        chars = _sizes.get(outline)
    except (KeyError, TypeError, AttributeError):  # such as built-in tools of the Responses API
        return json_chars(tools)
    if chars is None:
        if len(_sizes) >= _MAX_SIZES:
            _sizes.clear()
        chars = _sizes[outline] = json_chars(tools)
    return chars


def _outline(tools: Any) -> tuple[Any, ...]:
    outline: list[Any] = []
    for tool in tools:
        function = tool.get("function", tool)
        outline += (
            function["name"],
            len(function["description"]),
            len(function["parameters"]["properties"]),
            len(tool),
        )
    return tuple(outline)

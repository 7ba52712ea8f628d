"""Tool definitions -> characters. Chat templates write them into the head of the prompt as JSON, the same with each call of an agent."""

from __future__ import annotations

from typing import Any, Final

from ..policy.signals import json_chars

_MAX_KNOWN: Final = 1024
_known: dict[tuple[Any, ...], int] = {}


def tool_chars(tools: Any) -> int:
    """Characters of a request's ``tools``; anything but a list counts nothing.

    An agent sends the same tools with each call, and walking their schemas would cost more than the rest of the decision. So sizes are
    remembered by what is cheap to look at: names, lengths of descriptions, numbers of parameters. Tools that agree in all of these and
    yet differ in size count alike, which is well within what an estimate in characters is worth.
    """
    if not isinstance(tools, (list, tuple)):
        return 0
    try:
        outline = _outline(tools)
        known = _known.get(outline)
    except (
        KeyError,
        TypeError,
        AttributeError,
    ):  # tools of another kind, such as the Responses API's built-in ones
        return json_chars(tools)
    if known is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        known = _known[outline] = json_chars(tools)
    return known


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

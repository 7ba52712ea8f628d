"""The body of ``/chat/completions`` -> what is counted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..policy.signals import CallText, Outlined, call_chars, content_chars, message_chars, speaker
from .tools import tool_chars

SYSTEM_ROLES: Final = ("system", "developer")
_REPLY: Final = "assistant"


def read_chat(body: Mapping[Any, Any]) -> CallText:
    """Counts a chat completion request.

    The prefix is the leading system and developer messages and the tools; the user's part is what follows the last model reply; the
    history is what lies between. O(messages). Messages given as a generator are the client's to read and count nothing.
    """
    messages = body.get("messages")
    if not isinstance(messages, (list, tuple)):
        messages = ()
    try:
        roles = [message["role"] for message in messages]
        sizes = [
            len(content) if type(content := message["content"]) is str else content_chars(content)
            for message in messages
        ]
        if "tool" in roles:  # only then has a reply called any
            for at, role in enumerate(roles):
                if role == _REPLY and "tool_calls" in messages[at]:
                    sizes[at] += call_chars(messages[at]["tool_calls"])
    except (
        KeyError,
        TypeError,
        IndexError,
    ):  # a message without content, or one that is no mapping
        roles, sizes = _any_shape(messages)
    tools = body.get("tools") or body.get("functions")
    return _divide(roles, sizes, tool_chars(tools) if tools else 0)


def _any_shape(messages: Sequence[Any]) -> tuple[list[Any], list[int]]:
    return [speaker(message) for message in messages], [
        message_chars(message) for message in messages
    ]


def _divide(roles: list[Any], sizes: list[int], tools: int) -> CallText:
    start = 0
    for role in roles:
        if role not in SYSTEM_ROLES:
            break
        start += 1
    turns = roles.count(_REPLY)
    end = len(roles) - roles[::-1].index(_REPLY) if turns else start
    text = Outlined(sum(sizes[:start]), tools, sum(sizes[start:end]), 0, sum(sizes[end:]), turns)
    text.roles, text.sizes = roles, sizes
    return text

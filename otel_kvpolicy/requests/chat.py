"""Counts the body of ``/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..policy.counting import (
    ASSISTANT_ROLE,
    SYSTEM_ROLES,
    call_chars,
    content_chars,
    message_chars,
    speaker,
)
from ..policy.signals import CallText, CountedText
from .tools import tool_chars


def read_chat(body: Mapping[Any, Any]) -> CallText:
    """Count a chat completion request.

    The prefix is the leading system and developer messages and the tools. The user part is what
    follows the last model reply. The history lies between. Takes O(messages). Messages given as a
    generator count nothing, because only the client may read it.
    """
    messages = body.get("messages")
    if not isinstance(messages, (list, tuple)):
        messages = ()
    others: list[Any] = []
    try:
        roles = [message["role"] for message in messages]
        sizes = [
            len(content)
            if type(content := message["content"]) is str
            else _other_chars(content, others)
            for message in messages
        ]
        has_results = "tool" in roles
        if has_results:  # only then has a reply called a tool
            for index, role in enumerate(roles):
                if role == ASSISTANT_ROLE and "tool_calls" in messages[index]:
                    sizes[index] += call_chars(messages[index]["tool_calls"])
    except (KeyError, TypeError, IndexError):  # a message without content, or not a mapping
        roles, sizes = _any_shape(messages)
        others, has_results = list(messages), "tool" in roles
    tools = body.get("tools") or body.get("functions")
    text = _divide(roles, sizes, tool_chars(tools) if tools else 0)
    text.others, text.has_results = others, has_results
    return text


def _other_chars(content: Any, others: list[Any]) -> int:
    """Count a content that is not a plain string, and keep it in ``others``."""
    others.append(content)
    return content_chars(content)


def _any_shape(messages: Sequence[Any]) -> tuple[list[Any], list[int]]:
    return [speaker(message) for message in messages], [
        message_chars(message) for message in messages
    ]


def _divide(roles: list[Any], sizes: list[int], tools: int) -> CountedText:
    """Divide the messages into prefix, history and user part."""
    start = 0
    for role in roles:
        if role not in SYSTEM_ROLES:
            break
        start += 1
    turns = roles.count(ASSISTANT_ROLE)
    end = len(roles) - roles[::-1].index(ASSISTANT_ROLE) if turns else start
    text = CountedText(sum(sizes[:start]), tools, sum(sizes[start:end]), 0, sum(sizes[end:]), turns)
    text.roles, text.sizes = roles, sizes
    return text

"""The body of ``/chat/completions`` -> what is counted of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..policy.signals import CallText, call_chars, content_chars, message_chars, speaker
from .tools import tool_chars

__all__ = ["SYSTEM_ROLES", "read_chat"]

SYSTEM_ROLES: Final = frozenset({"system", "developer"})


def read_chat(body: Mapping[Any, Any]) -> CallText:
    """Counts a chat completion request.

    The prefix is the leading system and developer messages and the tools; the user's part is what follows the last model reply; the
    history is what lies between. One pass, O(messages). Messages given as a generator are the client's to read and count nothing.
    """
    prefix = history = since_reply = turns = 0
    leading = True
    messages = body.get("messages")
    for message in messages if isinstance(messages, (list, tuple)) else ():
        if type(message) is dict:
            role = message.get("role")
            content = message.get("content")
            chars = len(content) if type(content) is str else content_chars(content)
            if "tool_calls" in message:
                chars += call_chars(message["tool_calls"])
        else:
            role = speaker(message)
            chars = message_chars(message)
        if role == "assistant":
            turns += 1
            history += since_reply + chars
            since_reply = 0
            leading = False
        elif leading and role in SYSTEM_ROLES:
            prefix += chars
        else:
            since_reply += chars
            leading = False
    tools = body.get("tools") or body.get("functions")
    return CallText(prefix, tool_chars(tools) if tools else 0, history, 0, since_reply, turns)

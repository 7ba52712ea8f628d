"""Counts the body of ``/responses``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..policy.counting import SYSTEM_ROLES, content_chars, is_reply_item
from ..policy.signals import CallText
from .tools import tool_chars


def read_responses(body: Mapping[Any, Any]) -> CallText:
    """Count a Responses API request.

    ``instructions`` and leading system or developer items are the prefix. One model reply may be
    several items (reasoning, function calls, a message): a run of them is one turn.
    ``previous_response_id`` and ``conversation`` stand for at least one turn. The server keeps its
    text, so its length is unknown here.
    """
    prefix = content_chars(body.get("instructions"))
    history = since_reply = turns = 0
    if body.get("previous_response_id") or body.get("conversation"):
        turns = 1
    leading, in_reply = True, False
    given = body.get("input")
    if isinstance(given, str):
        since_reply = len(given)
    for item in given if isinstance(given, (list, tuple)) else ():
        role, kind = _field(item, "role"), _field(item, "type")
        chars = _item_chars(item, kind)
        if is_reply_item(role, kind):
            turns += not in_reply
            history += since_reply + chars
            since_reply, leading, in_reply = 0, False, True
            continue
        in_reply = False
        if leading and role in SYSTEM_ROLES:
            prefix += chars
        else:
            since_reply += chars
            leading = False
    tools = body.get("tools")
    return CallText(prefix, tool_chars(tools) if tools else 0, history, 0, since_reply, turns)


def _field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _item_chars(item: Any, kind: Any) -> int:
    """Count an untyped message (``role`` and ``content``) or a typed item with text fields."""
    return content_chars(_field(item, "content")) if kind is None else content_chars(item)

"""Request bodies -> the parts that a rule's public ``decide`` takes, for rules of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..policy.signals import speaker


def parts_of(body: Mapping[Any, Any]) -> dict[str, Any]:
    """``system_prompt``, ``user_prompt``, ``message_history`` and ``tools`` of a chat completion or Responses request."""
    given = body.get("messages", body.get("input"))
    messages = (
        list(given)
        if isinstance(given, (list, tuple))
        else []
        if given is None
        else [{"role": "user", "content": given}]
    )
    roles = [speaker(message) for message in messages]
    start = next(
        (at for at, role in enumerate(roles) if role not in {"system", "developer"}), len(messages)
    )
    end = next(
        (at + 1 for at in range(len(messages) - 1, start - 1, -1) if roles[at] == "assistant"),
        start,
    )
    instructions = [body["instructions"]] if isinstance(body.get("instructions"), str) else []
    return {
        "system_prompt": [*instructions, *map(_content, messages[:start])],
        "message_history": messages[start:end],
        "user_prompt": [_content(message) for message in messages[end:]],
        "tools": body.get("tools"),
    }


def _content(message: Any) -> Any:
    return (
        message.get("content", message)
        if isinstance(message, Mapping)
        else getattr(message, "content", message)
    )

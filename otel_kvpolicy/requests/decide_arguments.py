"""Turns a request body into arguments of ``KVCacheLayeringPolicy.decide``, for subclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..policy.counting import ASSISTANT_ROLE, SYSTEM_ROLES, speaker


def decide_arguments(body: Mapping[Any, Any]) -> dict[str, Any]:
    """Return ``system_prompt``, ``user_prompt``, ``message_history`` and ``tools`` of a request.

    Args:
        body: a chat completion or Responses request.
    """
    given = body.get("messages", body.get("input"))
    if isinstance(given, (list, tuple)):
        messages = list(given)
    else:
        messages = [] if given is None else [{"role": "user", "content": given}]
    roles = [speaker(message) for message in messages]
    start = next(
        (index for index, role in enumerate(roles) if role not in SYSTEM_ROLES), len(messages)
    )
    end = next(
        (
            index + 1
            for index in range(len(messages) - 1, start - 1, -1)
            if roles[index] == ASSISTANT_ROLE
        ),
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
    if isinstance(message, Mapping):
        return message.get("content", message)
    return getattr(message, "content", message)

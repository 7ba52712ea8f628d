"""Tool definitions -> characters. Chat templates write them into the head of the prompt as JSON, the same with each call of an agent."""

from __future__ import annotations

from typing import Any

from ..policy.signals import json_chars

__all__ = ["tool_chars"]


def tool_chars(tools: Any) -> int:
    """Characters of a request's ``tools``; anything but a list counts nothing."""
    return json_chars(tools) if isinstance(tools, (list, tuple)) else 0

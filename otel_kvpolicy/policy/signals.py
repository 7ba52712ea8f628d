"""The signals of one call: how long each part of its prompt is, and how often the model replied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple


class CallText(NamedTuple):
    """Characters in each part of a call, and the model replies before it."""

    prefix_chars: int = 0
    tool_chars: int = 0
    history_chars: int = 0
    rag_chars: int = 0
    user_chars: int = 0
    history_turns: int = 0


class CountedText(CallText):
    """A call text that keeps the counts of each message, so that they are not counted twice.

    Attributes:
        roles: role of each message.
        sizes: characters of each message.
        others: contents that are not plain strings, such as lists of parts.
        has_results: True if a message has the result of a tool.
    """

    roles: Sequence[Any]
    sizes: Sequence[int]
    others: Sequence[Any]
    has_results: bool


def total_chars(text: CallText) -> int:
    """Return the characters of a whole prompt."""
    return (
        text.prefix_chars + text.tool_chars + text.history_chars + text.rag_chars + text.user_chars
    )


SIGNALS: Final = (
    "prefix_tokens",
    "tool_tokens",
    "history_tokens",
    "rag_tokens",
    "user_tokens",
    "total_tokens",
    "history_turns",
)
"""Keys of ``KVCacheDecision.signals``. ``prefix_tokens`` includes ``tool_tokens``; ``total_tokens``
is the sum of prefix, history, RAG and user tokens."""


def estimate(text: CallText, chars_per_token: float) -> dict[str, int]:
    """Return the signals of a call. The tokens of a part are ``floor(chars / chars_per_token)``.

    Args:
        text: characters and turns of the call.
        chars_per_token: characters that count as one token, at least 1.
    """
    prefix_chars, tool_chars, history_chars, rag_chars, user_chars, turns = text
    tools = int(tool_chars / chars_per_token) if tool_chars else 0
    prefix = tools + int(prefix_chars / chars_per_token) if prefix_chars else tools
    history = int(history_chars / chars_per_token) if history_chars else 0
    rag = int(rag_chars / chars_per_token) if rag_chars else 0
    user = int(user_chars / chars_per_token) if user_chars else 0
    return {
        "prefix_tokens": prefix,
        "tool_tokens": tools,
        "history_tokens": history,
        "rag_tokens": rag,
        "user_tokens": user,
        "total_tokens": prefix + history + rag + user,
        "history_turns": turns,
    }

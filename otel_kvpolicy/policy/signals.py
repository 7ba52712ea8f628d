"""What is counted of one call: characters of its parts, then estimated tokens.

Counting never raises and never copies text: it adds up ``len`` of the strings it meets. Images, audio and files count nothing, since
neither the length of a URL nor that of base64 says how many tokens the model spends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["CallText", "Signals", "content_chars", "history_text", "json_chars", "tools_chars"]

# A body may be nested without end; what lies deeper than any real message is not worth a RecursionError.
_MAX_DEPTH: Final = 24

# Content-part fields that carry prompt text, by the part types of chat completions, responses and pydantic-ai.
_TEXT_FIELDS: Final = ("text", "content", "refusal", "thinking", "output", "arguments", "summary", "input")
_MEDIA_MARKS: Final = ("image", "audio", "file", "video", "document", "binary", "screenshot")


class CallText(NamedTuple):
    """Characters of the parts of one call, and the model replies before it."""

    prefix_chars: int = 0
    tool_chars: int = 0
    history_chars: int = 0
    rag_chars: int = 0
    user_chars: int = 0
    history_turns: int = 0


class Signals(NamedTuple):
    """Estimated tokens of the parts of one call. ``prefix_tokens`` includes ``tool_tokens``."""

    prefix_tokens: int
    tool_tokens: int
    history_tokens: int
    rag_tokens: int
    user_tokens: int
    total_tokens: int
    history_turns: int

    @classmethod
    def of(cls, text: CallText, chars_per_token: float) -> Signals:
        """``floor(chars / chars_per_token)`` for each part; the total is their sum (tools are in the prefix already)."""
        prefix = int((text.prefix_chars + text.tool_chars) / chars_per_token)
        history = int(text.history_chars / chars_per_token)
        rag = int(text.rag_chars / chars_per_token)
        user = int(text.user_chars / chars_per_token)
        return cls(
            prefix, int(text.tool_chars / chars_per_token), history, rag, user, prefix + history + rag + user, text.history_turns
        )


def content_chars(content: Any, depth: int = 0) -> int:
    """Characters of prompt text in a message's content: a string, a list of parts, a part (mapping or object); anything else is 0."""
    if type(content) is str:
        return len(content)
    if content is None or depth > _MAX_DEPTH:
        return 0
    if isinstance(content, str):
        return len(content)
    if isinstance(content, Mapping):
        return _part_chars(content, depth)
    if isinstance(content, (list, tuple)):
        return sum(content_chars(part, depth + 1) for part in content)
    if isinstance(content, (bytes, bytearray, memoryview, int, float)):
        return 0
    return _object_chars(content, depth)


def _is_media(kind: Any) -> bool:
    return isinstance(kind, str) and any(mark in kind for mark in _MEDIA_MARKS)


def _part_chars(part: Mapping[Any, Any], depth: int) -> int:
    kind = part.get("type")
    if _is_media(kind) and kind != "file_search_call":
        return 0
    return sum(content_chars(part[field], depth + 1) for field in _TEXT_FIELDS if field in part)


def _object_chars(part: Any, depth: int) -> int:
    """An object of some library: a pydantic-ai part, an openai response item. Read by attribute, never by dumping it."""
    if _is_media(getattr(part, "kind", None)) or _is_media(getattr(part, "type", None)) or hasattr(part, "media_type"):
        return 0
    for field in ("content", "text", "args", "arguments"):
        value = getattr(part, field, None)
        if value is not None:
            return json_chars(value, depth + 1) if isinstance(value, Mapping) else content_chars(value, depth + 1)
    return 0


def json_chars(value: Any, depth: int = 0) -> int:
    """About the length of ``json.dumps(value)``, by adding up, without building the string. Never raises."""
    if type(value) is str:
        return len(value) + 2
    if depth > _MAX_DEPTH:
        return 0
    if isinstance(value, Mapping):
        return 2 + sum(json_chars(key, depth + 1) + json_chars(item, depth + 1) + 4 for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return 2 + sum(json_chars(item, depth + 1) + 2 for item in value)
    if isinstance(value, str):
        return len(value) + 2
    if value is None or isinstance(value, (bool, int, float)):
        return 4
    return 0


def tools_chars(tools: Any) -> int:
    """Characters that tool definitions add to the prompt: chat templates write them into the prompt's head, as JSON."""
    return json_chars(tools) if isinstance(tools, (list, tuple)) and tools else 0


def message_chars(message: Any) -> int:
    """Characters of one earlier message: its content, its tool calls, or the parts of a pydantic-ai message."""
    if isinstance(message, Mapping):
        chars = content_chars(message.get("content"))
        calls = message.get("tool_calls")
        return chars + sum(_call_chars(call) for call in calls) if isinstance(calls, (list, tuple)) else chars
    parts = getattr(message, "parts", None)
    if isinstance(parts, (list, tuple)):
        return sum(content_chars(part) for part in parts)
    return content_chars(message)


def _call_chars(call: Any) -> int:
    function = call.get("function") if isinstance(call, Mapping) else getattr(call, "function", None)
    if isinstance(function, Mapping):
        return content_chars(function.get("name")) + content_chars(function.get("arguments"))
    return content_chars(getattr(function, "name", None)) + content_chars(getattr(function, "arguments", None))


def _speaker(message: Any) -> str | None:
    """Whose message it is, where one can tell: an OpenAI ``role`` or a pydantic-ai ``kind``."""
    kind = message.get("role") if isinstance(message, Mapping) else (getattr(message, "kind", None) or getattr(message, "role", None))
    return kind if isinstance(kind, str) else None


_REPLY: Final = frozenset({"assistant", "response", "model"})


def history_text(message_history: Any) -> tuple[int, int]:
    """Characters and turns of earlier messages.

    A turn is one earlier model reply. Where no message says whose it is, the number of messages. Odd shapes count as zero.
    """
    if isinstance(message_history, (str, bytes, bytearray, Mapping)) or not isinstance(message_history, Sequence):
        return 0, 0
    chars = replies = 0
    told = False
    for message in message_history:
        chars += message_chars(message)
        speaker = _speaker(message)
        if speaker is not None:
            told = True
            replies += speaker in _REPLY
    return chars, replies if told else len(message_history)


def text_chars(texts: Any) -> int:
    """Characters of a prompt given as a string or as several of them."""
    if isinstance(texts, Iterable) and not isinstance(texts, (str, bytes, Mapping, list, tuple)):
        return 0  # a generator is the caller's to read
    return content_chars(texts)

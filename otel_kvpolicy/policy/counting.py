"""Counts the prompt characters in content of any shape.

Content can be OpenAI mappings, pydantic-ai messages, or objects of other libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_MAX_VALUES: Final = 100_000
"""Values to count in the content of one message, or in one list of tools. Counting stops at this
limit, because a call that long is stored anyway."""

# Fields that carry prompt text, in the content parts and items of chat completions and responses,
# and in the parts of pydantic-ai messages.
_TEXT_FIELDS: Final = (
    "text",
    "content",
    "refusal",
    "thinking",
    "output",
    "arguments",
    "summary",
    "name",
    "args",
)
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
MEDIA_PARTS: Final = (
    "image_url",
    "input_image",
    "input_audio",
    "file",
    "input_file",
    "audio_url",
    "video_url",
)
"""Types of the content parts that are not text."""

SYSTEM_ROLES: Final = ("system", "developer")
"""Roles of the messages that form the stable head of a prompt."""

ASSISTANT_ROLE: Final = "assistant"

REPLY_ROLES: Final = frozenset({ASSISTANT_ROLE, "response", "model"})
"""Roles of model replies: OpenAI's ``role``, pydantic-ai's ``kind``, Gemini's ``role``."""


def content_chars(content: Any) -> int:
    """Return the prompt characters in the content of a message.

    Args:
        content: a string, a list of parts, or a single part (mapping or object). Anything else
            counts 0.
    """
    if type(content) is str:
        return len(content)
    if type(content) is not list:
        return 0 if content is None else _count(content, _MAX_VALUES)[0]
    chars, budget = 0, _MAX_VALUES
    for part in content:  # the most common shapes first, then any other shape
        kind = part.get("type") if type(part) is dict else None
        if kind in _TEXT_PARTS and type(part.get("text")) is str:
            chars += len(part["text"])
        elif kind not in MEDIA_PARTS:
            part_chars, budget = _count(part, budget)
            chars += part_chars
            if not budget:
                break
    return chars


def json_chars(value: Any) -> int:
    """Return about the length of ``json.dumps(value)`` without building the string."""
    return _count(value, _MAX_VALUES, _IN_JSON)[0]


_IN_TEXT: Final = 0
_IN_JSON: Final = 2
"""Characters around a string. A number, ``true`` or ``null`` counts as twice that many."""


def _count(content: Any, budget: int, around: int = _IN_TEXT) -> tuple[int, int]:
    """Return the characters in ``content`` and how much of ``budget`` is left.

    Walks depth first, the way JSON is written, and remembers only the path down. A value that
    contains itself ends the walk with a budget of 0.
    """
    chars = 0
    # The values that contain the current one, each with what is left to visit of it.
    parents: dict[int, tuple[Any, Iterator[Any], int]] = {}
    values = iter((content,))
    while True:
        for value in values:
            if isinstance(value, str):
                chars += len(value) + around
            elif value is None or isinstance(value, (int, float)):
                chars += 2 * around
            elif id(value) in parents:
                return chars, 0
            else:
                parents[id(value)] = value, values, around
                more, inside, around = _open(value, around)
                chars += more
                if len(inside) > budget:
                    inside = inside[:budget]
                budget -= len(inside)
                values = iter(inside)
                break
        else:
            if not parents:
                return chars, budget
            _, values, around = parents.popitem()[1]


def _open(value: Any, around: int) -> tuple[int, Sequence[Any], int]:
    """Return the characters between the parts of a value, the parts, and what surrounds each."""
    if type(value) is dict or isinstance(value, Mapping):
        if around or not isinstance(value.get("type"), str):
            # Data, such as the result of a tool: it reaches the prompt as JSON.
            return 4 * len(value) or 2, [*value, *value.values()], _IN_JSON
        return 0, [value[field] for field in _TEXT_FIELDS if field in value], around
    if isinstance(value, (list, tuple)):
        return around and (2 * len(value) or 2), value, around
    if around or isinstance(value, (bytes, bytearray, memoryview)):
        return 0, (), around
    return 0, _text_attributes(value), around


def _text_attributes(value: Any) -> list[Any]:
    """Return the attributes of a library's object that may hold prompt text, without dumping it."""
    return [
        attribute
        for field in _TEXT_FIELDS
        if not callable(attribute := getattr(value, field, None))
    ]


def message_chars(message: Any) -> int:
    """Return the characters of a message: its content and tool calls, or its pydantic-ai parts."""
    if isinstance(message, Mapping):
        chars = content_chars(message.get("content"))
        calls = message.get("tool_calls")
    else:
        parts = getattr(message, "parts", None)
        if isinstance(parts, (list, tuple)):
            return content_chars(parts)
        chars = content_chars(message)
        calls = getattr(message, "tool_calls", None)
    return chars + call_chars(calls) if calls else chars


def call_chars(calls: Any) -> int:
    """Return the characters of a reply's tool calls: function names and arguments."""
    if not isinstance(calls, (list, tuple)):
        return 0
    functions = [
        call.get("function") if isinstance(call, Mapping) else getattr(call, "function", None)
        for call in calls
    ]
    return sum(
        content_chars(function.get("name")) + content_chars(function.get("arguments"))
        if isinstance(function, Mapping)
        else content_chars(function)
        for function in functions
    )


def speaker(message: Any) -> str | None:
    """Return the role of a message (OpenAI's ``role`` or pydantic-ai's ``kind``), or None."""
    role = (
        message.get("role")
        if isinstance(message, Mapping)
        else getattr(message, "kind", None) or getattr(message, "role", None)
    )
    return role if isinstance(role, str) else None


def is_reply_item(role: Any, kind: Any) -> bool:
    """Return True if the model made an item of a Responses request.

    Items without a role are the model's (reasoning, function calls) unless they are outputs.

    Args:
        role: role of the item, if it has one.
        kind: type of the item, if it has one.
    """
    if role is None:
        return isinstance(kind, str) and not kind.endswith("_output")
    return bool(role == ASSISTANT_ROLE)


def history_text(message_history: Any) -> tuple[int, int]:
    """Return the characters and turns of earlier messages.

    A turn is one earlier model reply. If no message has a role, every message counts as a turn.
    Values that are not a sequence of messages count 0.
    """
    if isinstance(message_history, (str, bytes, bytearray, Mapping)) or not isinstance(
        message_history, Sequence
    ):
        return 0, 0
    chars = replies = 0
    has_roles = False
    for message in message_history:
        chars += message_chars(message)
        role = speaker(message)
        if role is not None:
            has_roles = True
            replies += role in REPLY_ROLES
    return chars, replies if has_roles else len(message_history)

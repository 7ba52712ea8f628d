"""What is counted of one call: characters of its parts, then estimated tokens.

Counting never raises and never copies text: it adds up ``len`` of the strings it meets, visits a bounded number of values, ends where one
holds itself (which nobody can send) and does not recurse. Images, audio and files count nothing: neither the length of a URL nor that of
base64 says how many tokens the model spends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

_MAX_VALUES: Final = 100_000
"""Values visited in one content with all its parts, or in one tool list. What is left uncounted beyond it changes no verdict: so much is
stored anyway."""

# Fields that carry prompt text, in the content parts and items of chat completions and responses, and in the parts of pydantic-ai.
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
_MEDIA_PARTS: Final = (
    "image_url",
    "input_image",
    "input_audio",
    "file",
    "input_file",
    "audio_url",
    "video_url",
)

REPLY_ROLES: Final = frozenset({"assistant", "response", "model"})
"""Who speaks in a model reply: OpenAI's ``role``, pydantic-ai's ``kind``, Gemini's ``role``."""


class CallText(NamedTuple):
    """Characters of the parts of one call, and the model replies before it."""

    prefix_chars: int = 0
    tool_chars: int = 0
    history_chars: int = 0
    rag_chars: int = 0
    user_chars: int = 0
    history_turns: int = 0


class Outlined(CallText):
    """The same with what it was counted of, so that nobody who needs it counts again.

    Attributes:
        roles: whose each message is.
        sizes: characters of each message.
    """

    roles: Sequence[Any]
    sizes: Sequence[int]


SIGNALS: Final = (
    "prefix_tokens",
    "tool_tokens",
    "history_tokens",
    "rag_tokens",
    "user_tokens",
    "total_tokens",
    "history_turns",
)
"""What a decision's ``signals`` hold. ``prefix_tokens`` includes ``tool_tokens``; ``total_tokens`` is prefix, history, rag and user."""


def estimate(text: CallText, chars_per_token: float) -> dict[str, int]:
    """The signals of a call: ``floor(chars / chars_per_token)`` for each part, and the turns."""
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


def content_chars(content: Any) -> int:
    """Characters of prompt text in a message's content: a string, a list of parts, or a part (mapping or object); anything else is 0."""
    if type(content) is str:
        return len(content)
    if type(content) is not list:
        return 0 if content is None else _walk(content, _MAX_VALUES)[0]
    chars, left = 0, _MAX_VALUES
    for part in content:  # the shapes that nearly all parts have, before the one that fits any
        kind = part.get("type") if type(part) is dict else None
        if kind in _TEXT_PARTS and type(part.get("text")) is str:
            chars += len(part["text"])
        elif kind not in _MEDIA_PARTS:
            found, left = _walk(part, left)
            chars += found
            if not left:
                break
    return chars


def json_chars(value: Any) -> int:
    """About the length of ``json.dumps(value)``, by adding up, without building the string."""
    return _walk(value, _MAX_VALUES, _IN_JSON)[0]


_IN_TEXT: Final = 0
_IN_JSON: Final = 2
"""Characters around a string. A number, ``true`` or ``null`` counts twice as many."""


def _walk(content: Any, left: int, around: int = _IN_TEXT) -> tuple[int, int]:
    """Characters in ``content``, and how many of the ``left`` values that it may hold are left: none where one holds itself.

    Depth first, as JSON is written, so that no more is remembered than the way down.
    """
    chars = 0
    above: dict[
        int, tuple[Any, Iterator[Any], int]
    ] = {}  # what the value in hand stands in, with what is still to come of each
    values = iter((content,))
    while True:
        for value in values:
            if isinstance(value, str):
                chars += len(value) + around
            elif value is None or isinstance(value, (int, float)):
                chars += 2 * around
            elif id(value) in above:
                return chars, 0
            else:
                above[id(value)] = value, values, around
                more, inside, around = _opened(value, around)
                chars += more
                if len(inside) > left:
                    inside = inside[:left]
                left -= len(inside)
                values = iter(inside)
                break
        else:
            if not above:
                return chars, left
            _, values, around = above.popitem()[1]


def _opened(value: Any, around: int) -> tuple[int, Sequence[Any], int]:
    """What a value is made of: characters between its parts, the parts, and what stands around each."""
    if type(value) is dict or isinstance(value, Mapping):
        if around or not isinstance(
            value.get("type"), str
        ):  # data, such as what a tool returned: it reaches the prompt as JSON
            return 4 * len(value) or 2, [*value, *value.values()], _IN_JSON
        return 0, [value[field] for field in _TEXT_FIELDS if field in value], around
    if isinstance(value, (list, tuple)):
        return around and (2 * len(value) or 2), value, around
    if around or isinstance(value, (bytes, bytearray, memoryview)):
        return 0, (), around
    return 0, _attributes(value), around


def _attributes(value: Any) -> list[Any]:
    """What of some library's object may hold prompt text: read by attribute, never dumped."""
    return [found for field in _TEXT_FIELDS if not callable(found := getattr(value, field, None))]


def message_chars(message: Any) -> int:
    """Characters of one message: its content and tool calls, or the parts of a pydantic-ai message."""
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
    """Characters of a reply's tool calls: the names and arguments of the functions called."""
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
    """Whose message it is, where one can tell: an OpenAI ``role``, a pydantic-ai ``kind``."""
    said = (
        message.get("role")
        if isinstance(message, Mapping)
        else getattr(message, "kind", None) or getattr(message, "role", None)
    )
    return said if isinstance(said, str) else None


def history_text(message_history: Any) -> tuple[int, int]:
    """Characters and turns of earlier messages.

    A turn is one earlier model reply. Where no message says whose it is, the number of messages. Odd shapes count as zero.
    """
    if isinstance(message_history, (str, bytes, bytearray, Mapping)) or not isinstance(
        message_history, Sequence
    ):
        return 0, 0
    chars = replies = 0
    told = False
    for message in message_history:
        chars += message_chars(message)
        said = speaker(message)
        if said is not None:
            told = True
            replies += said in REPLY_ROLES
    return chars, replies if told else len(message_history)

"""Boundaries of a prompt: hashes of its leading messages.

They recognize a later call that starts with the same messages.

Hashing reads no text twice: Python keeps the hash of a string with the string, and a conversation
sends the same strings again. The hashes are SipHash under the process's own random key, folded with
a key of the rule. They mean nothing outside the process, are never stored or sent, and reveal no
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..counting import ASSISTANT_ROLE, SYSTEM_ROLES, content_chars, is_reply_item
from ..signals import CallText, CountedText

_LOOK_BACK: Final = (1, 2, 4, 8)
"""A prompt is looked up at the boundary before each of these model replies, counted from the last
one. At each of these boundaries an earlier call ended."""

_MAX_VALUES: Final = 10_000
"""Values that are hashed of content in an unusual shape, which may be cyclic. Prompts that differ
only in later values are treated as equal."""


class Boundaries(Protocol):
    """Boundaries of a prompt, counted from its end: the last one is -1.

    They are computed on demand from the end, because most often the second one is already known.
    """

    @property
    def parent(self) -> int | None:
        """Boundary at which the previous call of the conversation ended; None if there was none."""

    @property
    def total_chars(self) -> float:
        """Characters of the whole prompt."""

    def backwards(self) -> Iterator[int]:
        """Yield the hash of everything before each boundary, starting with the whole prompt."""

    def chars_before(self, index: int) -> float:
        """Return the characters before a boundary that :meth:`backwards` has reached.

        Tools and instructions are included.
        """


class TraceBoundaries(NamedTuple):
    """Boundaries that are known in advance, such as those of a trace.

    Attributes:
        hashes: one for each boundary, from the start of the prompt.
        chars: characters before each boundary.
        parent: as in :class:`Boundaries`.
    """

    hashes: Sequence[int]
    chars: Sequence[float]
    parent: int | None = None

    @property
    def total_chars(self) -> float:
        """Characters of the whole prompt."""
        return self.chars[-1] if self.chars else 0

    def backwards(self) -> Iterator[int]:
        """Yield the hashes, starting with the whole prompt."""
        return reversed(self.hashes)

    def chars_before(self, index: int) -> float:
        """Return the characters before a boundary."""
        return self.chars[index]


NO_BOUNDARIES: Final[Boundaries] = TraceBoundaries((), ())
"""Boundaries of a call without messages: nothing is known or learned of it."""


class _Messages:
    """Boundaries of messages, at most six.

    They are the end of the prompt, the ends of earlier calls, and the end of the system prompt.
    """

    __slots__ = (
        "_before",
        "_ends",
        "_head",
        "_last_reply",
        "_roles",
        "_seed",
        "_sizes",
        "_texts",
        "_whole",
        "parent",
        "total_chars",
    )

    def __init__(
        self,
        roles: Sequence[Any],
        texts: Sequence[Any],
        sizes: Sequence[int],
        before: int,
        seed: int,
    ) -> None:
        head = 0
        for role in roles:
            if role not in SYSTEM_ROLES:
                break
            head += 1
        self._head = head
        self._seed = hash((seed, *roles[:head]))
        self._roles = roles
        self._texts = texts
        self._sizes = sizes
        self._before = before
        self._whole = hash((self._seed, *texts))
        self._ends = [len(roles)]
        self._last_reply = _run_before(roles, len(roles)) if ASSISTANT_ROLE in roles else 0
        self.parent = -2 if self._last_reply else None
        self.total_chars = before + sum(sizes)

    def backwards(self) -> Iterator[int]:
        yield self._whole
        reply, passed = self._last_reply, 1
        while reply and passed <= _LOOK_BACK[-1]:
            if passed in _LOOK_BACK:
                yield self._hash(reply)
            reply, passed = _run_before(self._roles, reply), passed + 1
        if 0 < self._head < self._ends[-1]:
            yield self._hash(self._head)

    def _hash(self, end: int) -> int:
        self._ends.append(end)
        return hash((self._seed, *self._texts[:end]))

    def chars_before(self, index: int) -> int:
        return self._before + sum(self._sizes[: self._ends[-index - 1]])


def _run_before(roles: Sequence[Any], end: int) -> int:
    """Return the start of the last run of assistant messages before ``end``; 0 if there is none."""
    start = end - 1
    while start > 0 and not (roles[start] == ASSISTANT_ROLE and roles[start - 1] != ASSISTANT_ROLE):
        start -= 1
    return max(start, 0)


def boundaries_of(body: Mapping[Any, Any], key: int, text: CallText | None = None) -> Boundaries:
    """Return the boundaries of a chat completion or Responses request.

    Takes O(messages), independent of their length, once their strings have been hashed.

    Args:
        body: the request as it goes out.
        key: secret of the process, such as ``secrets.randbits(64)``. Calls recognize each other
            only under the same key.
        text: the counts of ``body``, so that its messages are not counted again.
    """
    messages = body.get("messages") or _input(body)
    if isinstance(messages, str):
        messages = [messages]
    if not isinstance(messages, (list, tuple)) or not messages:
        return NO_BOUNDARIES
    instructions = body.get("instructions")
    before = (text.tool_chars if text else 0) + (
        len(instructions) if isinstance(instructions, str) else 0
    )
    roles, sizes = (
        (text.roles, text.sizes)
        if type(text) is CountedText and len(text.roles) == len(messages)
        else (None, None)
    )
    seed = _seed(body, key)
    try:
        if roles is None:
            roles = [message["role"] for message in messages]
        texts = _plain_texts(messages, roles)
        return _Messages(roles, texts, sizes or list(map(len, texts)), before, seed)
    except (KeyError, TypeError):  # content in parts, Responses items, objects
        if roles is None or None in roles:
            roles = [_digest(_field(message, "role")) or _kind(message) for message in messages]
        return _Messages(
            roles, list(map(_text, messages)), sizes or list(map(_chars, messages)), before, seed
        )


def _input(body: Mapping[Any, Any]) -> Any:
    """Return the input of a Responses request; None if it continues a response kept by the server.

    Most of the prompt of such a request is not in its body.
    """
    continues = body.get("previous_response_id") or body.get("conversation")
    return None if continues else body.get("input")


def _seed(body: Mapping[Any, Any], key: int) -> int:
    """Hash what precedes the first message: instructions, and tools by their names.

    The model and the cache salt are part of it, because each of them has its own cache.
    """
    salt = body.get("cache_salt")
    if salt is not None:
        key = hash((key, _digest(salt)))
    tools = body.get("tools")
    if not tools or not isinstance(tools, (list, tuple)):
        return hash((key, _digest(body.get("model")), _digest(body.get("instructions"))))
    try:
        names = tuple([tool["function"]["name"] for tool in tools])
        hash(names)
    except (KeyError, TypeError):  # Responses tools, objects
        names = tuple([_digest(_field(_field(tool, "function") or tool, "name")) for tool in tools])
    return hash((key, _digest(body.get("model")), _digest(body.get("instructions")), names))


def _plain_texts(messages: Sequence[Any], roles: Sequence[Any]) -> list[Any]:
    texts = [message["content"] for message in messages]
    if "tool" in roles:  # only then has a reply called a tool
        for index, role in enumerate(roles):
            if role == ASSISTANT_ROLE and messages[index].get("tool_calls"):
                texts[index] = _with_calls(texts[index], messages[index]["tool_calls"])
    return texts


def _with_calls(content: Any, calls: Any) -> Any:
    """Combine the content of a reply with the names and arguments of the functions it calls.

    These are the caller's own strings, which keep their hashes.
    """
    if not isinstance(calls, (list, tuple)):  # only the client may read a generator
        return content, _digest(calls)
    parts = [content]
    try:
        for call in calls:
            function = call["function"]
            name, arguments = function["name"], function["arguments"]
            if type(name) is not str or type(arguments) is not str:
                return content, _digest(calls)
            parts += name, arguments
    except (KeyError, TypeError, IndexError):
        return content, _digest(calls)
    return tuple(parts)


def _text(message: Any) -> Any:
    """Return what identifies the text of a message.

    Plain messages give the same value here as in :func:`_plain_texts`, so that a call with a
    picture is recognized as the continuation of a call without one.
    """
    if type(message) is dict and "tool_calls" not in message:  # nearly all messages
        content = message.get("content")
        if type(content) is str:
            return content
        if type(content) is list:
            return tuple(map(_part, content))
    if isinstance(message, str):
        return message
    content = _field(message, "content")
    if content is None and not (isinstance(message, Mapping) and "content" in message):
        return _digest(message)
    text = tuple(map(_part, content)) if type(content) is list else _digest(content)
    calls = _field(message, "tool_calls")
    return _with_calls(text, calls) if calls else text


def _part(part: Any) -> Any:
    """Return what identifies a content part: its text or the URL of its picture, if it has one."""
    try:
        text = part["text"] if "text" in part else part["image_url"]["url"]
    except (KeyError, TypeError, IndexError):
        return _digest(part)
    return text if type(text) is str else _digest(part)


def _field(value: Any, name: str) -> Any:
    return (
        value.get(name)
        if type(value) is dict or isinstance(value, Mapping)
        else getattr(value, name, None)
    )


def _kind(item: Any) -> str:
    """Return the role of a Responses item that has none.

    The model made reasoning and function calls; outputs of functions came back to it.
    """
    return ASSISTANT_ROLE if is_reply_item(None, _field(item, "type")) else "user"


def _chars(message: Any) -> int:
    content = _field(message, "content")
    return content_chars(message if content is None else content)


def _digest(value: Any) -> Any:
    """Return something hashable that differs if the content differs."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    digest: list[Any] = []
    pending = [value]
    for _ in range(_MAX_VALUES):
        if not pending:
            break
        value = pending.pop()
        if value is None or isinstance(value, (str, int, float)):
            digest.append(value)
            continue
        if isinstance(value, Mapping):
            parts = [
                item
                for key, item in value.items()
                if key not in {"id", "status", "call_id", "tool_call_id"}
            ]
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            fields = getattr(value, "__dict__", None)
            parts = [fields] if isinstance(fields, dict) else [type(value).__name__]
        digest.append(len(parts))
        if len(pending) < _MAX_VALUES:
            pending += parts
    return tuple(digest)

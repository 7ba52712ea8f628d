"""Where a prompt may be continued: hashes of its leading messages, by which a later call that starts alike is recognised.

Hashing reads no text that was read before: Python keeps the hash of a string with the string, and a conversation sends the same strings
again. Hashes are SipHash under the process's own random key, folded with a key of the rule's: they are good in one process only, are never
stored or sent, and give no text away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..signals import CallText, Outlined, content_chars

_REPLY: Final = "assistant"
_HEAD_ROLES: Final = ("system", "developer")
_LOOK_BACK: Final = (1, 2, 4, 8)
"""Before which model replies, counted from the last, the prompt is looked up: each of them was the end of an earlier call."""

_MAX_VALUES: Final = 10_000
"""Values of a content of an odd shape that are looked into, for it may be cyclic; what is left does not tell prompts apart."""


class Chain(Protocol):
    """Boundaries of a prompt. They are counted from its end, at -1, and asked for from there: most often the second is known already."""

    @property
    def parent(self) -> int | None:
        """Boundary at which the call before this one ended, as the prompt itself shows; ``None`` where it shows none."""

    @property
    def total_chars(self) -> float:
        """Characters of the whole prompt."""

    def backwards(self) -> Iterator[int]:
        """Hashes of all that lies before each boundary; the first is of the whole prompt."""

    def chars_before(self, at: int) -> float:
        """Characters before a boundary that :meth:`backwards` has come to, those of tools and instructions among them."""


class GivenChain(NamedTuple):
    """Boundaries that are known beforehand, such as a trace's.

    Attributes:
        hashes: from the start of the prompt on.
        chars: characters before each.
        parent: as for :class:`Chain`.
    """

    hashes: Sequence[int]
    chars: Sequence[float]
    parent: int | None = None

    @property
    def total_chars(self) -> float:
        """Characters of the whole prompt."""
        return self.chars[-1] if self.chars else 0

    def backwards(self) -> Iterator[int]:
        """The hashes, from the end on."""
        return reversed(self.hashes)

    def chars_before(self, at: int) -> float:
        """Characters before a boundary."""
        return self.chars[at]


EMPTY_CHAIN: Final[Chain] = GivenChain((), ())
"""Of a call without messages: nothing is known or learnt of it."""


class _Messages:
    """The boundaries of messages: the end, the ends of earlier calls, and the end of the system prompt; at most six."""

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
            if role not in _HEAD_ROLES:
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
        self._last_reply = _run_before(roles, len(roles)) if _REPLY in roles else 0
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

    def chars_before(self, at: int) -> int:
        return self._before + sum(self._sizes[: self._ends[-at - 1]])


def _run_before(roles: Sequence[Any], end: int) -> int:
    """Where the last run of the model's own messages begins that begins before ``end``; 0 for none."""
    at = end - 1
    while at > 0 and not (roles[at] == _REPLY and roles[at - 1] != _REPLY):
        at -= 1
    return max(at, 0)


def chain_of(body: Mapping[Any, Any], key: int, text: CallText | None = None) -> Chain:
    """The boundaries of a chat completion or Responses request.

    O(messages), and constant in their length once their strings have been hashed.

    Args:
        body: the request as it goes out.
        key: secret of the process, such as ``secrets.randbits(64)``; the same for all calls that are to recognise each other.
        text: what was counted of ``body``, where it was: what it knows of the messages is not worked out again.
    """
    messages = body.get("messages") or _input(body)
    if isinstance(messages, str):
        messages = [messages]
    if not isinstance(messages, (list, tuple)) or not messages:
        return EMPTY_CHAIN
    instructions = body.get("instructions")
    before = (text.tool_chars if text else 0) + (
        len(instructions) if isinstance(instructions, str) else 0
    )
    roles, sizes = (
        (text.roles, text.sizes)
        if type(text) is Outlined and len(text.roles) == len(messages)
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
    """Of a Responses request; of one that goes on an earlier response nothing, for most of its prompt is the server's and not in it."""
    return (
        None if body.get("previous_response_id") or body.get("conversation") else body.get("input")
    )


def _seed(body: Mapping[Any, Any], key: int) -> int:
    """What stands before the first message: tools, by their names, and instructions. Each model and each salt has a cache of its own."""
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
    if "tool" in roles:  # only then has a reply called any
        for at, role in enumerate(roles):
            if role == _REPLY and messages[at].get("tool_calls"):
                texts[at] = _with_calls(texts[at], messages[at]["tool_calls"])
    return texts


def _with_calls(said: Any, calls: Any) -> Any:
    """What a reply says with the functions it calls, by their names and arguments: strings that keep their hashes, as its text does."""
    if not isinstance(calls, (list, tuple)):  # a generator is the client's to read
        return said, _digest(calls)
    made = [said]
    try:
        for call in calls:
            function = call["function"]
            name, arguments = function["name"], function["arguments"]
            if type(name) is not str or type(arguments) is not str:
                return said, _digest(calls)
            made += name, arguments
    except (KeyError, TypeError, IndexError):
        return said, _digest(calls)
    return tuple(made)


def _text(message: Any) -> Any:
    """What a message says, the same as where all messages are plain: a later call with a picture in it goes on an earlier one without."""
    if type(message) is dict and "tool_calls" not in message:  # nearly all
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
    said = tuple(map(_part, content)) if type(content) is list else _digest(content)
    calls = _field(message, "tool_calls")
    return _with_calls(said, calls) if calls else said


def _part(part: Any) -> Any:
    """A part of a content, by its text or the URL of its picture, in the shapes that nearly all have."""
    try:
        said = part["text"] if "text" in part else part["image_url"]["url"]
    except (KeyError, TypeError, IndexError):
        return _digest(part)
    return said if type(said) is str else _digest(part)


def _field(value: Any, name: str) -> Any:
    return (
        value.get(name)
        if type(value) is dict or isinstance(value, Mapping)
        else getattr(value, name, None)
    )


def _kind(item: Any) -> str:
    """Whose a Responses item without a role is: what the model made (reasoning, a call of a function), or what came back."""
    kind = _field(item, "type")
    return _REPLY if isinstance(kind, str) and not kind.endswith("_output") else "user"


def _chars(message: Any) -> int:
    content = _field(message, "content")
    return content_chars(message if content is None else content)


def _digest(value: Any) -> Any:
    """Something hashable that tells content apart."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    found: list[Any] = []
    pending = [value]
    for _ in range(_MAX_VALUES):
        if not pending:
            break
        value = pending.pop()
        if value is None or isinstance(value, (str, int, float)):
            found.append(value)
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
        found.append(len(parts))
        if len(pending) < _MAX_VALUES:
            pending += parts
    return tuple(found)

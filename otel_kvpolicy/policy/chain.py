"""Where a prompt may be continued: hashes of its leading messages, by which a later call that starts alike is recognised.

Hashing reads no text that was read before: Python keeps the hash of a string with the string, and a conversation sends the same strings
again. Hashes are SipHash under the process's own random key, folded with a key of the rule's: they are good in one process only, are never
stored or sent, and give no text away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .signals import CallText, Outlined, content_chars

__all__ = ["EMPTY_CHAIN", "Chain", "chain_of"]

_REPLY: Final = "assistant"
_HEAD_ROLES: Final = ("system", "developer")
_LOOK_BACK: Final = (1, 2, 4, 8)
"""Before which model replies, counted from the last, the prompt is looked up: each of them was the end of an earlier call."""

_STRETCH: Final = 64
"""Messages that are hashed at a stroke."""

_MAX_VALUES: Final = 10_000
"""Values of a content of an odd shape that are looked into, for it may be cyclic; what is left does not tell prompts apart."""


class Chain(NamedTuple):
    """Boundaries of a prompt, from its start on.

    Attributes:
        hashes: one for each boundary, of all that lies before it; the last is of the whole prompt.
        chars: characters before each boundary, those of tools and instructions among them, which stand at the head of the prompt.
        parent: index of the boundary at which the call before this one ended, as the prompt itself shows; -1 where it shows none.
    """

    hashes: Sequence[int]
    chars: Sequence[int]
    parent: int = -1


EMPTY_CHAIN: Final = Chain((), ())
"""Of a call without messages: nothing is known or learnt of it."""


def chain_of(body: Mapping[Any, Any], key: int, text: CallText | None = None) -> Chain:
    """The boundaries of a chat completion or Responses request: the end of the system prompt, the ends of earlier calls, and the end.

    O(messages), and constant in their length once their strings have been hashed. At most six boundaries.

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
    before = (text.tool_chars if text else 0) + (len(instructions) if isinstance(instructions, str) else 0)
    roles, sizes = (text.roles, text.sizes) if type(text) is Outlined and len(text.roles) == len(messages) else (None, None)
    try:
        if roles is None:
            roles = [message["role"] for message in messages]
        texts = [message["content"] for message in messages]
        if "tool" in roles:
            texts = [_with_calls(message) if message["role"] == _REPLY else message["content"] for message in messages]
        return _boundaries(roles, texts, sizes or list(map(len, texts)), before, _seed(body, key))
    except (KeyError, TypeError):  # content in parts, Responses items, objects
        if roles is None or None in roles:
            roles = [_digest(_field(message, "role")) or _kind(message) for message in messages]
        return _boundaries(roles, [_text(message) for message in messages], sizes or list(map(_chars, messages)), before, _seed(body, key))


def _input(body: Mapping[Any, Any]) -> Any:
    """Of a Responses request; of one that goes on an earlier response nothing, for most of its prompt is the server's and not in it."""
    return None if body.get("previous_response_id") or body.get("conversation") else body.get("input")


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


def _boundaries(roles: Sequence[Any], texts: Sequence[Any], sizes: Sequence[int], total: int, seed: int) -> Chain:
    """Hashes are chained over stretches of fixed length, so that each text is read once, whichever boundaries there are."""
    head = 0
    while head < len(roles) and roles[head] in _HEAD_ROLES:
        head += 1
    ends, parent = _ends(roles, head)
    state = hash((seed, *roles[:head]))
    hashes, chars = [], []
    done = before = 0
    for end in ends:
        while end - done >= _STRETCH:
            state = hash((state, *texts[done : done + _STRETCH]))
            done += _STRETCH
        hashes.append(hash((state, *texts[done:end])))
        total += sum(sizes[before:end])
        chars.append(total)
        before = end
    return Chain(hashes, chars, parent)


def _ends(roles: Sequence[Any], head: int) -> tuple[list[int], int]:
    """Boundaries, and which of them ended the call before this one; -1 for none."""
    replies: list[int] = []  # where runs of the model's own messages begin, from the last
    at = len(roles) - 1
    while at > 0 and len(replies) < _LOOK_BACK[-1]:
        if roles[at] == _REPLY and roles[at - 1] != _REPLY:
            replies.append(at)
        at -= 1
    ends = [replies[back - 1] for back in reversed(_LOOK_BACK) if back <= len(replies)]
    ends.append(len(roles))
    if head and head not in ends:
        ends.append(head)
        ends.sort()
    return ends, ends.index(replies[0]) if replies else -1


def _with_calls(message: Any) -> Any:
    calls = message.get("tool_calls")
    return message["content"] if not calls else f"{message['content']}{_digest(calls)}"


def _text(message: Any) -> Any:
    """What a message says, the same as where all messages are plain: a later call with a picture in it goes on an earlier one without."""
    if type(message) is dict and "tool_calls" not in message:  # nearly all
        content = message.get("content")
        if type(content) is str:
            return content
        if type(content) is list:
            return tuple([_part(part) for part in content])
    if isinstance(message, str):
        return message
    content = _field(message, "content")
    if content is None and not (isinstance(message, Mapping) and "content" in message):
        return _digest(message)
    said = tuple([_part(part) for part in content]) if type(content) is list else _digest(content)
    calls = _field(message, "tool_calls")
    return f"{said}{_digest(calls)}" if calls else said


def _part(part: Any) -> Any:
    """A part of a content, by its text or the URL of its picture, in the shapes that nearly all have."""
    if type(part) is dict:
        if "text" in part and type(part["text"]) is str:
            return part["text"]
        media = part.get("image_url")
        url = media.get("url") if type(media) is dict else media
        if type(url) is str:
            return url
    return _digest(part)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if type(value) is dict or isinstance(value, Mapping) else getattr(value, name, None)


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
            parts = [item for key, item in value.items() if key not in {"id", "status", "call_id", "tool_call_id"}]
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            fields = getattr(value, "__dict__", None)
            parts = [fields] if isinstance(fields, dict) else [type(value).__name__]
        found.append(len(parts))
        if len(pending) < _MAX_VALUES:
            pending += parts
    return tuple(found)

"""Keyed hashes of the stable parts of a prompt, which are the same in all processes of a fleet.

The boundaries of the adaptive rule are hashed with Python's own ``hash``, which is faster but means
nothing outside the process. These hashes are BLAKE2b with a key, so that a hash in an access log
cannot be tested against a guessed prompt.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ..policy.counting import ASSISTANT_ROLE, SYSTEM_ROLES, content_chars, is_reply_item

_DIGEST_BYTES: Final = 16
_KEY_BYTES: Final = 32
_process_key: Final = secrets.token_bytes(_KEY_BYTES)


class StablePrefix(NamedTuple):
    """Hashes of the stable parts of a prompt.

    Attributes:
        head: hash of model, cache salt, tools, instructions and leading system messages. Equals
            ``opening`` if a request has neither tools, instructions nor system messages.
        opening: hash of the head and the messages before the first model reply.
        has_head: True if there is a head.
        opening_chars: characters of the messages before the first model reply; 0 if there is a
            head.
    """

    head: str = ""
    opening: str = ""
    has_head: bool = False
    opening_chars: int = 0


NO_PREFIX: Final = StablePrefix()


@lru_cache(maxsize=8)
def key_of(secret: str | None) -> bytes:
    """Return the key of the hashes.

    Args:
        secret: ``KV_CACHE_AFFINITY_KEY``; None for a key that is random for each process.
    """
    if not secret:
        return _process_key
    return blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


def hash_of(value: str, key: bytes) -> str:
    """Return the keyed hash of a string in hexadecimal."""
    return blake2b(
        value.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES, key=key, person=b"id"
    ).hexdigest()


def stable_prefix(body: Mapping[Any, Any], key: bytes) -> StablePrefix:
    """Hash the stable parts of a chat completion or Responses request.

    Args:
        body: the request as it goes out.
        key: from :func:`key_of`.

    Returns:
        The hashes. :data:`NO_PREFIX` if the request has no messages, or continues a conversation
        that the server keeps, because most of such a prompt is not in its body.

    Raises:
        Exception: content is of a shape that JSON cannot express, such as a list in itself.
    """
    messages = _messages(body)
    if not messages:
        return NO_PREFIX
    roles = [_role(message) for message in messages]
    start = _first(roles, lambda role: role not in SYSTEM_ROLES)
    end = max(start, _first(roles, lambda role: role == ASSISTANT_ROLE))
    tools, instructions = body.get("tools") or body.get("functions"), body.get("instructions")
    has_head = bool(start or tools or instructions)
    digest = blake2b(digest_size=_DIGEST_BYTES, key=key, person=b"prefix")
    for part in (body.get("model"), body.get("cache_salt"), tools, instructions):
        _feed(digest, part)
    _feed_messages(digest, roles[:start], messages[:start])
    head = digest.hexdigest()
    _feed_messages(digest, roles[start:end], messages[start:end])
    opening = digest.hexdigest()
    if has_head:
        return StablePrefix(head, opening, has_head=True)
    chars = sum(content_chars(_content(message)) for message in messages[start:end])
    return StablePrefix(opening, opening, opening_chars=chars)


def _messages(body: Mapping[Any, Any]) -> Sequence[Any]:
    messages = body.get("messages")
    if messages is None and not (body.get("previous_response_id") or body.get("conversation")):
        messages = body.get("input")
    if isinstance(messages, str):
        return [messages]
    return messages if isinstance(messages, (list, tuple)) else ()


def _first(roles: Sequence[Any], matches: Any) -> int:
    return next((index for index, role in enumerate(roles) if matches(role)), len(roles))


def _role(message: Any) -> str:
    if isinstance(message, str):
        return "user"
    role, kind = _field(message, "role"), _field(message, "type")
    if is_reply_item(role, kind):
        return ASSISTANT_ROLE
    return role if isinstance(role, str) else "user"


def _content(message: Any) -> Any:
    content = message if isinstance(message, str) else _field(message, "content")
    return message if content is None else content


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _feed_messages(digest: Any, roles: Sequence[str], messages: Sequence[Any]) -> None:
    for role, message in zip(roles, messages, strict=True):
        _feed(digest, role)
        _feed(digest, _content(message))


def _feed(digest: Any, value: Any) -> None:
    """Add a value with its length, so that no two sequences of values give the same bytes."""
    if isinstance(value, str):
        kind, data = "s", value.encode("utf-8", "surrogatepass")
    else:
        kind, data = "j", json.dumps(value, separators=(",", ":"), default=_plain).encode()
    digest.update(f"{kind}{len(data)}:".encode())
    digest.update(data)


def _plain(value: Any) -> Any:
    """Return the fields of an object that JSON does not know, or the name of its type."""
    if isinstance(value, Mapping):
        return dict(value)
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        return {name: item for name, item in fields.items() if item is not None}
    return type(value).__name__

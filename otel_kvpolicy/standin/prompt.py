"""From messages to the keys that caches know a prompt by: a chat template, a tokenisation, chained hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .options import CHUNK_TOKENS, GPU_BLOCK_TOKENS

BYTES_PER_TOKEN: Final = 4
"""A token is four bytes of UTF-8: about what BPE makes of English, deterministic, and a prefix of a text has a prefix of its tokens.

A rest of less than four bytes belongs to the token before it.
"""

_BLOCKS_PER_CHUNK: Final = CHUNK_TOKENS // GPU_BLOCK_TOKENS


def token_count(text: str) -> int:
    """Tokens of a text, at least one."""
    return max(1, len(_encode(text)) // BYTES_PER_TOKEN)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt.

    Attributes:
        tokens: its length.
        blocks: chained hashes of its full vLLM blocks.
        chunks: chained hashes of its full LMCache chunks.
        salt: the request's ``cache_salt``, part of every hash.
    """

    tokens: int
    blocks: tuple[bytes, ...]
    chunks: tuple[bytes, ...]
    salt: str

    @classmethod
    def of(cls, text: str, salt: str = "") -> Prompt:
        """Tokenises a rendered prompt."""
        data = _encode(text)
        chain = hashlib.blake2b(_encode(salt), digest_size=16)
        step = GPU_BLOCK_TOKENS * BYTES_PER_TOKEN
        blocks = []
        for start in range(0, len(data) - step + 1, step):
            chain.update(data[start : start + step])
            blocks.append(chain.digest())
        return cls(
            max(1, len(data) // BYTES_PER_TOKEN),
            tuple(blocks),
            tuple(blocks[_BLOCKS_PER_CHUNK - 1 :: _BLOCKS_PER_CHUNK]),
            salt,
        )


def render(messages: Sequence[Any], tools: Any = None) -> str:
    """The prompt a chat template makes: tool definitions in its head, then every message, then the opening of a reply."""
    head = f"<|tools|>{_json(tools)}<|end|>" if tools else ""
    return head + "".join(_message(message) for message in messages) + "<|assistant|>"


def _message(message: Any) -> str:
    if not isinstance(message, Mapping):
        return f"<|user|>{_content(message)}<|end|>"
    calls = message.get("tool_calls")
    said = _content(message.get("content")) + (_json(calls) if calls else "")
    return f"<|{message.get('role', 'user')}|>{said}<|end|>"


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    return _json(content)


def _part(part: Any) -> str:
    if isinstance(part, Mapping):
        for field in ("text", "refusal"):
            if isinstance(part.get(field), str):
                return str(part[field])
        # Media: models spend a fixed number of tokens on it and know it by its hash.
        return f"<|media {hashlib.blake2b(_encode(_json(part)), digest_size=8).hexdigest()}|>"
    return _content(part)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

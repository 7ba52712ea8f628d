"""Turn messages into cache keys: a chat template, a tokenization, and chained hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .options import CHUNK_TOKENS, GPU_BLOCK_TOKENS

BYTES_PER_TOKEN: Final = 4
"""Bytes of UTF-8 in a token, about as in a BPE encoding of English.

The tokenization is deterministic, and a prefix of a text has a prefix of the text's tokens. A
remainder of less than four bytes belongs to the last token.
"""

_BLOCKS_PER_CHUNK: Final = CHUNK_TOKENS // GPU_BLOCK_TOKENS


def token_count(text: str) -> int:
    """Return the number of tokens in a text, at least one."""
    return max(1, len(_encode(text)) // BYTES_PER_TOKEN)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Prompt:
    """A tokenized prompt.

    Attributes:
        tokens: number of tokens.
        blocks: chained hashes of the full vLLM blocks.
        chunks: chained hashes of the full LMCache chunks.
        salt: the request's ``cache_salt``, which is part of every hash.
    """

    tokens: int
    blocks: tuple[bytes, ...]
    chunks: tuple[bytes, ...]
    salt: str

    @classmethod
    def of(cls, text: str, salt: str = "") -> Prompt:
        """Tokenize a rendered prompt."""
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
    """Render a prompt as a chat template does.

    The tool definitions come first, then every message, then the start of a reply.
    """
    head = f"<|tools|>{_json(tools)}<|end|>" if tools else ""
    return head + "".join(_message(message) for message in messages) + "<|assistant|>"


def _message(message: Any) -> str:
    if not isinstance(message, Mapping):
        return f"<|user|>{_content(message)}<|end|>"
    calls = message.get("tool_calls")
    text = _content(message.get("content")) + (_json(calls) if calls else "")
    return f"<|{message.get('role', 'user')}|>{text}<|end|>"


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
        # Media: a model spends a fixed number of tokens on it, and the cache key has its hash.
        return f"<|media {hashlib.blake2b(_encode(_json(part)), digest_size=8).hexdigest()}|>"
    return _content(part)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

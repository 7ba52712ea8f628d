"""How large a tier is: chunks, or bytes of KV cache, which a model spends so many of on each token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


class SizeError(ValueError):
    """A size that cannot be told in chunks; the text says why."""


@dataclass(frozen=True)
class KVShape:
    """What of a model's ``config.json`` decides how large its KV cache is.

    Attributes:
        layers: ``num_hidden_layers``.
        kv_heads: ``num_key_value_heads``.
        head_dim: ``head_dim``.
        element_bytes: bytes of a number: 2 for bfloat16.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2

    @property
    def bytes_per_token(self) -> int:
        """A key and a value vector for each KV head of each layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes


MODELS: Final = {
    "llama-3.1-8b": KVShape(32, 8, 128),
    "llama-3.3-70b": KVShape(80, 8, 128),
    "mistral-small-24b": KVShape(40, 8, 128),
    "qwen2.5-7b": KVShape(28, 4, 128),
    "qwen3-8b": KVShape(36, 8, 128),
    "qwen3-30b-a3b": KVShape(48, 4, 128),
    "qwen3-32b": KVShape(64, 8, 128),
}
"""Shapes from the models' own ``config.json``, in bfloat16. Models whose layers differ (sliding windows, Mamba, MLA) are not here: their
KV is not so many bytes for each token, and ``--kv-bytes-per-token`` takes what vLLM logs for them."""

_UNITS: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(chunks|[kmgt]ib)?", re.IGNORECASE)


def blocks_of(text: str, block_tokens: int, kv_bytes_per_token: int | None) -> int:
    """A size as a number of chunks.

    Args:
        text: ``5000`` or ``5000chunks``; ``64GiB`` (also KiB, MiB, TiB).
        block_tokens: tokens of a chunk.
        kv_bytes_per_token: bytes of KV for a token; ``None`` where nobody said.

    Raises:
        SizeError: the text is no size, or bytes cannot be turned into chunks.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise SizeError(f"{text!r} is no size: give chunks (5000) or bytes (64GiB)")
    amount, unit = float(found[1]), (found[2] or "chunks").lower()
    if unit == "chunks":
        if not amount.is_integer():
            raise SizeError(f"{text!r}: chunks are whole")
        return int(amount)
    if kv_bytes_per_token is None:
        raise SizeError(f"{text}: give --model or --kv-bytes-per-token to turn bytes into chunks")
    return int(amount * _UNITS[unit] / (kv_bytes_per_token * block_tokens))

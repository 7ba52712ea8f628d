"""Tier sizes, in chunks or in bytes (via the model's KV bytes per token)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


class SizeError(ValueError):
    """The text is not a size, or it cannot be converted to chunks."""


@dataclass(frozen=True)
class KVShape:
    """The dimensions of a model that determine the size of its KV cache.

    Attributes:
        layers: ``num_hidden_layers`` in the model's ``config.json``.
        kv_heads: ``num_key_value_heads``.
        head_dim: ``head_dim``.
        element_bytes: bytes per number; 2 for bfloat16.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token: a key and a value vector for each KV head of each layer."""
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
"""Shapes from each model's ``config.json``, in bfloat16.

Models with different kinds of layers (sliding windows, Mamba, MLA) are left out, because their KV
size per token is not constant. For those, pass ``--kv-bytes-per-token`` with the value that vLLM
logs.
"""

_UNITS: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(chunks|[kmgt]ib)?", re.IGNORECASE)


def blocks_of(text: str, block_tokens: int, kv_bytes_per_token: int | None) -> int:
    """Convert a size to a number of chunks, rounded down.

    Args:
        text: ``5000`` or ``5000chunks``, or ``64GiB`` (also KiB, MiB, TiB).
        block_tokens: tokens in a chunk.
        kv_bytes_per_token: KV bytes of one token, or ``None`` if unknown.

    Raises:
        SizeError: the text is not a size, or the KV bytes per token are needed and unknown.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SizeError(f"{text!r} is not a size: give chunks (5000) or bytes (64GiB)")
    amount, unit = float(match[1]), (match[2] or "chunks").lower()
    if unit == "chunks":
        if not amount.is_integer():
            raise SizeError(f"{text!r}: the number of chunks must be a whole number")
        return int(amount)
    if kv_bytes_per_token is None:
        raise SizeError(f"{text}: a size in bytes needs --model or --kv-bytes-per-token")
    return int(amount * _UNITS[unit] / (kv_bytes_per_token * block_tokens))

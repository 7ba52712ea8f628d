"""vLLM's body field ``kv_transfer_params``, through which its KV connectors get their options."""

from __future__ import annotations

from typing import Any, Final

FIELD: Final = "kv_transfer_params"
"""vLLM's body field, on chat completions since 0.9.2 and on responses since 0.19.0."""


class KVTransferParams:
    """Base of the dialects whose keys travel in ``kv_transfer_params``."""

    field: Final = FIELD

    def merge(self, given: Any, params: dict[str, Any]) -> dict[str, Any]:
        """Return the caller's ``kv_transfer_params`` with ``params`` added."""
        return {**(given or {}), **params}

"""The dialect of vLLM's own offloading: one key in vLLM's ``kv_transfer_params``.

``OffloadingConnector`` reads ``max_offload_tokens`` since vLLM 0.23.0 and stores at most that many
leading tokens of the request, in whole chunks. It accepts an int from 0 up, and no bool; anything
else is ignored with a warning in the server's log. The connector applies the cap before any of its
tiers, such as CPU memory or a file system, sees the request. vLLM calls the key experimental.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .kv_transfer_params import KVTransferParams

MAX_OFFLOAD_KEY: Final = "max_offload_tokens"
"""Leading tokens that ``OffloadingConnector`` may store."""


class VLLMOffloadDialect(KVTransferParams):
    """Tells vLLM's ``OffloadingConnector`` what to store.

    See :class:`~otel_kvpolicy.hints.dialect.Dialect`.
    """

    name: Final = "vllm-offload"

    def params(
        self, *, skip: bool, keys: str = "both", keep_tokens: int = 0, stats: bool = False
    ) -> dict[str, Any]:
        """Return the key that says skip; storing is the default and needs no key.

        Args:
            skip: True if vLLM should not offload the call's KV.
            keys: ignored; the setting is about LMCache's keys.
            keep_tokens: leading tokens of a skipped call to store anyway.
            stats: ignored; the connector reports nothing for single requests.
        """
        return {MAX_OFFLOAD_KEY: keep_tokens} if skip else {}

    def keeps_parts(self, keys: str) -> bool:
        """Return True: the cap can always say it."""
        return True

    def is_callers(self, given: Any) -> bool:
        """Return True if the caller set the cap, or if the value is not a mapping.

        A value that is not a mapping cannot be merged into, so it stays as it is.
        """
        return MAX_OFFLOAD_KEY in given if isinstance(given, Mapping) else given is not None

    def caller_skips(self, given: Any) -> bool:
        """Return True if the caller's cap is 0."""
        return self._cap(given) == 0

    def caller_caps(self, given: Any) -> bool:
        """Return True if the caller set a cap that vLLM obeys."""
        return self._cap(given) is not None

    def malformed(self, given: Any) -> str | None:
        """Return None: vLLM ignores a malformed cap, so none can crash it."""
        return None

    @staticmethod
    def _cap(given: Any) -> int | None:
        """Return the cap as vLLM reads it: an int of exactly that type, from 0 up."""
        cap = given.get(MAX_OFFLOAD_KEY) if isinstance(given, Mapping) else None
        return cap if type(cap) is int and cap >= 0 else None


VLLM_OFFLOAD: Final = VLLMOffloadDialect()

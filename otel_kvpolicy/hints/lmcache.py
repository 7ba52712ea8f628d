"""The LMCache dialect: keys in vLLM's ``kv_transfer_params``.

Facts about the keys, from the source of LMCache 0.3.6 to 0.5.6 and from runs: the in-process
connector skips if ``lmcache.skip_save`` is any value that Python counts as true. The multi-process
server reads ``lmcache.max_offload_tokens`` as an int and rounds it down to whole chunks. Each
ignores the other's key. A string as the number of tokens raises an error inside vLLM's scheduler,
so only bool and int are ever sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from ..policy.decision import SKIP_SAVE_KEY
from .kv_transfer_params import KVTransferParams

MAX_OFFLOAD_KEY: Final = "lmcache.max_offload_tokens"
"""Prompt tokens that may be stored. LMCache's multi-process server reads it since 0.5.6."""

STATS_KEY: Final = "cached_token_stats"
"""Asks LMCache's multi-process connector (since 0.4.7) how many prompt tokens it had, and how many
vLLM had."""

HintKeys = Literal["both", "skip_save", "max_offload_tokens"]
"""Values of ``KV_CACHE_HINT_KEYS``."""


class LMCacheDialect(KVTransferParams):
    """Tells vLLM with LMCache what to store. See :class:`~otel_kvpolicy.hints.dialect.Dialect`."""

    name: Final = "lmcache"

    def params(
        self, *, skip: bool, keys: str = "both", keep_tokens: int = 0, stats: bool = False
    ) -> dict[str, Any]:
        """Return the keys that say store or skip.

        Storing is the default of both modes of LMCache, so one key is enough to say it.

        Args:
            skip: True if LMCache should not store the call's KV.
            keys: which of the two keys may be sent, one of :data:`HintKeys`.
            keep_tokens: leading tokens of a skipped call to store anyway; only
                ``max_offload_tokens`` can say it.
            stats: True to ask for the cached tokens of each cache.
        """
        params: dict[str, Any] = {}
        if keys != "max_offload_tokens":
            params[SKIP_SAVE_KEY] = skip
        if keys != "skip_save" and skip:
            params[MAX_OFFLOAD_KEY] = keep_tokens
        if stats:
            params[STATS_KEY] = True
        return params

    def keeps_parts(self, keys: str) -> bool:
        """Return True if ``lmcache.max_offload_tokens`` may be sent."""
        return keys != "skip_save"

    def is_callers(self, given: Any) -> bool:
        """Return True if the caller set one of LMCache's keys, or if the value is not a mapping.

        A value that is not a mapping cannot be merged into, so it stays as it is.
        """
        if isinstance(given, Mapping):
            return SKIP_SAVE_KEY in given or MAX_OFFLOAD_KEY in given
        return given is not None

    def caller_skips(self, given: Any) -> bool:
        """Return True if LMCache does not store the call because of the caller's keys."""
        if not isinstance(given, Mapping):
            return False
        cap = given.get(MAX_OFFLOAD_KEY)
        return bool(given.get(SKIP_SAVE_KEY)) or (isinstance(cap, (int, float)) and cap <= 0)

    def caller_caps(self, given: Any) -> bool:
        """Return True if the caller set ``lmcache.max_offload_tokens``."""
        return isinstance(given, Mapping) and given.get(MAX_OFFLOAD_KEY) is not None

    def malformed(self, given: Any) -> str | None:
        """Describe a cap whose type raises an error inside vLLM's scheduler and stops the server.

        Observed with ``"0"`` on vLLM 0.32.0 and LMCache 0.5.6.
        """
        cap = given.get(MAX_OFFLOAD_KEY) if isinstance(given, Mapping) else None
        if cap is None or isinstance(cap, (int, float)):
            return None
        return f"{MAX_OFFLOAD_KEY} is a {type(cap).__name__}, but must be an int"


LMCACHE: Final = LMCacheDialect()

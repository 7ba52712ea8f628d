"""Simulate a prefill: what vLLM finds in its own cache, what LMCache adds, and what is stored.

What a request may say about storing depends on the mode, as in LMCache 0.5.6:

* ``mp``: ``lmcache.max_offload_tokens`` caps the stored prefix, rounded down to whole chunks.
  ``lmcache.skip_save`` is ignored. A cap that Python cannot compare with an int raises inside
  vLLM's scheduler and stops the engine. Source: ``integration/vllm/lmcache_mp_metadata.py``.
* ``in_process``: ``lmcache.skip_save`` skips the store if it is true in Python, so the string
  ``"false"`` skips too. A cap is ignored. Source: ``integration/vllm/vllm_v1_adapter.py``.
* ``none``: there is no connector. vLLM logs a warning for each request that has
  ``kv_transfer_params``.

LMCache stores full chunks only, after the prefix that it already has. It looks up every prompt; a
request cannot ask for or prevent that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from .cache import Counts, Lookup, Tier, TieredCache
from .options import CHUNK_TOKENS, GPU_BLOCK_TOKENS, Options
from .prompt import Prompt

_logger = logging.getLogger(__name__)


class EngineDeadError(RuntimeError):
    """vLLM's engine has stopped. Every later call fails until the server is restarted."""


class Prefill(NamedTuple):
    """Where the tokens of one prompt came from.

    Attributes:
        prompt_tokens: tokens in the prompt.
        gpu_tokens: leading tokens found in vLLM's own prefix cache.
        lmcache_tokens: leading tokens found in LMCache; overlaps ``gpu_tokens``.
        external_tokens: tokens loaded from LMCache because vLLM did not have them.
        new_gpu_tokens: tokens added to vLLM's prefix cache.
        stored_chunks: chunks written to LMCache.
    """

    prompt_tokens: int
    gpu_tokens: int
    lmcache_tokens: int
    external_tokens: int
    new_gpu_tokens: int
    stored_chunks: int

    @property
    def cached_tokens(self) -> int:
        """Tokens that usage reports as cached: those from vLLM's own cache and from LMCache."""
        return self.gpu_tokens + self.external_tokens


class Engine:
    """vLLM's prefix cache with LMCache behind it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.counts = Counts()
        self.dead = False
        block_bytes = GPU_BLOCK_TOKENS * options.kv_bytes_per_token
        self.gpu = Tier(options.gpu_tokens * options.kv_bytes_per_token, block_bytes, 1.0, 0.0)
        self.cache = TieredCache(
            self._tier(options.l1_bytes),
            self._tier(options.l2_bytes) if options.l2_bytes else None,
            self.counts,
        )
        self.labels = {"model_name": f"/models/{options.models[0]}", "cache_salt": ""}

    def _tier(self, capacity: int) -> Tier:
        return Tier(
            capacity,
            self.options.chunk_bytes,
            self.options.eviction_watermark,
            self.options.eviction_ratio,
        )

    def prefill(self, prompt: Prompt, kv_transfer_params: Mapping[str, Any] | None) -> Prefill:
        """Serve a prompt from the caches, then store what the request allows.

        Raises:
            EngineDeadError: this request or an earlier one has a cap that stops the real engine.
        """
        if self.dead:
            raise EngineDeadError
        # vLLM always computes the last token, so a fully cached prompt counts one block less.
        usable = prompt.blocks[: (prompt.tokens - 1) // GPU_BLOCK_TOKENS]
        gpu_tokens = self.gpu.prefix(usable) * GPU_BLOCK_TOKENS
        found = self._lookup(prompt)
        lmcache_tokens = found.hit * CHUNK_TOKENS
        external = max(0, lmcache_tokens - gpu_tokens - (lmcache_tokens == prompt.tokens))
        new_gpu_tokens = self._keep_on_gpu(prompt)
        stored = self._store(prompt, found, dict(kv_transfer_params or {}))
        return Prefill(prompt.tokens, gpu_tokens, lmcache_tokens, external, new_gpu_tokens, stored)

    def reset_gpu_cache(self) -> None:
        """Empty vLLM's own prefix cache (``POST /reset_prefix_cache``)."""
        self.gpu.clear()

    def _keep_on_gpu(self, prompt: Prompt) -> int:
        capacity = self.options.gpu_tokens // GPU_BLOCK_TOKENS
        blocks = prompt.blocks[:capacity]
        self.gpu.touch(blocks)
        new = sum(block not in self.gpu for block in blocks)
        self.gpu.evict(max(0, len(self.gpu) + new - capacity))
        return len(self.gpu.add(blocks)) * GPU_BLOCK_TOKENS

    def _lookup(self, prompt: Prompt) -> Lookup:
        if self.options.mode == "none":
            return Lookup(0, 0)
        labels = {**self.labels, "cache_salt": prompt.salt}
        self.counts.add("lookups_requests", 1, **labels)
        found = Lookup(0, 0)
        if prompt.chunks:
            found = self.cache.lookup(prompt.chunks)
        else:
            self.counts.add("lookup_early_exit_requests", 1, reason="empty_chunk_hashes", **labels)
        self.counts.add("lookup_requested_tokens", len(prompt.chunks) * CHUNK_TOKENS, **labels)
        self.counts.add("lookup_hit_tokens", found.hit * CHUNK_TOKENS, **labels)
        for tier, chunks in (("l1", found.l1), ("l2", found.l2)):
            self.counts.add(f"lookup_hit_{tier}_tokens", chunks * CHUNK_TOKENS, **labels)
            self.counts.add(f"lookup_hit_{tier}_keys", chunks, **labels)
        return found

    def _store(self, prompt: Prompt, found: Lookup, params: dict[str, Any]) -> int:
        if self.options.mode == "none":
            if params:
                _logger.warning(
                    "kv_transfer_params given, but no KV connector is configured: ignored"
                )
            return 0
        if not self.options.reads_hints:
            params = {}
        storable = self._storable_tokens(prompt.tokens, params)
        wanted = prompt.chunks[found.hit : max(found.hit, storable // CHUNK_TOKENS)]
        return self.cache.store(wanted) if wanted else 0

    def _storable_tokens(self, tokens: int, params: dict[str, Any]) -> int:
        if self.options.mode == "in_process":
            return 0 if params.get("lmcache.skip_save", False) else tokens
        cap = params.get("lmcache.max_offload_tokens")
        if cap is None:
            return tokens
        try:
            return int(min(tokens, cap))
        except TypeError as error:
            self.dead = True
            _logger.critical(
                "lmcache.max_offload_tokens=%r stops vLLM's engine: %s. Send an int.",
                cap,
                error,
            )
            raise EngineDeadError from error

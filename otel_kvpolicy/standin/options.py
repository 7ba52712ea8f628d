"""The options of a stand-in: sizes, mode, faults. The defaults suit a small demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["mp", "in_process", "none"]
"""How vLLM is connected to LMCache: to its multi-process server, in process, or not at all."""

StrictStyle = Literal[
    "openai",
    "openai_responses",
    "azure",
    "mistral",
    "mistral_text",
    "nim",
    "groq",
    "gemini",
    "anthropic",
    "fireworks",
    "vllm_2024",
]

CHUNK_TOKENS: Final = 256
"""Tokens in LMCache's default chunk (``chunk_size`` in ``GET /status`` of a 0.5.6 server)."""

GPU_BLOCK_TOKENS: Final = 16
"""Tokens in vLLM's default KV block on GPUs."""

_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Options:
    """Sizes, behavior and faults of one stand-in.

    Attributes:
        mode: how vLLM is connected to LMCache, which determines the per-request keys that LMCache
            reads; see :mod:`otel_kvpolicy.standin.engine`.
        models: served model names. The first one labels the metrics. Other names get vLLM's 404.
        l1_bytes: capacity of LMCache's CPU memory tier.
        l2_bytes: capacity of LMCache's storage backend, or 0 for none.
        kv_bytes_per_token: KV size of one token. The default is that of an 8B model with
            grouped-query attention in bfloat16.
        gpu_tokens: capacity of vLLM's own prefix cache, in tokens.
        max_model_len: longest prompt in tokens. Longer prompts get vLLM's 400.
        eviction_watermark: share of a tier above which it evicts (LMCache's
            ``--eviction-trigger-watermark``).
        eviction_ratio: share of a tier's chunks that one eviction takes (LMCache's
            ``--eviction-ratio``).
        prompt_tokens_details: vLLM's ``--enable-prompt-tokens-details``. Without it, chat usage has
            no cached tokens.
        honour_hints: false for an LMCache that reads no per-request key (multi-process mode before
            0.5.6).
        vendored_connector: use the copy of the multi-process connector in vLLM, which is vLLM's
            fallback. It reads no per-request key, returns no token statistics, and has no metrics.
        serve_metrics: false for a 404 on both metrics pages.
        latency: seconds before the first token.
        strict: reject unknown body fields as this vendor does, or None to accept them as vLLM does.
        api_key: bearer token required on ``/v1``, or None.
        fail_first: number of model calls that get ``fail_status`` before the first success.
        fail_status: HTTP status of the failed calls.
        keep_requests: number of requests that :attr:`StandIn.requests` keeps.
    """

    mode: Mode = "mp"
    models: tuple[str, ...] = ("stand-in",)
    l1_bytes: int = 4096 * _MIB
    l2_bytes: int = 16384 * _MIB
    kv_bytes_per_token: int = 131072
    gpu_tokens: int = 32768
    max_model_len: int = 131072
    eviction_watermark: float = 0.8
    eviction_ratio: float = 0.2
    prompt_tokens_details: bool = True
    honour_hints: bool = True
    vendored_connector: bool = False
    serve_metrics: bool = True
    latency: float = 0.0
    strict: StrictStyle | None = None
    api_key: str | None = None
    fail_first: int = 0
    fail_status: int = 500
    keep_requests: int = 1000

    @property
    def reads_hints(self) -> bool:
        """Whether a per-request key has any effect."""
        return self.honour_hints and not self.vendored_connector

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one LMCache chunk."""
        return self.kv_bytes_per_token * CHUNK_TOKENS

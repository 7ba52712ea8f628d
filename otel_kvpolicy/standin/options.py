"""What a stand-in can be told: sizes, mode, faults. Everything has a default that suits a small demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["mp", "in_process", "none"]
"""How vLLM reaches LMCache: through its multi-process server, its in-process connector, or not at all."""

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
"""LMCache's default chunk (`GET /status` of a 0.5.6 server: ``chunk_size``)."""

GPU_BLOCK_TOKENS: Final = 16
"""vLLM's default KV block on GPUs."""

_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Options:
    """Sizes, behaviour and faults of one stand-in.

    Attributes:
        mode: which of LMCache's two request-level store rules applies, see :mod:`otel_kvpolicy.standin.engine`.
        models: served model names; the first is the one metrics are labelled with. Other names get vLLM's 404.
        l1_bytes: capacity of LMCache's CPU memory tier.
        l2_bytes: capacity of its storage backend; 0 for none.
        kv_bytes_per_token: KV size of one token; the default is that of an 8B model with grouped-query attention in bfloat16.
        gpu_tokens: tokens that fit in vLLM's own prefix cache.
        max_model_len: tokens; longer prompts get vLLM's 400.
        eviction_watermark: share of a tier above which it evicts (LMCache's ``--eviction-trigger-watermark``).
        eviction_ratio: share of a tier's chunks that one eviction takes (LMCache's ``--eviction-ratio``).
        prompt_tokens_details: vLLM's ``--enable-prompt-tokens-details``; without it chat usage says nothing of cached tokens.
        honour_hints: false for an LMCache that reads no per-request key (multi-process mode before 0.5.6).
        vendored_connector: vLLM's own copy of the multi-process connector, which it falls back to: reads no per-request key, tells no
            share of a call and has no series of its own.
        serve_metrics: false answers 404 on both metrics pages.
        latency: seconds before the first token.
        strict: refuse unknown body fields as this vendor does; None takes them, as vLLM does.
        api_key: bearer token asked for on ``/v1``; None asks for none.
        fail_first: number of model calls answered with ``fail_status`` before any succeeds.
        fail_status: HTTP status of those.
        keep_requests: how many of the last requests :attr:`StandIn.requests` remembers.
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

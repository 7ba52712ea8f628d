"""The outcome of a rule, free of telemetry and of any server's wire format but LMCache's one key."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

_set: Final = object.__setattr__  # a frozen model refuses its own

SKIP_SAVE_KEY: Final = "lmcache.skip_save"
"""LMCache's per-request key, read by its in-process connector since 0.3.6 (``integration/vllm/vllm_v1_adapter.py``)."""


def reason_code(reason: str) -> str:
    """The bounded code of a reason: ``long_shared_prefix(2000>=1024t)`` -> ``long_shared_prefix``."""
    return reason.partition("(")[0]


class KVCacheDecision(BaseModel):
    """What a rule decided for the KV cache of one chat call. Immutable.

    Attributes:
        cache_worthy: whether the rule expects the call's KV to be used again.
        skip_save: whether the call's KV is not to be stored.
        score: 0 to 1, for people and histograms; the verdict does not depend on it.
        reasons: why, strongest first, with numbers (``long_shared_prefix(2000>=1024t)``).
        signals: what was counted: ``prefix_tokens``, ``tool_tokens`` (a part of the prefix), ``history_tokens``, ``rag_tokens``,
            ``user_tokens``, ``total_tokens`` (estimated tokens) and ``history_turns``; empty when disabled.
        enabled: false when ``KV_CACHE_LAYERING`` is off; such a decision changes nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cache_worthy: bool
    skip_save: bool
    score: float = 0.0
    reasons: list[str] = []
    signals: dict[str, int] = {}
    enabled: bool = True

    @classmethod
    def trusted(
        cls, *, cache_worthy: bool, score: float, reasons: list[str], signals: dict[str, int]
    ) -> KVCacheDecision:
        """An enabled decision made of values that need no validation, for a rule's own use on the path of each call.

        Validation is a third of what a decision costs. This sets what ``BaseModel.model_construct`` sets (pydantic 2.10 to 2.14), without
        its loops over fields, aliases and defaults.
        """
        decision = object.__new__(cls)
        values = {
            "cache_worthy": cache_worthy,
            "skip_save": not cache_worthy,
            "score": score,
            "reasons": reasons,
            "signals": signals,
            "enabled": True,
        }
        _set(decision, "__dict__", values)
        _set(decision, "__pydantic_fields_set__", set(values))
        _set(decision, "__pydantic_extra__", None)
        _set(decision, "__pydantic_private__", None)
        return decision

    @property
    def kv_transfer_params(self) -> dict[str, Any]:
        """The decision in LMCache's in-process spelling: ``{"lmcache.skip_save": bool}``, ``{}`` when disabled.

        What is really sent holds more where the call is skipped: see :mod:`otel_kvpolicy.hints.lmcache`.
        """
        return {SKIP_SAVE_KEY: self.skip_save} if self.enabled else {}

    @property
    def reason_codes(self) -> list[str]:
        """The reasons without their numbers: few, bounded, fit for metric attributes."""
        return [reason_code(reason) for reason in self.reasons]

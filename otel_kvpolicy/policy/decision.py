"""What a rule returns: the decision, the sentence that explains it, and what the rule measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from .._fast import unvalidated

SKIP_SAVE_KEY: Final = "lmcache.skip_save"
"""LMCache's per-request key, read by its in-process connector since 0.3.6
(``integration/vllm/vllm_v1_adapter.py``)."""

STORE: Final = "store"
SKIP: Final = "skip"


def reason_code(reason: str) -> str:
    """Return the bounded code of a reason: ``long_shared_prefix`` for
    ``long_shared_prefix(2000>=1024t)``.
    """
    return reason.partition("(")[0]


class KVCacheDecision(BaseModel):
    """What a rule decided for the KV cache of one chat call. Immutable.

    Attributes:
        cache_worthy: True if the rule expects the call's KV to be used again.
        skip_save: True if the server should not store the call's KV.
        score: 0 to 1, for people and histograms; the decision does not depend on it.
        reasons: why, strongest first, with numbers (``long_shared_prefix(2000>=1024t)``).
        signals: what was counted: ``prefix_tokens``, ``tool_tokens`` (part of the prefix),
            ``history_tokens``, ``rag_tokens``, ``user_tokens``, ``total_tokens`` (estimated tokens)
            and ``history_turns``. Empty if the policy is disabled.
        enabled: False if ``KV_CACHE_LAYERING`` is off; such a decision changes nothing.
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
        """Build an enabled decision without validation, for rules that run on every call.

        Args:
            cache_worthy: True if the call is worth storing.
            score: 0 to 1.
            reasons: reasons with their numbers, strongest first.
            signals: what was counted.
        """
        return unvalidated(
            cls,
            {
                "cache_worthy": cache_worthy,
                "skip_save": not cache_worthy,
                "score": score,
                "reasons": reasons,
                "signals": signals,
                "enabled": True,
            },
        )

    @property
    def kv_transfer_params(self) -> dict[str, Any]:
        """The decision as ``{"lmcache.skip_save": bool}``; ``{}`` if the policy is disabled.

        The hint that is sent can hold more keys: see :mod:`otel_kvpolicy.hints.lmcache`.
        """
        return {SKIP_SAVE_KEY: self.skip_save} if self.enabled else {}

    @property
    def reason_codes(self) -> list[str]:
        """The reasons without their numbers, fit for metric attributes."""
        return [reason_code(reason) for reason in self.reasons]


class RuleAttribute(NamedTuple):
    """A fact that a rule records beside its decision.

    Attributes:
        name: name on the span, without the leading ``kvpolicy.``.
        type: OpenTelemetry attribute type.
        meaning: one sentence for people.
        always: True if every call that carries a decision carries the attribute.
    """

    name: str
    type: Literal["string", "int", "double"]
    meaning: str
    always: bool = False


class Verdict(NamedTuple):
    """A decision with everything the rule has to say about it.

    Attributes:
        decision: what the rule decided.
        rule: name of the rule, ``thresholds`` or ``adaptive``.
        sentence: the decision explained in one sentence, with numbers and without prompt content.
        attributes: values by :class:`RuleAttribute` name.
    """

    decision: KVCacheDecision
    rule: str
    sentence: str
    attributes: Mapping[str, Any]

    @property
    def choice(self) -> str:
        """``store`` or ``skip``."""
        return SKIP if self.decision.skip_save else STORE

"""What is recorded of one decided call, and the sentence that explains it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..policy import KVCacheDecision, KVCacheLayeringPolicy
from . import names

__all__ = ["CallRecord", "Outcome", "explanation"]

Outcome = Literal["applied", "observed", "caller", "excluded_target", "rejected", "disabled", "error"]


class CallRecord(NamedTuple):
    """One decided call.

    Attributes:
        decision: the rule's verdict.
        skip: what is in force for the call: the rule's verdict, or the caller's own where the caller decided.
        outcome: what became of the hint.
        mode: ``enforce`` or ``observe``.
        policy: the rule, with the thresholds it used.
        model: as requested.
        address: host name of the server.
        port: its port.
        agent: name of the agent, where known.
    """

    decision: KVCacheDecision
    skip: bool
    outcome: Outcome
    mode: str
    policy: KVCacheLayeringPolicy
    model: str
    address: str
    port: int
    agent: str | None

    @property
    def verdict(self) -> str:
        """``store`` or ``skip``."""
        return names.SKIP if self.skip else names.STORE


def explanation(record: CallRecord) -> str:
    """One sentence for people, with the numbers and the thresholds, and no content of the prompt."""
    decision, policy = record.decision, record.policy
    if not decision.enabled:
        return "Nothing was decided: KV_CACHE_LAYERING is off, and the server stores by its own rules."
    verdict = f"{'Skipped' if decision.skip_save else 'Stored'}: {', '.join(decision.reasons)}"
    counted = decision.signals
    if counted.keys() >= {"prefix_tokens", "history_turns", "total_tokens"}:  # a rule of the user's own need not count
        verdict += (
            f" (prefix {counted['prefix_tokens']} of {policy.min_prefix_tokens} tokens, "
            f"{counted['history_turns']} of {policy.min_history_turns} earlier turns, "
            f"{counted['total_tokens']} of {policy.min_context_tokens} tokens in all)"
        )
    return f"{verdict}.{_ADDENDA.get(record.outcome, '')}"


_ADDENDA = {
    "caller": " The caller had set the hint itself, so the caller's choice stands.",
    "observed": " Observe mode: nothing was sent.",
    "excluded_target": " Nothing was sent: this server is not among KV_CACHE_TARGETS.",
    "rejected": " The server refuses the hint, so the call went out without it.",
}

"""What is recorded of one decided call, and the sentence that explains it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .policy import KVCacheDecision, KVCacheLayeringPolicy
from .policy.adaptive.rule import AdaptiveRule, Why
from .telemetry import names

Outcome = Literal[
    "applied", "observed", "caller", "excluded_target", "rejected", "disabled", "error"
]


class Shadow(NamedTuple):
    """What the rule that is not in force would have decided.

    Attributes:
        skip: its verdict.
        explanation: why, in a sentence.
    """

    skip: bool
    explanation: str

    @property
    def verdict(self) -> str:
        """``store`` or ``skip``."""
        return names.SKIP if self.skip else names.STORE


class CallRecord(NamedTuple):
    """One decided call.

    Attributes:
        decision: the rule's verdict.
        skip: what is in force for the call: the rule's verdict, or the caller's own where the caller decided.
        outcome: what became of the hint.
        mode: ``enforce`` or ``observe``.
        policy: the fixed rule, with its thresholds, or one of the user's own.
        model: as requested.
        address: host name of the server.
        port: its port.
        agent: name of the agent, where known.
        why: what the learned rule's verdict rests on, where that rule decided.
        shadow: what the other rule would have decided, where asked.
        keep_tokens: leading tokens of a skipped call that are stored all the same.
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
    why: Why | None = None
    shadow: Shadow | None = None
    keep_tokens: int = 0

    @property
    def rule(self) -> str:
        """The rule that decided."""
        return self.policy.rule if self.why is None else AdaptiveRule.rule

    @property
    def verdict(self) -> str:
        """``store`` or ``skip``."""
        return names.SKIP if self.skip else names.STORE


def explanation(record: CallRecord) -> str:
    """One sentence for people, with the numbers and the thresholds, and no content of the prompt."""
    if not record.decision.enabled:
        return (
            "Nothing was decided: KV_CACHE_LAYERING is off, and the server stores by its own rules."
        )
    said = (
        by_thresholds(record.decision, record.policy)
        if record.why is None
        else by_learning(record.why)
    )
    if record.outcome == "caller":
        return f"The caller had set the hint itself, to {record.verdict}. The rule alone: {said[0].lower()}{said[1:]}"
    kept = (
        f" Its first {record.keep_tokens} tokens came before and are stored."
        if record.keep_tokens
        else ""
    )
    return f"{said}{kept}{_ADDENDA.get(record.outcome, '')}"


def by_thresholds(decision: KVCacheDecision, policy: KVCacheLayeringPolicy) -> str:
    """The verdict of the fixed rule, or of one of the user's own, in a sentence."""
    verdict = f"{'Skipped' if decision.skip_save else 'Stored'}: {', '.join(decision.reasons)}"
    counted = decision.signals
    if counted.keys() >= {
        "prefix_tokens",
        "history_turns",
        "total_tokens",
    }:  # a rule of the user's own need not count
        verdict += (
            f" (prefix {counted['prefix_tokens']} of {policy.min_prefix_tokens} tokens, "
            f"{counted['history_turns']} of {policy.min_history_turns} earlier turns, "
            f"{counted['total_tokens']} of {policy.min_context_tokens} tokens in all)"
        )
    return f"{verdict}."


def by_learning(why: Why) -> str:
    """The verdict of the learned rule in words."""
    return f"{'Stored' if why.stores else 'Skipped'}: {why.sentence}"


_ADDENDA = {
    "observed": " Observe mode: nothing was sent.",
    "excluded_target": " Nothing was sent: this server is not among KV_CACHE_TARGETS.",
    "rejected": " The server refuses the hint, so the call went out without it.",
}

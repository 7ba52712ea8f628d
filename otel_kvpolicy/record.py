"""What is recorded about one decided call, and the sentence that explains it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from .policy import SKIP, STORE, KVCacheDecision, Verdict

Outcome = Literal[
    "applied", "observed", "caller", "excluded_target", "rejected", "disabled", "error"
]
"""What happened to the hint."""

OUTCOMES: Final[dict[str, str]] = {
    "applied": "The hint was sent with the request.",
    "observed": "Observe mode: nothing was sent.",
    "caller": "The caller set the hint, and nothing was added to it.",
    "excluded_target": "Nothing was sent: the server is not among KV_CACHE_TARGETS.",
    "rejected": "The server rejects the hint, so the call went out without it.",
    "disabled": "Nothing was sent.",
    "error": "The hint could not be added to the request, so the call went out without it.",
}
"""Each outcome in one sentence."""


class CallRecord(NamedTuple):
    """One decided call.

    Attributes:
        verdict: what the active rule decided, and why.
        skip: True if the call should not be stored: by the rule, or by the caller if the caller
            decided.
        outcome: what happened to the hint.
        mode: ``enforce`` or ``observe``.
        model: model that the request names.
        address: host name of the server.
        port: port of the server.
        agent: name of the agent, if known.
        shadow: what the other rule would have decided, if ``KV_CACHE_SHADOW`` is on.
        keep_tokens: leading tokens of a skipped call that are stored anyway.
    """

    verdict: Verdict
    skip: bool
    outcome: Outcome
    mode: str
    model: str
    address: str
    port: int
    agent: str | None
    shadow: Verdict | None = None
    keep_tokens: int = 0

    @property
    def decision(self) -> KVCacheDecision:
        """The decision of the active rule."""
        return self.verdict.decision

    @property
    def choice(self) -> str:
        """``store`` or ``skip``, as the rule or the caller decided."""
        return SKIP if self.skip else STORE

    @property
    def explanation(self) -> str:
        """One or two sentences for people, with numbers and without prompt content."""
        if not self.decision.enabled:
            return (
                "Nothing was decided: KV_CACHE_LAYERING is off, and the server stores by its own "
                "rules."
            )
        sentence = self.verdict.sentence
        if self.outcome == "caller":
            return (
                f"The caller set the hint to {self.choice}. The rule alone: "
                f"{sentence[0].lower()}{sentence[1:]}"
            )
        if self.keep_tokens:
            sentence += f" Its first {self.keep_tokens} tokens were seen before and are stored."
        return sentence if self.outcome == "applied" else f"{sentence} {OUTCOMES[self.outcome]}"

"""The verdict on a call: of the rule in force, and of the other one where asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .context import CallContext
from .hints.lmcache import FIELD, MAX_OFFLOAD_KEY
from .policy import CallText, KVCacheDecision, KVCacheLayeringPolicy
from .policy.adaptive.boundaries import chain_of
from .policy.adaptive.rule import AdaptiveCall, AdaptiveRule, Why
from .policy.signals import content_chars
from .record import CallRecord, Shadow, by_learning, by_thresholds
from .requests import Answer
from .requests.decide_arguments import parts_of
from .settings import Settings


class Lesson(NamedTuple):
    """A call that the learned rule has seen, to be told what became of it."""

    rule: AdaptiveRule
    call: AdaptiveCall
    capped: bool

    def settle(self, record: CallRecord) -> None:
        """Tells, once its prompt was processed, whether the call was to be stored: where no hint reached the server, it stores by its own
        rules. Nothing is told of what a caller let store in part, or of a server that knows no hint, whose cache is another.
        """
        if record.outcome == "rejected" or (self.capped and not record.skip):
            return
        stored = record.outcome not in {"applied", "caller"} or not record.skip
        self.rule.settle(self.call, stored=stored, kept=record.keep_tokens > 0)

    def learn(self, answer: Answer) -> None:
        """Tells what the server had of the prompt, where it says."""
        if answer.cached_tokens is not None and answer.input_tokens is not None:
            self.rule.observe(
                self.call, answer.cached_tokens, answer.input_tokens, answer.lmcache_tokens
            )


class Verdict(NamedTuple):
    """What was decided.

    Attributes:
        decision: of the rule in force.
        why: what it rests on, where the learned rule is in force.
        shadow: what the other rule would have decided, where asked.
        keep_tokens: leading tokens of a skipped call that are to be stored all the same.
        lesson: for the learned rule, where it has seen the call.
    """

    decision: KVCacheDecision
    why: Why | None = None
    shadow: Shadow | None = None
    keep_tokens: int = 0
    lesson: Lesson | None = None


def judge(
    text: CallText,
    body: Mapping[Any, Any],
    known: CallContext,
    *,
    policy: KVCacheLayeringPolicy | None,
    knobs: Settings,
    learned: AdaptiveRule | None,
) -> Verdict:
    """Decides for a call.

    Args:
        text: what was counted of it.
        body: the request as it goes out.
        known: what the caller says of it.
        policy: a rule given in code, which is then in force; ``None`` for that of the settings.
        knobs: settings in force.
        learned: the learned rule, where anybody asks for it.
    """
    fixed = policy or knobs.policy
    outlined = text
    if known.rag_context is not None:
        text = _set_apart(text, content_chars(known.rag_context))
    if learned is None or not fixed.enabled:
        return Verdict(_by_policy(fixed, text, body, known))
    decision, call = learned.decide(
        text, known.agent_name or known.role, chain_of(body, learned.key, outlined), settled=False
    )
    given = body.get(FIELD)
    lesson = Lesson(
        learned, call, isinstance(given, Mapping) and given.get(MAX_OFFLOAD_KEY) is not None
    )
    if policy is None and knobs.rule == AdaptiveRule.rule:
        shadow = _of_fixed(fixed, text, body, known) if knobs.shadow else None
        return Verdict(decision, call.why, shadow, _keep(decision, call, knobs), lesson)
    shadow = Shadow(decision.skip_save, by_learning(call.why)) if knobs.shadow else None
    return Verdict(_by_policy(fixed, text, body, known), shadow=shadow, lesson=lesson)


def _of_fixed(
    fixed: KVCacheLayeringPolicy, text: CallText, body: Mapping[Any, Any], known: CallContext
) -> Shadow:
    decision = _by_policy(fixed, text, body, known)
    return Shadow(decision.skip_save, by_thresholds(decision, fixed))


def _keep(decision: KVCacheDecision, call: AdaptiveCall, knobs: Settings) -> int:
    if not knobs.partial_store or knobs.hint_keys == "skip_save" or not decision.skip_save:
        return 0
    return call.keep_tokens(knobs.chars_per_token)


def _by_policy(
    policy: Any, text: CallText, body: Mapping[Any, Any], known: CallContext
) -> KVCacheDecision:
    if (
        type(policy).decide is not KVCacheLayeringPolicy.decide
    ):  # a rule of the user's own, through the public method
        decision: KVCacheDecision = policy.decide(
            **parts_of(body), rag_context=known.rag_context, role=known.role
        )
        return decision
    return policy.judge(text, known.role)  # type: ignore[no-any-return]


def _set_apart(text: CallText, rag_chars: int) -> CallText:
    """Counts the retrieved block apart from the question or the system prompt that holds it."""
    of_user = min(rag_chars, text.user_chars)
    of_prefix = min(rag_chars - of_user, text.prefix_chars)
    return text._replace(
        rag_chars=of_user + of_prefix,
        user_chars=text.user_chars - of_user,
        prefix_chars=text.prefix_chars - of_prefix,
    )

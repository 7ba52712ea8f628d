"""The one path from a request body to a decision, for live calls and for ``explain --request``.

The steps: count the body, apply the active rule (and the other rule as a shadow), work out the
outcome, and build the hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .context import CallContext
from .hints.dialect import Dialect
from .hints.targets import Origin
from .layering_policy import KVCacheLayeringPolicy
from .policy import CallText, KVCacheDecision, ThresholdsRule, Verdict
from .policy.adaptive.boundaries import boundaries_of
from .policy.adaptive.rule import AdaptiveCall, AdaptiveRule
from .policy.calibration import Auto, Calibrated, Calibration
from .policy.counting import content_chars
from .policy.signals import total_chars
from .policy.thresholds import CHARS_PER_TOKEN, SCRIPT
from .record import CallRecord, Outcome
from .requests import Answer
from .requests.decide_arguments import decide_arguments
from .requests.sample import is_all_text, script_of_request
from .settings import Settings


class Destination(NamedTuple):
    """Where a call goes, and whether the hint may go with it.

    Attributes:
        origin: the server; None if unknown, as for a request that is only examined.
        allowed: True if ``KV_CACHE_TARGETS`` allows the hint there.
        rejected: True if the server has rejected the hint before.
    """

    origin: Origin | None = None
    allowed: bool = True
    rejected: bool = False


UNKNOWN_DESTINATION: Final = Destination()


class Feedback(NamedTuple):
    """Tells the adaptive rule what happened to a call that it has seen."""

    rule: AdaptiveRule
    call: AdaptiveCall
    caller_caps: bool

    def settle(self, record: CallRecord) -> None:
        """Report whether the call was to be stored. Call this once its prompt was processed.

        A server that got no hint stores by its own rules. Nothing is reported if the caller let the
        server store a part, or if the server rejects the hint: its cache does not follow the hint.
        """
        if record.outcome == "rejected" or (self.caller_caps and not record.skip):
            return
        stored = record.outcome not in {"applied", "caller"} or not record.skip
        self.rule.settle(self.call, stored=stored, kept=record.keep_tokens > 0)

    def observe(self, answer: Answer) -> None:
        """Report how much of the prompt the server had cached, if the answer says so."""
        if answer.cached_tokens is not None and answer.input_tokens is not None:
            self.rule.observe(
                self.call, answer.cached_tokens, answer.input_tokens, answer.lmcache_tokens
            )


class DecidedCall(NamedTuple):
    """The result of :func:`decide_call`.

    Attributes:
        record: what is recorded about the call.
        dialect: how the server is told.
        params: new value of the dialect's field; None leaves the body as it is.
        feedback: for the adaptive rule, if it has seen the call and the server may get the hint.
        calibrated: what the server's token count teaches, if the ratio is learned.
        fault: what went wrong while the hint was built, if the outcome is ``error``.
    """

    record: CallRecord
    dialect: Dialect
    params: Any = None
    feedback: Feedback | None = None
    fault: Exception | None = None
    calibrated: Calibrated | None = None


def decide_call(
    text: CallText,
    body: Mapping[Any, Any],
    context: CallContext,
    *,
    settings: Settings,
    policy: KVCacheLayeringPolicy | None = None,
    adaptive: AdaptiveRule | None = None,
    calibration: Calibration | None = None,
    destination: Destination = UNKNOWN_DESTINATION,
) -> DecidedCall:
    """Decide a call and work out what is sent to the server.

    Args:
        text: the counts of ``body``.
        body: the request as it would go out without this package.
        context: what the caller said about its calls.
        settings: settings in force.
        policy: rule passed to the instrumentor, which then decides; None for the rule that the
            settings name.
        adaptive: the adaptive rule, if it is active or shadowing.
        calibration: characters per token that were learned, if ``KV_CACHE_CHARS_PER_TOKEN=auto``.
        destination: where the call goes.
    """
    dialect = settings.dialect.of(destination.origin)
    thresholds = settings.policy if policy is None else policy.in_force
    calibrated = None
    if (
        calibration is not None
        and isinstance(thresholds.chars_per_token, Auto)
        and thresholds.enabled
        and not _has_own_rule(policy)
    ):
        calibrated = _calibrate(text, body, calibration, destination)
    ruling = _rule(
        text,
        body,
        context,
        thresholds=thresholds,
        policy=policy,
        settings=settings,
        adaptive=adaptive,
        calibrated=calibrated,
        partial=settings.partial_store and dialect.keeps_parts(settings.hint_keys),
    )
    decision = ruling.verdict.decision
    given = body.get(dialect.field)
    callers = dialect.is_callers(given)
    params, fault = None, None
    outcome = _outcome(decision, settings, destination, callers=callers)
    if outcome == "applied":
        try:
            params = dialect.params(
                skip=decision.skip_save,
                keys=settings.hint_keys,
                keep_tokens=ruling.keep_tokens,
                stats=settings.cached_token_stats,
            )
            params = dialect.merge(given, params) if params else None
        except Exception as error:  # noqa: BLE001 - the caller's own objects can raise anything
            outcome, params, fault = "error", None, error
    model = body.get("model")
    origin = destination.origin
    record = CallRecord(
        verdict=ruling.verdict,
        skip=dialect.caller_skips(given) if callers else decision.skip_save,
        outcome=outcome,
        mode=settings.mode,
        model=model if isinstance(model, str) else "",
        address=origin.host if origin else "",
        port=origin.port if origin else 0,
        agent=context.agent_name,
        shadow=ruling.shadow,
        keep_tokens=ruling.keep_tokens if outcome == "applied" else 0,
    )
    feedback = None
    if adaptive is not None and ruling.seen is not None and destination.allowed:
        feedback = Feedback(adaptive, ruling.seen, dialect.caller_caps(given))
    return DecidedCall(record, dialect, params, feedback, fault, calibrated)


def _calibrate(
    text: CallText, body: Mapping[Any, Any], calibration: Calibration, destination: Destination
) -> Calibrated:
    """Return the characters per token to decide a call with."""
    model = body.get("model")
    cache = destination.origin, model if isinstance(model, str) else ""
    script = script_of_request(body, text)
    chars = total_chars(text) if is_all_text(body, text) else 0
    return Calibrated(cache, script, calibration.ratio(cache, script), chars)


def _outcome(
    decision: KVCacheDecision, settings: Settings, destination: Destination, *, callers: bool
) -> Outcome:
    if not decision.enabled:
        return "disabled"
    if callers:
        return "caller"
    if settings.mode == "observe":
        return "observed"
    if not destination.allowed:
        return "excluded_target"
    return "rejected" if destination.rejected else "applied"


class _Ruling(NamedTuple):
    """What the rules decided.

    Attributes:
        verdict: that of the active rule.
        shadow: that of the other rule, if ``KV_CACHE_SHADOW`` is on.
        keep_tokens: leading tokens of a skipped call that should be stored anyway.
        seen: the call as the adaptive rule remembers it.
    """

    verdict: Verdict
    shadow: Verdict | None = None
    keep_tokens: int = 0
    seen: AdaptiveCall | None = None


def _rule(
    text: CallText,
    body: Mapping[Any, Any],
    context: CallContext,
    *,
    thresholds: ThresholdsRule,
    policy: KVCacheLayeringPolicy | None,
    settings: Settings,
    adaptive: AdaptiveRule | None,
    calibrated: Calibrated | None,
    partial: bool,
) -> _Ruling:
    counted = text
    if context.rag_context is not None:
        text = _set_apart(text, content_chars(context.rag_context))
    if adaptive is None or not thresholds.enabled:
        return _Ruling(
            _by_thresholds(thresholds, policy, text, body, context, calibrated=calibrated)
        )
    decision, seen = adaptive.decide(
        text,
        context.agent_name or context.role,
        boundaries_of(body, adaptive.key, counted),
        settled=False,
        chars_per_token=calibrated.ratio if calibrated else None,
    )
    verdict = _with_ratio(adaptive.verdict(decision, seen), calibrated)
    if policy is None and settings.rule == AdaptiveRule.rule:
        shadow = None
        if settings.shadow:
            shadow = _by_thresholds(thresholds, policy, text, body, context, calibrated=calibrated)
        keep = 0
        if partial and decision.skip_save:
            keep = seen.keep_tokens(calibrated.ratio if calibrated else settings.chars_per_token)
        return _Ruling(verdict, shadow, keep, seen)
    return _Ruling(
        _by_thresholds(thresholds, policy, text, body, context, calibrated=calibrated),
        shadow=verdict if settings.shadow else None,
        seen=seen,
    )


def _with_ratio(verdict: Verdict, calibrated: Calibrated | None) -> Verdict:
    """Record the ratio that was learned, instead of the one that the rule starts with."""
    if calibrated is None:
        return verdict
    learned = {CHARS_PER_TOKEN: round(calibrated.ratio, 3), SCRIPT: calibrated.script}
    return verdict._replace(attributes={**verdict.attributes, **learned})


def _has_own_rule(policy: KVCacheLayeringPolicy | None) -> bool:
    """Return True if a subclass overrides one of the methods that decide."""
    return policy is not None and (
        type(policy).decide is not KVCacheLayeringPolicy.decide
        or type(policy).judge is not KVCacheLayeringPolicy.judge
    )


def _by_thresholds(
    thresholds: ThresholdsRule,
    policy: KVCacheLayeringPolicy | None,
    text: CallText,
    body: Mapping[Any, Any],
    context: CallContext,
    *,
    calibrated: Calibrated | None,
) -> Verdict:
    if policy is None or not _has_own_rule(policy):
        ratio = calibrated.ratio if calibrated else None
        return _with_ratio(
            thresholds.verdict(thresholds.judge(text, context.role, ratio)), calibrated
        )
    if type(policy).decide is KVCacheLayeringPolicy.decide:  # only judge is overridden
        decision = policy.judge(text, context.role)
    else:  # a subclass with its own rule decides through its public method
        decision = policy.decide(
            **decide_arguments(body), rag_context=context.rag_context, role=context.role
        )
    return thresholds.verdict(decision)._replace(rule=policy.rule)


def _set_apart(text: CallText, rag_chars: int) -> CallText:
    """Count the retrieved block apart from the question or the system prompt that holds it."""
    from_user = min(rag_chars, text.user_chars)
    from_prefix = min(rag_chars - from_user, text.prefix_chars)
    return text._replace(
        rag_chars=from_user + from_prefix,
        user_chars=text.user_chars - from_user,
        prefix_chars=text.prefix_chars - from_prefix,
    )

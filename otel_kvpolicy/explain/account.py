"""The account of one decision: verdict, rule, each signal against its threshold, what would have turned it, what followed, caveats.

A rule adds its own facts by an entry in ``RULES``. An attribute that no rule accounts for is still told, with its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..settings import env_name
from ..telemetry import names
from .changes import Change, changes
from .source import Neighbours, oldest_first
from .spans import RecordedSpan, policy_of, rejudged, text_of

__all__ = ["RULES", "Explanation", "Fact", "Measure", "Reading", "explain"]

CHUNK_TOKENS: Final = 256  # LMCache's default; hybrid models need larger ones
OFF: Final = 0.15  # about what an estimate by characters is off


class Measure(NamedTuple):
    """One signal against its threshold.

    Attributes:
        name: what was counted.
        value: how much of it.
        threshold: from how much on the call is stored.
        unit: ``tokens`` or ``turns``.
        setting: the variable that sets the threshold.
    """

    name: str
    value: int
    threshold: int
    unit: str
    setting: str

    @property
    def distance(self) -> int:
        """How far above the threshold; negative where it falls short."""
        return self.value - self.threshold

    @property
    def met(self) -> bool:
        """Whether it alone stores the call."""
        return self.distance >= 0

    @property
    def text(self) -> str:
        """``812 of 1024 tokens: 212 short``."""
        by = f"{-self.distance} short" if not self.met else f"{self.distance} over" if self.distance else "just enough"
        return f"{self.value} of {self.threshold} {self.unit}: {by}"


class Fact(NamedTuple):
    """Something else that the rule recorded: an attribute, its value, what it means."""

    name: str
    value: Any
    meaning: str


class Reading(NamedTuple):
    """What a rule says of a span: signals against thresholds, changes that turn the verdict, further facts, caveats of its own."""

    measures: tuple[Measure, ...] = ()
    changes: tuple[Change, ...] = ()
    facts: tuple[Fact, ...] = ()
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Why one call was or was not stored.

    Attributes:
        span: where it was read.
        verdict: ``store``, ``skip``, or ``none`` where the policy was off.
        headline: the verdict in a sentence.
        rule: the rule's name.
        mode: ``enforce`` or ``observe``.
        reasons: reason codes, with numbers where they can be told.
        reading: what the rule says.
        afterwards: what became of it.
        caveats: what to bear in mind.
    """

    span: RecordedSpan
    verdict: str
    headline: str
    rule: str
    mode: str
    reasons: tuple[str, ...]
    reading: Reading
    afterwards: tuple[str, ...]
    caveats: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        span, decision = self.span, self.span.decision
        return {
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "name": span.name,
            "service": span.service,
            "started": span.when.isoformat() if span.when else None,
            "seconds": span.seconds,
            "model": span.text(names.REQUEST_MODEL),
            "verdict": self.verdict,
            "headline": self.headline,
            "rule": self.rule,
            "mode": self.mode,
            "hint_outcome": span.text(names.HINT_OUTCOME),
            "decision": decision.model_dump(),
            "measures": [
                {**measure._asdict(), "distance": measure.distance, "met": measure.met, "text": measure.text}
                for measure in self.reading.measures
            ],
            "changes": [change._asdict() for change in self.reading.changes],
            "facts": [fact._asdict() for fact in self.reading.facts],
            "usage": {
                "input_tokens": span.count(names.USAGE_INPUT_TOKENS),
                "cached_tokens": span.count(names.USAGE_CACHE_READ_INPUT_TOKENS),
            },
            "afterwards": list(self.afterwards),
            "caveats": list(self.caveats),
        }


def explain(span: RecordedSpan, others: Neighbours | None = None, *, planned: Mapping[str, Any] | None = None) -> Explanation:
    """Accounts for the decision on ``span``.

    Args:
        span: one that carries a decision.
        others: further calls of the same source, among which later ones may have shared its prefix; None where nobody looked.
        planned: for a call that has not been made: the ``kv_transfer_params`` that it would carry.
    """
    decision = span.decision
    reading = _reading(span)
    verdict = (names.SKIP if span.skipped else names.STORE) if decision.enabled else "none"
    return Explanation(
        span=span,
        verdict=verdict,
        headline=_headline(span, verdict, "is" if planned is not None else "was"),
        rule=span.text(names.RULE) or "unknown",
        mode=span.text(names.MODE) or "unknown",
        reasons=tuple(decision.reasons),
        reading=reading,
        afterwards=(*_outcome(span), *_usage(span), *_later(span, others)) if planned is None else (_plan(planned),),
        caveats=(*_caveats(span), *reading.caveats),
    )


def _headline(span: RecordedSpan, verdict: str, is_: str) -> str:
    if verdict == "none":
        return f"Nothing {is_} decided: KV_CACHE_LAYERING {is_} off, and the server stores by its own rules."
    said = f"The call's KV {is_} not to be stored" if verdict == names.SKIP else f"The call's KV {is_} to be stored"
    outcome = span.text(names.HINT_OUTCOME)
    if outcome == "caller":
        opinion = "store" if span.flag(names.CACHE_WORTHY) else "skip"
        return f"{said}: the caller has set the hint itself. The rule alone says {opinion}."
    why = " and ".join(_WHY.get(code, code) for code in span.texts(names.REASONS)) or "no reason is recorded"
    if outcome in {"observed", "excluded_target", "rejected", "error"} and verdict == names.SKIP:
        return f"The call's KV {is_} not worth storing, but nothing keeps the server from it: {why}."
    return f"{said}: {why}."


def _plan(planned: Mapping[str, Any]) -> str:
    if not planned:
        return "Nothing would be sent."
    return f"It would go out with kv_transfer_params {json.dumps(dict(planned))}."


_WHY: Final = {
    "one_off_short_prompt": "no signal reached its threshold",
    "long_shared_prefix": "its system prompt and tools are long enough to be shared",
    "multi_turn_conversation": "it continues a conversation",
    "large_fixed_context": "the whole prompt is long",
    "large_rag_context": "its retrieved context is long",
    "reuse_heavy_role": "it comes from a role that asks again and is half long enough",
}


# --- rules -------------------------------------------------------------------------------------------------------------------------


def _reading(span: RecordedSpan) -> Reading:
    read = RULES.get(span.text(names.RULE) or "", _read_unknown)
    reading = read(span)
    return reading._replace(facts=(*reading.facts, *_other_facts(span, reading)))


def _measures(span: RecordedSpan) -> tuple[Measure, ...]:
    thresholds, counted = span.thresholds, span.signals
    if thresholds is None:
        return ()
    prefix_setting, context_setting, turns_setting = map(env_name, ("min_prefix_tokens", "min_context_tokens", "min_history_turns"))
    rows = [
        ("prefix", "prefix_tokens", thresholds.prefix_tokens, "tokens", prefix_setting),
        # a call without any earlier reply never counts as a conversation, whatever the setting
        ("earlier turns", "history_turns", max(1, thresholds.history_turns), "turns", turns_setting),
        ("whole prompt", "total_tokens", thresholds.context_tokens, "tokens", context_setting),
    ]
    if counted.get("rag_tokens"):
        rows.append(("retrieved context", "rag_tokens", max(1, thresholds.prefix_tokens), "tokens", prefix_setting))
    return tuple(
        Measure(name, counted[signal], threshold, unit, setting) for name, signal, threshold, unit, setting in rows if signal in counted
    )


def _read_thresholds(span: RecordedSpan) -> Reading:
    measures, again = _measures(span), rejudged(span)
    if again is None or span.thresholds is None:
        return Reading(measures)
    if again.cache_worthy != span.flag(names.CACHE_WORTHY):
        said = names.STORE if again.cache_worthy else names.SKIP
        return Reading(measures, caveats=(f"These numbers alone would have said {said}: a rule of the user's own decided.",))
    if span.text(names.HINT_OUTCOME) == "caller":
        return Reading(measures)  # the caller's word stands, whatever the signals
    return Reading(measures, tuple(changes(span.signals, span.thresholds, span.role)))


def _read_unknown(span: RecordedSpan) -> Reading:
    return Reading(_measures(span))


RULES: Final[dict[str, Callable[[RecordedSpan], Reading]]] = {"thresholds": _read_thresholds}
"""By the rule's name. For a rule that is not named here the thresholds and all that it recorded are told, without changes."""

_MEANING: Final = {attribute.name: attribute.meaning for attribute in names.ATTRIBUTES}
_TOLD: Final = frozenset(
    {names.DECISION, names.SKIP_SAVE, names.CACHE_WORTHY, names.SCORE, names.REASONS, names.EXPLANATION, names.RULE, names.MODE}
    | {names.HINT_OUTCOME, names.CHARS_PER_TOKEN, names.SIGNAL_PREFIX_TOKENS, names.SIGNAL_TOTAL_TOKENS, names.SIGNAL_HISTORY_TURNS}
    | {names.SIGNAL_TOOL_TOKENS, names.SIGNAL_HISTORY_TOKENS, names.SIGNAL_RAG_TOKENS, names.SIGNAL_USER_TOKENS}
    | {names.THRESHOLD_PREFIX_TOKENS, names.THRESHOLD_CONTEXT_TOKENS, names.THRESHOLD_HISTORY_TURNS}
)


def _other_facts(span: RecordedSpan, reading: Reading) -> list[Fact]:
    told = _TOLD | {fact.name for fact in reading.facts}
    return [
        Fact(name, value, _MEANING.get(name, ""))
        for name, value in sorted(span.attributes.items())
        if name.startswith("kvpolicy.") and name not in told
    ]


# --- what followed -----------------------------------------------------------------------------------------------------------------

_OUTCOMES: Final = {
    "applied": "The hint went out with the request.",
    "observed": "Observe mode: nothing was sent, and the server stored by its own rules.",
    "caller": "The caller's own keys went out; nothing was added.",
    "excluded_target": "Nothing was sent: the server is not among KV_CACHE_TARGETS, so it stored by its own rules.",
    "rejected": "The server refused the hint; the call was repeated without it, and the server stored by its own rules.",
    "disabled": "Nothing was sent.",
    "error": "The hint could not be put on the request; the call went out untouched.",
}


def _outcome(span: RecordedSpan) -> list[str]:
    outcome = span.text(names.HINT_OUTCOME) or ""
    told = [_OUTCOMES.get(outcome, f"What became of the hint is not known ({outcome or 'not recorded'}).")]
    failure = span.text(names.ERROR_TYPE)
    return [*told, f"The call itself failed: {failure}."] if failure else told


def _usage(span: RecordedSpan) -> list[str]:
    cached, prompt = span.count(names.USAGE_CACHE_READ_INPUT_TOKENS), span.count(names.USAGE_INPUT_TOKENS)
    if cached is None:
        return ["The server did not say how many tokens came from a cache (vLLM says so with --enable-prompt-tokens-details)."]
    of = f" of {prompt}" if prompt is not None else ""
    return [f"The server took {cached}{of} prompt tokens from a cache, vLLM's own and LMCache's together."]


def _later(span: RecordedSpan, others: Neighbours | None) -> list[str]:
    """Later calls that very likely had the same prefix: spans carry its size, not its text."""
    prefix = span.count(names.SIGNAL_PREFIX_TOKENS)
    if not prefix or span.started is None or others is None:
        return []

    def like(other: RecordedSpan) -> tuple[Any, ...]:
        return (other.service, other.text(names.REQUEST_MODEL), other.count(names.SIGNAL_PREFIX_TOKENS))

    later = [other for other in oldest_first(others.spans) if (other.started or 0) > span.started and like(other) == like(span)]
    if not later:
        return [f"No later call with a prefix of the same size was found {others.reach}."]
    cached = [str(other.count(names.USAGE_CACHE_READ_INPUT_TOKENS) or 0) for other in later[:5]]
    more = ", …" if len(later) > len(cached) else ""
    which = "1 later call has" if len(later) == 1 else f"{len(later)} later calls have"
    return [f"{which} a prefix of the same size, so very likely the same one; cached tokens there: {', '.join(cached)}{more}."]


# --- caveats -----------------------------------------------------------------------------------------------------------------------


def _caveats(span: RecordedSpan) -> list[str]:
    if span.decision.enabled is False:
        return []
    found = [_estimate(span), *_close(span)]
    outcome = span.text(names.HINT_OUTCOME)
    if outcome == "applied" and span.skipped:
        found.append(
            "Whether the server honours it cannot be seen here: LMCache's multi-process server does since 0.5.6 (max_offload_tokens), its "
            "in-process connector since 0.3.6 (skip_save). `otel-kvpolicy doctor` proves it."
        )
    if span.text(names.MODE) == "observe":
        found.append("Observe mode: the verdict is what would have been sent.")
    if outcome == "caller":
        found.append("The caller's keys override the rule; take them out of kv_transfer_params to let it decide.")
    total = span.count(names.SIGNAL_TOTAL_TOKENS)
    if total is not None and total < CHUNK_TOKENS:
        found.append(
            f"LMCache stores whole chunks only ({CHUNK_TOKENS} tokens by default): so short a prompt is never stored there anyway."
        )
    return found


def _estimate(span: RecordedSpan) -> str:
    chars = span.number(names.CHARS_PER_TOKEN)
    basis = f"Tokens are estimated at {chars:g} characters each" if chars else "Tokens are estimated from characters"
    total, counted = span.count(names.SIGNAL_TOTAL_TOKENS), span.count(names.USAGE_INPUT_TOKENS)
    if not total or not counted:
        return f"{basis}; no tokenizer runs on the caller's path."
    text = f"{basis}: {total} in all, where the server counted {counted} ({counted / total - 1:+.0%})."
    other = _by_factor(span, counted / total)
    return text if other is None else f"{text} By the server's count the rule would have said {other}."


def _by_factor(span: RecordedSpan, factor: float) -> str | None:
    """The other verdict, where the rule would come to it with ``factor`` times the tokens in each part."""
    again, thresholds = rejudged(span), span.thresholds
    if again is None or thresholds is None or again.cache_worthy != span.flag(names.CACHE_WORTHY):
        return None
    scaled = {name: value if name == "history_turns" else round(value * factor) for name, value in span.signals.items()}
    scaled["tool_tokens"] = min(scaled["tool_tokens"], scaled["prefix_tokens"])
    stores = policy_of(thresholds).judge(text_of(scaled), span.role).cache_worthy
    return None if stores == again.cache_worthy else names.STORE if stores else names.SKIP


def _close(span: RecordedSpan) -> list[str]:
    if span.text(names.HINT_OUTCOME) == "caller" or not any(_by_factor(span, factor) for factor in (1 - OFF, 1 + OFF)):
        return []
    return [f"A close call: an estimate that is {OFF:.0%} off would turn it."]

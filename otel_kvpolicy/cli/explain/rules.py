"""What a rule says of a span: signals against thresholds, what would have turned it, further facts.

A rule adds its own facts by an entry in ``RULES``. An attribute that no rule accounts for is still told, with its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...policy import KVCacheLayeringPolicy
from ...policy.adaptive.rule import AdaptiveRule
from ...policy.reasons import SHARED_PREFIX_LOST
from ...settings import env_name
from ...telemetry import names
from ..spans.model import RecordedSpan, rejudged
from ..spans.source import Note
from .changes import Change, changes, learned_changes


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
        by = (
            f"{-self.distance} short"
            if not self.met
            else f"{self.distance} over"
            if self.distance
            else "just enough"
        )
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
    caveats: tuple[Note, ...] = ()


def read(span: RecordedSpan) -> Reading:
    """What the rule that decided says of ``span``."""
    reading = RULES.get(span.text(names.RULE) or "", _read_unknown)(span)
    return reading._replace(facts=(*reading.facts, *_other_facts(span, reading)))


def _measures(span: RecordedSpan) -> tuple[Measure, ...]:
    thresholds, counted = span.thresholds, span.signals
    if thresholds is None:
        return ()
    prefix_setting, context_setting, turns_setting = map(
        env_name, ("min_prefix_tokens", "min_context_tokens", "min_history_turns")
    )
    rows = [
        ("prefix", "prefix_tokens", thresholds.prefix_tokens, "tokens", prefix_setting),
        # a call without any earlier reply never counts as a conversation, whatever the setting
        (
            "earlier turns",
            "history_turns",
            max(1, thresholds.history_turns),
            "turns",
            turns_setting,
        ),
        ("whole prompt", "total_tokens", thresholds.context_tokens, "tokens", context_setting),
    ]
    if counted.get("rag_tokens"):
        rows.append(
            (
                "retrieved context",
                "rag_tokens",
                max(1, thresholds.prefix_tokens),
                "tokens",
                prefix_setting,
            )
        )
    return tuple(
        Measure(name, counted[signal], threshold, unit, setting)
        for name, signal, threshold, unit, setting in rows
        if signal in counted
    )


def _read_thresholds(span: RecordedSpan) -> Reading:
    measures, again = _measures(span), rejudged(span)
    if again is None or span.thresholds is None:
        return Reading(measures)
    if again.cache_worthy != span.flag(names.CACHE_WORTHY):
        said = names.STORE if again.cache_worthy else names.SKIP
        return Reading(
            measures,
            caveats=(
                Note(
                    "other_rule",
                    f"These numbers alone would give {said}: a custom rule decided.",
                ),
            ),
        )
    if span.text(names.HINT_OUTCOME) == "caller":
        return Reading(measures)  # the caller's word stands, whatever the signals
    return Reading(measures, tuple(changes(span.signals, span.thresholds, span.role)))


def _read_unknown(span: RecordedSpan) -> Reading:
    return Reading(_measures(span))


def _read_adaptive(span: RecordedSpan) -> Reading:
    reuse, doubt, theta = (
        span.number(name)
        for name in (names.ADAPTIVE_REUSE, names.ADAPTIVE_DOUBT, names.ADAPTIVE_THETA)
    )
    moves = (
        Note(
            "adaptive_state",
            "The adaptive rule keeps adjusting: it may decide a call like this differently now.",
        ),
    )
    if reuse is None or doubt is None or theta is None or span.text(names.HINT_OUTCOME) == "caller":
        return Reading(caveats=moves)
    if SHARED_PREFIX_LOST in span.texts(names.REASONS):
        return Reading(caveats=moves)  # stored for its prefix, whatever its class
    return Reading(
        changes=tuple(
            learned_changes(reuse, doubt, theta, stores=bool(span.flag(names.CACHE_WORTHY)))
        ),
        caveats=moves,
    )


RULES: Final[dict[str, Callable[[RecordedSpan], Reading]]] = {
    KVCacheLayeringPolicy.rule: _read_thresholds,
    AdaptiveRule.rule: _read_adaptive,
}
"""By the rule's name. For a rule that is not named here the thresholds and all that it recorded are told, without changes."""

_MEANING: Final = {attribute.name: attribute.meaning for attribute in names.ATTRIBUTES}
_TOLD: Final = frozenset(
    {
        names.DECISION,
        names.SKIP_SAVE,
        names.CACHE_WORTHY,
        names.SCORE,
        names.REASONS,
        names.EXPLANATION,
        names.RULE,
        names.MODE,
    }
    | {
        names.HINT_OUTCOME,
        names.CHARS_PER_TOKEN,
        names.SIGNAL_PREFIX_TOKENS,
        names.SIGNAL_TOTAL_TOKENS,
        names.SIGNAL_HISTORY_TURNS,
    }
    | {
        names.SIGNAL_TOOL_TOKENS,
        names.SIGNAL_HISTORY_TOKENS,
        names.SIGNAL_RAG_TOKENS,
        names.SIGNAL_USER_TOKENS,
    }
    | {names.THRESHOLD_PREFIX_TOKENS, names.THRESHOLD_CONTEXT_TOKENS, names.THRESHOLD_HISTORY_TURNS}
)


def _other_facts(span: RecordedSpan, reading: Reading) -> list[Fact]:
    told = _TOLD | {fact.name for fact in reading.facts}
    return [
        Fact(name, value, _MEANING.get(name, ""))
        for name, value in sorted(span.attributes.items())
        if name.startswith("kvpolicy.") and name not in told
    ]

"""What the rule that decided says about a span: signals against thresholds, changes, other facts.

A rule adds its own reading by an entry in ``RULES``. Every other attribute of this package is
reported with its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...policy import SIGNALS, THRESHOLDS, ThresholdsRule
from ...policy.adaptive import why
from ...policy.thresholds import CHARS_PER_TOKEN
from ...settings import env_name
from ...telemetry import names
from ..spans.model import RecordedSpan, rejudged
from ..spans.source import Note
from .changes import Change, adaptive_changes, changes


class Measure(NamedTuple):
    """One signal against its threshold.

    Attributes:
        name: label of the signal.
        value: measured tokens or turns.
        threshold: the call is stored if the signal is at least this.
        unit: ``tokens`` or ``turns``.
        setting: environment variable that sets the threshold.
    """

    name: str
    value: int
    threshold: int
    unit: str
    setting: str

    @property
    def distance(self) -> int:
        """How far the signal is above the threshold; negative if it is below."""
        return self.value - self.threshold

    @property
    def met(self) -> bool:
        """True if this signal alone stores the call."""
        return self.distance >= 0

    @property
    def text(self) -> str:
        """Such as ``812 of 1024 tokens: 212 short``."""
        if not self.met:
            distance = f"{-self.distance} short"
        else:
            distance = f"{self.distance} over" if self.distance else "just enough"
        return f"{self.value} of {self.threshold} {self.unit}: {distance}"


class Fact(NamedTuple):
    """Another recorded attribute: its name, its value, and what it means."""

    name: str
    value: Any
    meaning: str


class Reading(NamedTuple):
    """What a rule says about a span.

    Attributes:
        measures: signals against their thresholds.
        changes: single changes that would have reversed the decision.
        facts: other recorded attributes.
        caveats: caveats of the rule.
    """

    measures: tuple[Measure, ...] = ()
    changes: tuple[Change, ...] = ()
    facts: tuple[Fact, ...] = ()
    caveats: tuple[Note, ...] = ()


def read(span: RecordedSpan) -> Reading:
    """Return what the rule that decided says about a span."""
    reading = RULES.get(span.text(names.RULE) or "", _read_unknown)(span)
    return reading._replace(facts=tuple(_other_facts(span)))


def _measures(span: RecordedSpan) -> tuple[Measure, ...]:
    thresholds, signals = span.thresholds or {}, span.signals
    return tuple(
        Measure(
            each.label,
            signals[each.signal],
            max(each.minimum, thresholds[each.setting]),
            each.unit,
            env_name(each.setting),
        )
        for each in THRESHOLDS
        if each.setting in thresholds
        and each.signal in signals
        and (each.meaning or signals[each.signal])  # a call may have no retrieved context
    )


def _read_thresholds(span: RecordedSpan) -> Reading:
    measures, again, thresholds = _measures(span), rejudged(span), span.thresholds
    if again is None or thresholds is None:
        return Reading(measures)
    if again.cache_worthy != span.flag(names.CACHE_WORTHY):
        choice = names.STORE if again.cache_worthy else names.SKIP
        text = f"These numbers alone would give {choice}: a custom rule decided."
        return Reading(measures, caveats=(Note("other_rule", text),))
    if span.text(names.HINT_OUTCOME) == "caller":
        return Reading(measures)  # no change of the signals would change the caller's choice
    return Reading(measures, tuple(changes(span.signals, thresholds, span.role)))


def _read_unknown(span: RecordedSpan) -> Reading:
    return Reading(_measures(span))


def _read_adaptive(span: RecordedSpan) -> Reading:
    reuse, doubt, theta = (
        span.number(names.NAMESPACE + name) for name in (why.REUSE, why.DOUBT, why.THETA)
    )
    caveat = Note(
        "adaptive_state",
        "The adaptive rule keeps adjusting: it may decide a call like this differently now.",
    )
    decided_by_class = span.text(
        names.HINT_OUTCOME
    ) != "caller" and why.SHARED_PREFIX_LOST not in span.texts(names.REASONS)
    if reuse is None or doubt is None or theta is None or not decided_by_class:
        return Reading(caveats=(caveat,))
    stored = bool(span.flag(names.CACHE_WORTHY))
    reversing = adaptive_changes(reuse, doubt, theta, stored=stored)
    return Reading(changes=tuple(reversing), caveats=(caveat,))


RULES: Final[dict[str, Callable[[RecordedSpan], Reading]]] = {
    ThresholdsRule.rule: _read_thresholds,
    why.RULE: _read_adaptive,
}
"""The reading of each rule, by its name. For a rule that is not listed, the thresholds and all
recorded attributes are reported, without changes."""

_MEANING: Final = {attribute.name: attribute.meaning for attribute in names.ATTRIBUTES}

_REPORTED_ELSEWHERE: Final = frozenset(
    [
        names.DECISION,
        names.SKIP_SAVE,
        names.CACHE_WORTHY,
        names.SCORE,
        names.REASONS,
        names.EXPLANATION,
        names.RULE,
        names.MODE,
        names.HINT_OUTCOME,
        names.NAMESPACE + CHARS_PER_TOKEN,
        *(names.SIGNALS + signal for signal in SIGNALS),
        *(f"{names.NAMESPACE}thresholds.{each.key}" for each in THRESHOLDS),
    ]
)


def _other_facts(span: RecordedSpan) -> list[Fact]:
    return [
        Fact(name, value, _MEANING.get(name, ""))
        for name, value in sorted(span.attributes.items())
        if name.startswith(names.NAMESPACE) and name not in _REPORTED_ELSEWHERE
    ]

"""Builds the explanation of one decision: verdict, rule, signals, changes, aftermath, caveats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...policy import REASONS
from ...record import OUTCOMES
from ...settings import env_name
from ...telemetry import names
from ..spans.model import RecordedSpan, rejudged, stores
from ..spans.source import Note, OtherCalls, oldest_first
from .rules import Reading, read

NO_DECISION: Final = "none"

_CHUNK_TOKENS: Final = 256
"""LMCache's default chunk size; hybrid models need larger chunks."""

_ESTIMATE_ERROR: Final = 0.15
"""Typical relative error of estimating tokens from characters."""


@dataclass(frozen=True)
class Explanation:
    """Why one call was or was not stored.

    Attributes:
        span: the span that carries the decision.
        verdict: ``store``, ``skip``, or ``none`` if the policy was off.
        headline: the verdict in one sentence.
        rule: name of the rule that decided.
        mode: ``enforce`` or ``observe``.
        reasons: reason codes, with numbers if they are known.
        reading: what the rule reports: measures, changes and facts.
        afterwards: what happened to the hint, the call and its prefix.
        caveats: limits of this explanation.
    """

    span: RecordedSpan
    verdict: str
    headline: str
    rule: str
    mode: str
    reasons: tuple[str, ...]
    reading: Reading
    afterwards: tuple[Note, ...]
    caveats: tuple[Note, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready values."""
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
                {
                    **measure._asdict(),
                    "distance": measure.distance,
                    "met": measure.met,
                    "text": measure.text,
                }
                for measure in self.reading.measures
            ],
            "changes": [change._asdict() for change in self.reading.changes],
            "facts": [fact._asdict() for fact in self.reading.facts],
            "usage": {
                "input_tokens": span.count(names.USAGE_INPUT_TOKENS),
                "cached_tokens": span.count(names.USAGE_CACHE_READ_INPUT_TOKENS),
            },
            "afterwards": [note.as_json() for note in self.afterwards],
            "caveats": [note.as_json() for note in self.caveats],
        }


def explain(
    span: RecordedSpan,
    others: OtherCalls | None = None,
    *,
    planned: Mapping[str, Any] | None = None,
) -> Explanation:
    """Explain the decision on ``span``.

    Args:
        span: a span that carries a decision.
        others: further calls of the source, to find later ones that share the prefix; None if
            nothing was searched.
        planned: for a call that was not made: the ``kv_transfer_params`` it would carry.
    """
    decision = span.decision
    reading = read(span)
    verdict = (names.SKIP if span.skipped else names.STORE) if decision.enabled else NO_DECISION
    return Explanation(
        span=span,
        verdict=verdict,
        headline=_headline(span, verdict, "was" if planned is None else "is"),
        rule=span.text(names.RULE) or "unknown",
        mode=span.text(names.MODE) or "unknown",
        reasons=tuple(decision.reasons),
        reading=reading,
        afterwards=tuple(_afterwards(span, others)) if planned is None else (_plan(span, planned),),
        caveats=(*_caveats(span), *reading.caveats) if decision.enabled else reading.caveats,
    )


def _headline(span: RecordedSpan, verdict: str, was: str) -> str:
    if verdict == NO_DECISION:
        return (
            f"No decision {was} made: {env_name('layering')} {was} off. The server follows its own "
            "rules."
        )
    choice = "not to store" if verdict == names.SKIP else "to store"
    outcome = span.text(names.HINT_OUTCOME)
    if outcome == "caller":
        opinion = names.STORE if span.flag(names.CACHE_WORTHY) else names.SKIP
        return (
            f"The caller's own hint {was} {choice} the call's KV cache. The rule alone decides "
            f"{opinion}."
        )
    why = (
        " and ".join(REASONS.get(code, code) for code in span.texts(names.REASONS))
        or "no reason is recorded"
    )
    headline = f"The decision {was} {choice} the call's KV cache: {why}."
    if verdict == names.SKIP and outcome in _NOT_ENFORCED:
        return f"{headline} Nothing keeps the server from storing it."
    return headline


_NO_HINT: Final = {
    "disabled": f": {env_name('layering')} is off",
    "observed": f": {env_name('mode')} is observe",
    "excluded_target": f": the server is not among {env_name('targets')}",
}


def _plan(span: RecordedSpan, planned: Mapping[str, Any]) -> Note:
    if not planned:
        why = _NO_HINT.get(span.text(names.HINT_OUTCOME) or "", "")
        return Note("no_planned_hint", f"The request would carry no hint{why}.")
    return Note(
        "planned_hint",
        f"The request would carry kv_transfer_params {json.dumps(dict(planned))}.",
        {"kv_transfer_params": dict(planned)},
    )


# --- what happened afterwards ---------------------------------------------------------------------

_NOT_ENFORCED: Final = frozenset({"observed", "excluded_target", "rejected", "error"})


def _afterwards(span: RecordedSpan, others: OtherCalls | None) -> list[Note]:
    return [*_outcome(span), _cached_tokens(span), *_later_calls(span, others)]


def _outcome(span: RecordedSpan) -> list[Note]:
    outcome = span.text(names.HINT_OUTCOME) or ""
    if outcome in OUTCOMES:
        notes = [Note(outcome, OUTCOMES[outcome])]
    else:
        text = f"What happened to the hint is not known ({outcome or 'not recorded'})."
        notes = [Note("unknown_outcome", text)]
    failure = span.text(names.ERROR_TYPE)
    if failure:
        notes.append(
            Note("call_failed", f"The call itself failed: {failure}.", {"error_type": failure})
        )
    return notes


def _cached_tokens(span: RecordedSpan) -> Note:
    cached = span.count(names.USAGE_CACHE_READ_INPUT_TOKENS)
    prompt = span.count(names.USAGE_INPUT_TOKENS)
    if cached is None:
        return Note(
            "cached_tokens_unknown",
            "The server did not report how many tokens came from a cache "
            "(vLLM does with --enable-prompt-tokens-details).",
        )
    total = f" of {prompt}" if prompt is not None else ""
    return Note(
        "cached_tokens",
        f"The server took {cached}{total} prompt tokens from a cache "
        "(vLLM's own and LMCache's combined).",
        {"cached_tokens": cached, "input_tokens": prompt},
    )


def _later_calls(span: RecordedSpan, others: OtherCalls | None) -> list[Note]:
    """Report later calls with a prefix of the same size: spans carry sizes, not the text."""
    if not span.count(names.SIGNAL_PREFIX_TOKENS) or span.started is None or others is None:
        return []
    later = [
        other
        for other in oldest_first(others.spans)
        if (other.started or 0) > span.started and _prefix_key(other) == _prefix_key(span)
    ]
    if not later:
        return [
            Note(
                "no_later_calls",
                f"No later call with a prefix of the same size was found {others.scope}.",
            )
        ]
    cached = [other.count(names.USAGE_CACHE_READ_INPUT_TOKENS) or 0 for other in later]
    shown = ", ".join(map(str, cached[:5])) + (", …" if len(cached) > 5 else "")
    which = "1 later call has" if len(later) == 1 else f"{len(later)} later calls have"
    return [
        Note(
            "later_calls",
            f"{which} a prefix of the same size, so very likely the same prefix; "
            f"cached tokens there: {shown}.",
            {"calls": len(later), "cached_tokens": cached},
        )
    ]


def _prefix_key(span: RecordedSpan) -> tuple[Any, ...]:
    model, prefix = span.text(names.REQUEST_MODEL), span.count(names.SIGNAL_PREFIX_TOKENS)
    return span.service, model, prefix


# --- caveats --------------------------------------------------------------------------------------


def _caveats(span: RecordedSpan) -> list[Note]:
    notes = [_estimate(span), *_close_call(span)]
    outcome = span.text(names.HINT_OUTCOME)
    if outcome == "applied" and span.skipped:
        notes.append(_UNVERIFIED)
    if span.text(names.MODE) == "observe":
        notes.append(
            Note("observe_mode", "Observe mode: the verdict is what would have been sent.")
        )
    if outcome == "caller":
        notes.append(_CALLER_OVERRIDES)
    total = span.count(names.SIGNAL_TOTAL_TOKENS)
    if total is not None and total < _CHUNK_TOKENS:
        notes.append(_SHORTER_THAN_A_CHUNK)
    return notes


_UNVERIFIED: Final = Note(
    "hint_unverified",
    "Whether the server honors the hint cannot be seen here. LMCache's multi-process server honors "
    "max_offload_tokens since 0.5.6, its in-process connector honors skip_save since 0.3.6. "
    "Run `otel-kvpolicy doctor` to test yours.",
)
_CALLER_OVERRIDES: Final = Note(
    "caller_overrides",
    "The caller's own hint overrides the rule. To let the rule decide, remove that hint from the "
    "request.",
)
_SHORTER_THAN_A_CHUNK: Final = Note(
    "shorter_than_a_chunk",
    f"LMCache stores whole chunks only ({_CHUNK_TOKENS} tokens by default), so it never stores a "
    "prompt this short.",
)


def _estimate(span: RecordedSpan) -> Note:
    chars = span.number(names.CHARS_PER_TOKEN)
    basis = (
        f"Tokens are estimated at {chars:g} characters each"
        if chars
        else "Tokens are estimated from characters"
    )
    script = span.text(names.SCRIPT)
    if script is not None:
        basis += f" (auto, for prompts of kind {script})"
    total, counted = span.count(names.SIGNAL_TOTAL_TOKENS), span.count(names.USAGE_INPUT_TOKENS)
    values: dict[str, Any] = {
        "chars_per_token": chars,
        "estimated_tokens": total,
        "counted_tokens": counted,
    }
    if script is not None:
        values["script"] = script
    if not total or not counted:
        return Note("estimate", f"{basis}, not counted by a tokenizer.", values)
    text = f"{basis}: {total} in total. The server counted {counted} ({counted / total - 1:+.0%})."
    other_verdict = _verdict_if_scaled(span, counted / total)
    if other_verdict is not None:
        text = f"{text} With the server's count the rule would have decided {other_verdict}."
    return Note("estimate", text, {**values, "verdict_by_count": other_verdict})


def _close_call(span: RecordedSpan) -> list[Note]:
    if span.text(names.HINT_OUTCOME) == "caller" or not any(
        _verdict_if_scaled(span, factor) for factor in (1 - _ESTIMATE_ERROR, 1 + _ESTIMATE_ERROR)
    ):
        return []
    text = f"Close call: an estimation error of {_ESTIMATE_ERROR:.0%} would change the verdict."
    return [Note("close_call", text, {"estimation_error": _ESTIMATE_ERROR})]


def _verdict_if_scaled(span: RecordedSpan, factor: float) -> str | None:
    """Return the rule's verdict on ``factor`` times the tokens, if it is another one.

    Returns None if the verdict is the same or cannot be recomputed from the span.
    """
    again, thresholds = rejudged(span), span.thresholds
    if again is None or thresholds is None or again.cache_worthy != span.flag(names.CACHE_WORTHY):
        return None
    scaled = {
        name: value if name == "history_turns" else round(value * factor)
        for name, value in span.signals.items()
    }
    scaled["tool_tokens"] = min(scaled["tool_tokens"], scaled["prefix_tokens"])
    stored = stores(scaled, thresholds, span.role, span.priority)
    if stored == again.cache_worthy:
        return None
    return names.STORE if stored else names.SKIP

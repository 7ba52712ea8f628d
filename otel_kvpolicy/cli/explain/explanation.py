"""The account of one decision: verdict, rule, each signal against its threshold, what would have turned it, what followed, caveats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...policy.reasons import REASONS
from ...telemetry import names
from ..spans.model import RecordedSpan
from ..spans.source import Neighbours
from .afterwards import afterwards
from .caveats import caveats
from .rules import Reading, read


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
            "afterwards": list(self.afterwards),
            "caveats": list(self.caveats),
        }


def explain(
    span: RecordedSpan,
    others: Neighbours | None = None,
    *,
    planned: Mapping[str, Any] | None = None,
) -> Explanation:
    """Accounts for the decision on ``span``.

    Args:
        span: one that carries a decision.
        others: further calls of the same source, among which later ones may have shared its prefix; None where nobody looked.
        planned: for a call that has not been made: the ``kv_transfer_params`` that it would carry.
    """
    decision = span.decision
    reading = read(span)
    verdict = (names.SKIP if span.skipped else names.STORE) if decision.enabled else "none"
    return Explanation(
        span=span,
        verdict=verdict,
        headline=_headline(span, verdict, "is" if planned is not None else "was"),
        rule=span.text(names.RULE) or "unknown",
        mode=span.text(names.MODE) or "unknown",
        reasons=tuple(decision.reasons),
        reading=reading,
        afterwards=tuple(afterwards(span, others)) if planned is None else (_plan(planned),),
        caveats=(*caveats(span), *reading.caveats),
    )


def _headline(span: RecordedSpan, verdict: str, is_: str) -> str:
    if verdict == "none":
        return f"Nothing {is_} decided: KV_CACHE_LAYERING {is_} off, and the server stores by its own rules."
    said = (
        f"The call's KV {is_} not to be stored"
        if verdict == names.SKIP
        else f"The call's KV {is_} to be stored"
    )
    outcome = span.text(names.HINT_OUTCOME)
    if outcome == "caller":
        opinion = "store" if span.flag(names.CACHE_WORTHY) else "skip"
        return f"{said}: the caller has set the hint itself. The rule alone says {opinion}."
    why = (
        " and ".join(REASONS.get(code, code) for code in span.texts(names.REASONS))
        or "no reason is recorded"
    )
    if outcome in {"observed", "excluded_target", "rejected", "error"} and verdict == names.SKIP:
        return (
            f"The call's KV {is_} not worth storing, but nothing keeps the server from it: {why}."
        )
    return f"{said}: {why}."


def _plan(planned: Mapping[str, Any]) -> str:
    if not planned:
        return "Nothing would be sent."
    return f"It would go out with kv_transfer_params {json.dumps(dict(planned))}."

"""What to bear in mind of a decision: estimates, what nobody has seen, whose word it was."""

from __future__ import annotations

from typing import Final

from ...telemetry import names
from ..spans.model import RecordedSpan, policy_of, rejudged, text_of

_CHUNK_TOKENS: Final = 256  # LMCache's default; hybrid models need larger ones
_OFF: Final = 0.15  # about what an estimate by characters is off


def caveats(span: RecordedSpan) -> list[str]:
    """What to bear in mind, a sentence or two each."""
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
        found.append(
            "The caller's keys override the rule; take them out of kv_transfer_params to let it decide."
        )
    total = span.count(names.SIGNAL_TOTAL_TOKENS)
    if total is not None and total < _CHUNK_TOKENS:
        found.append(
            f"LMCache stores whole chunks only ({_CHUNK_TOKENS} tokens by default): so short a prompt is never stored there anyway."
        )
    return found


def _estimate(span: RecordedSpan) -> str:
    chars = span.number(names.CHARS_PER_TOKEN)
    basis = (
        f"Tokens are estimated at {chars:g} characters each"
        if chars
        else "Tokens are estimated from characters"
    )
    total, counted = span.count(names.SIGNAL_TOTAL_TOKENS), span.count(names.USAGE_INPUT_TOKENS)
    if not total or not counted:
        return f"{basis}; no tokenizer runs on the caller's path."
    text = (
        f"{basis}: {total} in all, where the server counted {counted} ({counted / total - 1:+.0%})."
    )
    other = _by_factor(span, counted / total)
    return (
        text if other is None else f"{text} By the server's count the rule would have said {other}."
    )


def _by_factor(span: RecordedSpan, factor: float) -> str | None:
    """The other verdict, where the rule would come to it with ``factor`` times the tokens in each part."""
    again, thresholds = rejudged(span), span.thresholds
    if again is None or thresholds is None or again.cache_worthy != span.flag(names.CACHE_WORTHY):
        return None
    scaled = {
        name: value if name == "history_turns" else round(value * factor)
        for name, value in span.signals.items()
    }
    scaled["tool_tokens"] = min(scaled["tool_tokens"], scaled["prefix_tokens"])
    stores = policy_of(thresholds).judge(text_of(scaled), span.role).cache_worthy
    return None if stores == again.cache_worthy else names.STORE if stores else names.SKIP


def _close(span: RecordedSpan) -> list[str]:
    if span.text(names.HINT_OUTCOME) == "caller" or not any(
        _by_factor(span, factor) for factor in (1 - _OFF, 1 + _OFF)
    ):
        return []
    return [f"A close call: an estimate that is {_OFF:.0%} off would turn it."]

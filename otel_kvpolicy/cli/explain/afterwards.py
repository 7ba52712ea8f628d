"""What became of a call: of the hint, of the cache when it was made, and of its prefix later."""

from __future__ import annotations

from typing import Any, Final

from ...telemetry import names
from ..spans.model import RecordedSpan
from ..spans.source import Neighbours, oldest_first


def afterwards(span: RecordedSpan, others: Neighbours | None) -> list[str]:
    """What followed, a sentence each.

    Args:
        span: the call.
        others: calls among which later ones may have shared its prefix; None where nobody looked.
    """
    return [*_outcome(span), *_usage(span), *_later(span, others)]


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
    told = [
        _OUTCOMES.get(
            outcome, f"What became of the hint is not known ({outcome or 'not recorded'})."
        )
    ]
    failure = span.text(names.ERROR_TYPE)
    return [*told, f"The call itself failed: {failure}."] if failure else told


def _usage(span: RecordedSpan) -> list[str]:
    cached, prompt = (
        span.count(names.USAGE_CACHE_READ_INPUT_TOKENS),
        span.count(names.USAGE_INPUT_TOKENS),
    )
    if cached is None:
        return [
            "The server did not say how many tokens came from a cache (vLLM says so with --enable-prompt-tokens-details)."
        ]
    of = f" of {prompt}" if prompt is not None else ""
    return [
        f"The server took {cached}{of} prompt tokens from a cache, vLLM's own and LMCache's together."
    ]


def _later(span: RecordedSpan, others: Neighbours | None) -> list[str]:
    """Later calls that very likely had the same prefix: spans carry its size, not its text."""
    prefix = span.count(names.SIGNAL_PREFIX_TOKENS)
    if not prefix or span.started is None or others is None:
        return []

    def like(other: RecordedSpan) -> tuple[Any, ...]:
        return (
            other.service,
            other.text(names.REQUEST_MODEL),
            other.count(names.SIGNAL_PREFIX_TOKENS),
        )

    later = [
        other
        for other in oldest_first(others.spans)
        if (other.started or 0) > span.started and like(other) == like(span)
    ]
    if not later:
        return [f"No later call with a prefix of the same size was found {others.reach}."]
    cached = [str(other.count(names.USAGE_CACHE_READ_INPUT_TOKENS) or 0) for other in later[:5]]
    more = ", …" if len(later) > len(cached) else ""
    which = "1 later call has" if len(later) == 1 else f"{len(later)} later calls have"
    return [
        f"{which} a prefix of the same size, so very likely the same one; cached tokens there: {', '.join(cached)}{more}."
    ]

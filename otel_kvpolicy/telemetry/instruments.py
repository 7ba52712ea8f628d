"""The metric instruments and the bounded attributes of their points."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter

from ..policy import REASONS
from ..record import CallRecord
from ..requests import Answer
from . import names

if TYPE_CHECKING:
    from opentelemetry.metrics import _Gauge as Gauge  # the API has no public name for it

MAX_CALLERS: Final = 1000
"""Distinct (model, server, agent) on metric points. Further ones count as ``_OTHER``."""

MAX_REASONS: Final = 32
"""Distinct reason codes of custom rules on metric points. Further ones count as ``_OTHER``."""

_MAX_LABEL: Final = 200  # characters; model names are shorter


class Instruments:
    """Counts and measures decisions.

    Args:
        meter: meter to create the instruments with.
    """

    def __init__(self, meter: Meter) -> None:
        self._decisions = _counter(meter, names.DECISIONS)
        self._prompt_tokens = _counter(meter, names.PROMPT_TOKENS)
        self._cached_tokens = _counter(meter, names.CACHED_TOKENS)
        self._score = _histogram(meter, names.SCORE_METRIC)
        self._duration = _histogram(meter, names.DECISION_DURATION)
        self._errors = _counter(meter, names.ERRORS)
        self._chars_per_token = _gauge(meter, names.CHARS_PER_TOKEN_RATIO)
        self._callers = _Callers(MAX_CALLERS)
        self._reasons = _Reasons(MAX_REASONS)

    def decided(
        self, record: CallRecord, seconds: float, context: Context | None = None
    ) -> dict[str, Any]:
        """Count a decision once its outcome is known.

        Args:
            record: the decided call.
            seconds: time it took to decide.
            context: context with the span of the call, so that exemplars lead to its trace; the
                current one by default.

        Returns:
            The attributes that later points of the call share.
        """
        attributes = self._callers.attributes(record)
        attributes |= {
            names.DECISION: record.choice,
            names.REASON: self._reasons.of(record.decision.reason_codes),
            names.HINT_OUTCOME: record.outcome,
            names.MODE: record.mode,
        }
        if record.shadow is not None:
            attributes[names.SHADOW_DECISION] = record.shadow.choice
        self._decisions.add(1, attributes, context)
        choice = {names.DECISION: record.choice}
        self._duration.record(seconds, choice, context)
        if record.decision.enabled:
            self._score.record(
                record.decision.score,
                {**choice, names.REQUEST_MODEL: attributes[names.REQUEST_MODEL]},
                context,
            )
        return attributes

    def answered(
        self,
        attributes: dict[str, Any],
        answer: Answer | None,
        estimated_tokens: int,
        context: Context | None = None,
    ) -> None:
        """Count the prompt tokens of a finished call, and those that came from a cache.

        Args:
            attributes: what :meth:`decided` returned.
            answer: what the server reported, if anything.
            estimated_tokens: prompt tokens to count if the server did not report them.
            context: as in :meth:`decided`.
        """
        if answer is None or answer.input_tokens is None:
            self._prompt_tokens.add(
                estimated_tokens, {**attributes, names.TOKEN_SOURCE: names.FROM_ESTIMATE}, context
            )
        else:
            self._prompt_tokens.add(
                answer.input_tokens, {**attributes, names.TOKEN_SOURCE: names.FROM_USAGE}, context
            )
        if answer is not None and answer.cached_tokens is not None:
            for source, tokens in _by_source(answer, answer.cached_tokens).items():
                self._cached_tokens.add(
                    tokens,
                    {**attributes, names.CACHE_SOURCE: source} if source else attributes,
                    context,
                )

    def calibrated(self, record: CallRecord, script: str, ratio: float) -> None:
        """Record the characters per token that were learned for the model of a call.

        Args:
            record: the decided call.
            script: kind of text in its prompt.
            ratio: characters per token.
        """
        caller = self._callers.attributes(record)
        self._chars_per_token.set(
            ratio,
            {
                names.REQUEST_MODEL: caller[names.REQUEST_MODEL],
                names.SERVER_ADDRESS: caller[names.SERVER_ADDRESS],
                names.SCRIPT: script,
            },
        )

    def failed(self, seam: str, error: Exception) -> None:
        """Count an internal error."""
        self._errors.add(1, {names.SEAM: seam, names.ERROR_TYPE: type(error).__name__})


def _by_source(answer: Answer, cached: int) -> dict[str | None, int]:
    """Divide the cached tokens by the cache they came from, if the server reports it."""
    if answer.vllm_tokens is None:
        return {None: cached}
    from_vllm = min(answer.vllm_tokens, cached)
    return {names.FROM_VLLM: from_vllm, names.FROM_LMCACHE: cached - from_vllm}


class _Callers:
    """Caps the number of distinct (model, server, agent) label sets."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[tuple[str, str, str | None], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def attributes(self, record: CallRecord) -> dict[str, Any]:
        key = (record.model, record.address, record.agent)
        known = self._known.get(key)
        if known is None:
            with self._lock:
                known = self._known.get(key)
                if known is None:
                    known = (
                        _labels(*key)
                        if len(self._known) < self._limit
                        else _labels(names.OTHER, names.OTHER, names.OTHER)
                    )
                    if len(self._known) < self._limit:
                        self._known[key] = known
        return dict(known)


class _Reasons:
    """Caps the number of distinct reason codes. Those of this package are always kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known = set(REASONS)
        self._lock = threading.Lock()

    def of(self, codes: Sequence[str]) -> str:
        code = codes[0][:_MAX_LABEL] if codes else names.OTHER
        if code in self._known:
            return code
        with self._lock:
            if len(self._known) < self._limit + len(REASONS):
                self._known.add(code)
        return code if code in self._known else names.OTHER


def _labels(model: str, address: str, agent: str | None) -> dict[str, Any]:
    labels = {names.REQUEST_MODEL: model[:_MAX_LABEL], names.SERVER_ADDRESS: address[:_MAX_LABEL]}
    if agent:
        labels[names.AGENT_NAME] = agent[:_MAX_LABEL]
    return labels


def _counter(meter: Meter, metric: names.Metric) -> Counter:
    return meter.create_counter(metric.name, unit=metric.unit, description=metric.meaning)


def _gauge(meter: Meter, metric: names.Metric) -> Gauge:
    return meter.create_gauge(metric.name, unit=metric.unit, description=metric.meaning)


def _histogram(meter: Meter, metric: names.Metric) -> Histogram:
    return meter.create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.meaning,
        explicit_bucket_boundaries_advisory=list(metric.buckets),
    )

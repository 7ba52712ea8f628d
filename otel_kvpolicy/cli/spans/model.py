"""A span as read from any source, and the decision recorded on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, get_args

from ...policy import SIGNALS, CallText, KVCacheDecision, Priority, ThresholdsRule
from ...policy.adaptive import why
from ...policy.thresholds import POLICY_DISABLED, REUSE_HEAVY_ROLE, SETTINGS
from ...telemetry import names

SERVICE_NAME: Final = "service.name"

_ROLE: Final = re.compile(REUSE_HEAVY_ROLE + r"\(([^()]*)\)")
_TOO_LARGE: Final = 1 << 63


def normal_trace_id(text: str) -> str:
    """Return a trace id as 32 lower-case hex digits; sources differ in case and leading zeros."""
    return text.strip().lower().removeprefix("0x").replace("-", "").zfill(32)


def normal_span_id(text: str) -> str:
    """Return a span id as 16 lower-case hex digits."""
    return text.strip().lower().removeprefix("0x").zfill(16)


def nanoseconds(timestamp: str) -> int:
    """Return an ISO 8601 timestamp as Unix time in nanoseconds.

    Raises:
        ValueError: the text is not a timestamp or out of range.
    """
    try:
        moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))  # Python 3.10 takes no Z
        return round(moment.timestamp() * 1e6) * 1000
    except OverflowError as error:
        raise ValueError(f"out of range: {timestamp}") from error


@dataclass(frozen=True)
class RecordedSpan:
    """A span read from a source.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        name: name of the span.
        service: ``service.name`` of the resource, if known.
        started: start as Unix time in nanoseconds, if known.
        seconds: duration in seconds, if known.
        attributes: attributes by name; arrays are lists, or JSON text from Jaeger.
        known_role: the caller's role, if known from elsewhere than the attributes.
    """

    trace_id: str
    span_id: str
    name: str
    service: str | None = None
    started: int | None = None
    seconds: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    known_role: str | None = None

    @property
    def decided(self) -> bool:
        """Whether the span carries a decision."""
        return self.text(names.DECISION) in {names.STORE, names.SKIP}

    @property
    def skipped(self) -> bool:
        """Whether the decision was not to store the call's KV cache."""
        return self.text(names.DECISION) == names.SKIP

    @property
    def when(self) -> datetime | None:
        """The start in UTC, if known."""
        return (
            None
            if self.started is None
            else datetime.fromtimestamp(self.started / 1e9, timezone.utc)
        )

    def text(self, name: str) -> str | None:
        """Return a string attribute, or None if it is missing or of another type."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else None

    def count(self, name: str) -> int | None:
        """Return a numeric attribute as an integer, or None; see :meth:`number`."""
        number = self.number(name)
        return None if number is None else int(number)

    def number(self, name: str) -> float | None:
        """Return a numeric attribute that fits into 64 bits, or None.

        Some stores return numbers as text, which is converted.
        """
        value = self.attributes.get(name)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        usable = (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and abs(value) < _TOO_LARGE
        )
        return value if usable else None

    def flag(self, name: str) -> bool | None:
        """Return a boolean attribute, also if stored as text, or None."""
        value = self.attributes.get(name)
        return (
            value
            if isinstance(value, bool)
            else {"true": True, "false": False}.get(str(value).lower())
        )

    def texts(self, name: str) -> list[str]:
        """Return a string array attribute, also if stored as JSON text, as Jaeger does."""
        value = self.attributes.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = [value]
        return [str(item) for item in value] if isinstance(value, (list, tuple)) else []

    @property
    def signals(self) -> dict[str, int]:
        """The recorded signals, by their names in :class:`KVCacheDecision`."""
        counts = {name: self.count(names.SIGNALS + name) for name in SIGNALS}
        return {name: value for name, value in counts.items() if value is not None}

    @property
    def thresholds(self) -> dict[str, int] | None:
        """The recorded thresholds by settings field, or None if a required one is missing."""
        recorded: dict[str, int] = {}
        for name, threshold in SETTINGS.items():
            value = self.count(f"{names.NAMESPACE}thresholds.{threshold.key}")
            if value is not None:
                recorded[name] = value
            elif threshold.default is not None:
                return None
        return recorded

    @property
    def role(self) -> str | None:
        """The caller's role, if known.

        A span names the role only in its explanation, and only if the role made the difference.
        """
        match = _ROLE.search(self.text(names.EXPLANATION) or "")
        return self.known_role or (match[1] if match else None)

    @property
    def priority(self) -> Priority | None:
        """The priority of the call, if recorded."""
        value = self.text(names.PRIORITY)
        return next((priority for priority in get_args(Priority) if priority == value), None)

    @property
    def decision(self) -> KVCacheDecision:
        """The rule's decision.

        The span carries reason codes without numbers. The numbers are recomputed from the other
        attributes if the recorded rule permits it.
        """
        codes = self.texts(names.REASONS)
        enabled = codes != [POLICY_DISABLED]
        worthy = bool(self.flag(names.CACHE_WORTHY))
        decision = KVCacheDecision(
            cache_worthy=worthy,
            skip_save=enabled and not worthy,
            score=self.number(names.SCORE) or 0.0,
            reasons=codes,
            signals=self.signals,
            enabled=enabled,
        )
        reuse, doubt, theta = (
            self.number(names.NAMESPACE + name) for name in (why.REUSE, why.DOUBT, why.THETA)
        )
        if reuse is not None and doubt is not None and theta is not None and len(codes) == 1:
            reasons = [why.reason_of(codes[0], reuse, doubt, theta)]
            return decision.model_copy(update={"reasons": reasons})
        again = rejudged(self)
        if again is None or again.reason_codes != codes:
            return decision
        return decision.model_copy(update={"reasons": again.reasons})


def stores(
    signals: Mapping[str, int],
    thresholds: Mapping[str, int],
    role: str | None,
    priority: Priority | None = None,
) -> bool:
    """Return True if the thresholds rule stores a call with these signals."""
    return judge(signals, thresholds, role, priority).cache_worthy


def judge(
    signals: Mapping[str, int],
    thresholds: Mapping[str, int],
    role: str | None,
    priority: Priority | None = None,
) -> KVCacheDecision:
    """Decide recorded signals by the thresholds rule.

    Args:
        signals: all signals, by the names that a decision uses.
        thresholds: thresholds by settings field; optional ones that are missing are off.
        role: role of the caller.
        priority: priority of the call.
    """
    tools = signals["tool_tokens"]
    text = CallText(  # at one character per token, the estimate returns the recorded tokens
        prefix_chars=signals["prefix_tokens"] - tools,
        tool_chars=tools,
        history_chars=signals["history_tokens"],
        rag_chars=signals["rag_tokens"],
        user_chars=signals["user_tokens"],
        history_turns=signals["history_turns"],
    )
    return ThresholdsRule(dict(thresholds), chars_per_token=1).judge(text, role, priority=priority)


def rejudged(span: RecordedSpan) -> KVCacheDecision | None:
    """Decide the recorded signals again by the thresholds rule.

    Returns:
        The decision, or None if the span does not carry every signal and threshold.
    """
    thresholds, signals = span.thresholds, span.signals
    if (
        thresholds is None
        or len(signals) < len(SIGNALS)
        or min(*thresholds.values(), *signals.values()) < 0
    ):
        return None
    return judge(signals, thresholds, span.role, span.priority)

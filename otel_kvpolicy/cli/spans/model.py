"""A span as a trace source gives it back, and the decision that stands on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from ...policy import SIGNALS, CallText, KVCacheDecision, ThresholdsRule
from ...policy.adaptive import why
from ...policy.thresholds import POLICY_DISABLED, REUSE_HEAVY_ROLE, SETTINGS
from ...telemetry import names

SERVICE_NAME: Final = "service.name"

_ROLE: Final = re.compile(REUSE_HEAVY_ROLE + r"\(([^()]*)\)")
_TOO_LARGE: Final = 1 << 63


def normal_trace_id(text: str) -> str:
    """32 lower-case hex digits: sources differ in case and in leading zeros."""
    return text.strip().lower().removeprefix("0x").replace("-", "").zfill(32)


def normal_span_id(text: str) -> str:
    """16 lower-case hex digits."""
    return text.strip().lower().removeprefix("0x").zfill(16)


def nanoseconds(timestamp: str) -> int:
    """Unix time of an ISO 8601 timestamp.

    Raises:
        ValueError: it is none.
    """
    try:
        moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))  # Python 3.10 takes no Z
        return round(moment.timestamp() * 1e6) * 1000
    except OverflowError as error:
        raise ValueError(f"out of range: {timestamp}") from error


@dataclass(frozen=True)
class RecordedSpan:
    """A span.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        name: its name.
        service: ``service.name`` of its resource, where known.
        started: Unix time in nanoseconds, where known.
        seconds: how long it took, where known.
        attributes: its attributes; arrays are lists.
        known_role: the caller's role, where it is known from elsewhere.
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
        """Whether a decision stands on it."""
        return self.text(names.DECISION) in {names.STORE, names.SKIP}

    @property
    def skipped(self) -> bool:
        """Whether the call's KV was not to be stored."""
        return self.text(names.DECISION) == names.SKIP

    @property
    def when(self) -> datetime | None:
        """When it began, in UTC."""
        return (
            None
            if self.started is None
            else datetime.fromtimestamp(self.started / 1e9, timezone.utc)
        )

    def text(self, name: str) -> str | None:
        """A string attribute."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else None

    def count(self, name: str) -> int | None:
        """An integer attribute; some stores give numbers back as text."""
        number = self.number(name)
        return None if number is None else int(number)

    def number(self, name: str) -> float | None:
        """A number attribute that fits into 64 bits; some stores give numbers back as text."""
        value = self.attributes.get(name)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        known = (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and abs(value) < _TOO_LARGE
        )
        return value if known else None

    def flag(self, name: str) -> bool | None:
        """A boolean attribute."""
        value = self.attributes.get(name)
        return (
            value
            if isinstance(value, bool)
            else {"true": True, "false": False}.get(str(value).lower())
        )

    def texts(self, name: str) -> list[str]:
        """A string array; Jaeger gives it back as JSON text."""
        value = self.attributes.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = [value]
        return [str(item) for item in value] if isinstance(value, (list, tuple)) else []

    @property
    def signals(self) -> dict[str, int]:
        """What was counted, by the names that a decision uses."""
        found = {name: self.count(names.SIGNALS + name) for name in SIGNALS}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def thresholds(self) -> dict[str, int] | None:
        """The recorded thresholds by settings field; None if one is missing that is always there."""
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
        """The caller's role; a span names it in its explanation only, and only where it tipped the call."""
        found = _ROLE.search(self.text(names.EXPLANATION) or "")
        return self.known_role or (found[1] if found else None)

    @property
    def decision(self) -> KVCacheDecision:
        """The rule's decision. The numbers of its reasons, which the span does not carry, are worked out anew where the rule allows it."""
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


def stores(signals: Mapping[str, int], thresholds: Mapping[str, int], role: str | None) -> bool:
    """Return True if the thresholds rule stores a call with these signals."""
    return judge(signals, thresholds, role).cache_worthy


def judge(
    signals: Mapping[str, int], thresholds: Mapping[str, int], role: str | None
) -> KVCacheDecision:
    """Decide recorded signals by the thresholds rule.

    Args:
        signals: all signals, by the names that a decision uses.
        thresholds: by settings field. Optional ones that are missing are off.
        role: role of the caller.
    """
    tools = signals["tool_tokens"]
    text = CallText(  # one character for each token, so that recorded tokens stay what they are
        prefix_chars=signals["prefix_tokens"] - tools,
        tool_chars=tools,
        history_chars=signals["history_tokens"],
        rag_chars=signals["rag_tokens"],
        user_chars=signals["user_tokens"],
        history_turns=signals["history_turns"],
    )
    return ThresholdsRule(chars_per_token=1, **thresholds).judge(text, role)


def rejudged(span: RecordedSpan) -> KVCacheDecision | None:
    """Decide the recorded signals again by the thresholds rule.

    Returns:
        None if the span does not carry everything that takes.
    """
    thresholds, signals = span.thresholds, span.signals
    if (
        thresholds is None
        or len(signals) < len(SIGNALS)
        or min(*thresholds.values(), *signals.values()) < 0
    ):
        return None
    return judge(signals, thresholds, span.role)

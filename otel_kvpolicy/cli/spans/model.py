"""A span as a trace source gives it back, and the decision that stands on it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from ...policy import SIGNALS, CallText, KVCacheDecision, KVCacheLayeringPolicy
from ...policy.adaptive.rule import reason_of
from ...policy.reasons import POLICY_DISABLED, REUSE_HEAVY_ROLE
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
class Thresholds:
    """What the fixed rule compared the signals with."""

    prefix_tokens: int
    context_tokens: int
    history_turns: int


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
    def thresholds(self) -> Thresholds | None:
        """What the signals were compared with, where all of it is there."""
        prefix, context, turns = (
            self.count(name)
            for name in (
                names.THRESHOLD_PREFIX_TOKENS,
                names.THRESHOLD_CONTEXT_TOKENS,
                names.THRESHOLD_HISTORY_TURNS,
            )
        )
        return (
            None
            if prefix is None or context is None or turns is None
            else Thresholds(prefix, context, turns)
        )

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
        numbers = [
            self.number(name)
            for name in (names.ADAPTIVE_REUSE, names.ADAPTIVE_DOUBT, names.ADAPTIVE_THETA)
        ]
        if None not in numbers and len(codes) == 1:
            return decision.model_copy(update={"reasons": [reason_of(codes[0], *numbers)]})  # type: ignore[arg-type]
        again = rejudged(self)
        return (
            decision
            if again is None or again.reason_codes != codes
            else decision.model_copy(update={"reasons": again.reasons})
        )


def policy_of(thresholds: Thresholds) -> KVCacheLayeringPolicy:
    """The fixed rule with recorded thresholds, counting a character as a token, so that recorded tokens can be judged as they are."""
    return KVCacheLayeringPolicy(
        min_prefix_tokens=thresholds.prefix_tokens,
        min_context_tokens=thresholds.context_tokens,
        min_history_turns=thresholds.history_turns,
        chars_per_token=1,
    )


def text_of(signals: Mapping[str, int]) -> CallText:
    """Recorded tokens as the rule takes them, at a character a token."""
    tools = signals["tool_tokens"]
    return CallText(
        prefix_chars=signals["prefix_tokens"] - tools,
        tool_chars=tools,
        history_chars=signals["history_tokens"],
        rag_chars=signals["rag_tokens"],
        user_chars=signals["user_tokens"],
        history_turns=signals["history_turns"],
    )


def rejudged(span: RecordedSpan) -> KVCacheDecision | None:
    """What the fixed rule says of the recorded numbers; None where the span does not carry all it needs."""
    thresholds, signals = span.thresholds, span.signals
    if (
        thresholds is None
        or len(signals) < len(SIGNALS)
        or min(*thresholds.__dict__.values(), *signals.values()) < 0
    ):
        return None
    return policy_of(thresholds).judge(text_of(signals), span.role)

"""The thresholds rule: store a call if any signal reaches its threshold.

:data:`THRESHOLDS` is the one place that defines the thresholds. The rule, the settings, the span
attributes, ``explain``, ``replay`` and the tables in the documentation all read it, so that adding
a threshold means adding one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, Final, Literal, NamedTuple

from .decision import KVCacheDecision, RuleAttribute, Verdict
from .signals import CallText, estimate


class Threshold(NamedTuple):
    """One comparison of a signal with a setting. Several may share a setting.

    Attributes:
        setting: settings field that holds the threshold; ``KV_CACHE_`` precedes it in the
            environment.
        key: short name: ``kvpolicy.thresholds.{key}`` on the span.
        signal: the signal that is compared, a key of ``KVCacheDecision.signals``.
        reason: reason code of a call that reaches the threshold.
        unit: what the signal counts.
        default: value of the setting if it is not set; None turns the threshold off.
        replay: name of the setting in ``replay --rule thresholds:prefix=512``.
        label: what people call the signal.
        because: why a call that reaches the threshold is worth storing, after "its KV is stored:".
        meaning: what the setting does, for the documentation; empty if another threshold shares the
            setting and documents it.
        minimum: the signal must reach at least this, even if the setting is lower.
        bonus: added to the score of a call that reaches the threshold.
    """

    setting: str
    key: str
    signal: str
    reason: str
    unit: Literal["tokens", "turns"]
    default: int | None
    replay: str
    label: str
    because: str
    meaning: str
    minimum: int = 0
    bonus: float = 0.0


THRESHOLDS: Final = (
    Threshold(
        setting="min_prefix_tokens",
        key="prefix_tokens",
        signal="prefix_tokens",
        reason="long_shared_prefix",
        unit="tokens",
        default=1024,
        replay="prefix",
        label="prefix",
        because="its system prompt and tools are long enough to be shared",
        meaning="store a call if its system prompt and tools have at least this many tokens; "
        "also applies to a RAG block",
    ),
    Threshold(
        setting="min_history_turns",
        key="history_turns",
        signal="history_turns",
        reason="multi_turn_conversation",
        unit="turns",
        default=1,
        replay="turns",
        label="earlier turns",
        because="it continues a conversation",
        meaning="store a call if the model has replied at least this many times before; "
        "0 counts as 1",
        minimum=1,
        bonus=0.25,
    ),
    Threshold(
        setting="min_context_tokens",
        key="context_tokens",
        signal="total_tokens",
        reason="large_fixed_context",
        unit="tokens",
        default=2048,
        replay="context",
        label="whole prompt",
        because="the whole prompt is long",
        meaning="store a call if the whole prompt has at least this many tokens",
    ),
    Threshold(
        setting="min_prefix_tokens",
        key="prefix_tokens",
        signal="rag_tokens",
        reason="large_rag_context",
        unit="tokens",
        default=1024,
        replay="prefix",
        label="retrieved context",
        because="its retrieved context is long",
        meaning="",
        minimum=1,
    ),
    Threshold(
        setting="min_tool_tokens",
        key="tool_tokens",
        signal="tool_tokens",
        reason="large_tool_definitions",
        unit="tokens",
        default=None,
        replay="tools",
        label="tool definitions",
        because="its tool definitions are long enough to be shared",
        meaning="store a call if its tool definitions alone have at least this many tokens; "
        "off unless set",
        minimum=1,
    ),
)
"""Every comparison the rule makes, in the order of the reasons in a decision."""

SETTINGS: Final[Mapping[str, Threshold]] = {
    threshold.setting: threshold for threshold in THRESHOLDS if threshold.meaning
}
"""The threshold that documents each setting, by the settings field."""

DEFAULT_CHARS_PER_TOKEN: Final = 4.0

REUSE_HEAVY_ROLE: Final = "reuse_heavy_role"
ONE_OFF_SHORT_PROMPT: Final = "one_off_short_prompt"
POLICY_DISABLED: Final = "policy_disabled"

REASONS: Final[dict[str, str]] = {
    **{each.reason: each.because for each in THRESHOLDS},
    REUSE_HEAVY_ROLE: "its role makes many similar calls, and the prompt is at least half the "
    "context threshold",
    ONE_OFF_SHORT_PROMPT: "no signal reached its threshold",
    POLICY_DISABLED: "nothing is decided",
}
"""The reason codes of this rule, with what each one means."""

CHARS_PER_TOKEN: Final = "chars_per_token"
SCRIPT: Final = "script"

ATTRIBUTES: Final = (
    *(
        RuleAttribute(
            f"thresholds.{each.key}",
            "int",
            f"KV_CACHE_{each.setting.upper()} in force; only with the thresholds rule",
            each.default is not None,
        )
        for each in SETTINGS.values()
    ),
    RuleAttribute(
        CHARS_PER_TOKEN,
        "double",
        "KV_CACHE_CHARS_PER_TOKEN in force; with `auto`, the ratio that was learned for such calls",
        always=True,
    ),
    RuleAttribute(
        SCRIPT,
        "string",
        "with KV_CACHE_CHARS_PER_TOKEN=auto: kind of text in the prompt, such as text, data or "
        "wide",
        always=False,
    ),
)
"""What this rule records beside its decision."""

REUSE_HEAVY_ROLES: Final = frozenset(
    {"chat", "orchestrator", "planner", "router", "assistant", "conversation"}
)
"""Roles whose prompts come back. They tip a borderline call, but never rescue a clear one-off."""

TOOL_AGENT_ROLE: Final = "tool_agent"
"""Role of an agent with tools that names no other role, because its next step starts with this
prompt. It counts no more than any other role."""

_TIPPING_ROLES: Final = REUSE_HEAVY_ROLES | {TOOL_AGENT_ROLE}


class ThresholdsRule:
    """Store a call if any signal reaches its threshold, or a reuse-heavy role tips it.

    Args:
        thresholds: tokens or turns by settings field, such as ``{"min_prefix_tokens": 512}``.
            Missing ones get their defaults; None turns a threshold off.
        enabled: False makes every decision inert.
        chars_per_token: characters that count as one token. No tokenizer runs on the caller's path,
            so token counts are estimates. A number below 1 counts as 1. With
            :data:`~otel_kvpolicy.policy.calibration.AUTO` the caller of :meth:`judge` knows them.

    Raises:
        TypeError: there is no such threshold.
        ValueError: a threshold is negative or not a finite number, or ``chars_per_token`` is not a
            finite number.
    """

    rule: Final = "thresholds"

    __slots__ = (
        "_comparisons",
        "_context",
        "_recorded",
        "_tipping_tokens",
        "chars_per_token",
        "enabled",
        "thresholds",
    )

    def __init__(
        self,
        thresholds: Mapping[str, int | None] | None = None,
        *,
        enabled: bool = True,
        chars_per_token: float = DEFAULT_CHARS_PER_TOKEN,
    ) -> None:
        thresholds = thresholds or {}
        check(thresholds, chars_per_token)
        self.enabled = enabled
        self.chars_per_token = max(1.0, chars_per_token)
        self.thresholds = {
            **{name: each.default for name, each in SETTINGS.items()},
            **thresholds,
        }
        in_force = [
            (each, max(limit, each.minimum))
            for each in THRESHOLDS
            if (limit := self.thresholds[each.setting]) is not None
        ]
        # Plain tuples, prepared once: a decision compares each of them and takes 4 microseconds.
        self._comparisons = [
            (each.signal, limit, f"{each.reason}(", _closing(each, limit), each.bonus)
            for each, limit in in_force
        ]
        context = self.thresholds["min_context_tokens"]
        self._context: float = inf if context is None else max(1, context)
        self._tipping_tokens: float = inf if context is None else context // 2
        self._recorded: dict[str, Any] = {
            f"thresholds.{each.key}": self.thresholds[each.setting] for each, _ in in_force
        }
        self._recorded[CHARS_PER_TOKEN] = float(self.chars_per_token)

    def judge(
        self, text: CallText, role: str | None = None, chars_per_token: float | None = None
    ) -> KVCacheDecision:
        """Decide a call whose parts have been counted.

        Args:
            text: characters and turns of the call.
            role: kind of caller.
            chars_per_token: characters that count as one token of this call; by default those of
                the rule.
        """
        if not self.enabled:
            return DISABLED
        signals = estimate(text, chars_per_token or self.chars_per_token)
        score = signals["total_tokens"] / self._context
        reasons = []
        for signal, limit, opening, closing, bonus in self._comparisons:
            value = signals[signal]
            if value >= limit:
                reasons.append(f"{opening}{value}{closing}")
                score += bonus
        if (
            not reasons
            and role is not None
            and _tips(role)
            and signals["total_tokens"] >= self._tipping_tokens
        ):
            reasons.append(f"{REUSE_HEAVY_ROLE}({role})")
        return KVCacheDecision.trusted(
            cache_worthy=bool(reasons),
            score=1.0 if score >= 1.0 else round(score, 4),
            reasons=reasons or [ONE_OFF_SHORT_PROMPT],
            signals=signals,
        )

    def verdict(self, decision: KVCacheDecision) -> Verdict:
        """Add the sentence and the thresholds to a decision.

        Args:
            decision: made by this rule, or by a subclass of ``KVCacheLayeringPolicy`` whose own
                ``decide`` need not count every signal.
        """
        measured = [
            f"{each.label} {decision.signals[each.signal]} of {self.thresholds[each.setting]}"
            f"{' tokens' if each.unit == 'tokens' else ''}"
            for each in SETTINGS.values()
            if each.signal in decision.signals and self.thresholds[each.setting] is not None
        ]
        sentence = f"{'Skipped' if decision.skip_save else 'Stored'}: {', '.join(decision.reasons)}"
        if measured:
            sentence += f" ({', '.join(measured)})"
        return Verdict(decision, self.rule, f"{sentence}.", self._recorded)


def check(thresholds: Mapping[str, Any], chars_per_token: float | None) -> None:
    """Raise an error if an argument of :class:`ThresholdsRule` makes no sense. None passes.

    Raises:
        TypeError: there is no such threshold.
        ValueError: a value is out of range or not a finite number.
    """
    for name, value in thresholds.items():
        if name not in SETTINGS:
            raise TypeError(f"no threshold {name!r}: there are {', '.join(SETTINGS)}")
        if value is not None and (not _is_finite(value) or value < 0):
            raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")
    if chars_per_token is not None and not _is_finite(chars_per_token):
        raise ValueError(
            f"chars_per_token must be a finite number or 'auto', not {chars_per_token!r}"
        )


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _closing(threshold: Threshold, limit: int) -> str:
    return "turns)" if threshold.unit == "turns" else f">={limit}t)"


def _tips(role: Any) -> bool:
    return isinstance(role, str) and role.strip().lower() in _TIPPING_ROLES


DISABLED: Final = KVCacheDecision(
    cache_worthy=False, skip_save=False, reasons=[POLICY_DISABLED], enabled=False
)
"""The decision of every rule while the policy is disabled."""

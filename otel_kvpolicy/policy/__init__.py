"""The rules. Pure: no OpenTelemetry, no openai, no I/O, and no clock that was not passed in."""

from typing import Final

from . import thresholds
from .adaptive import why
from .decision import (
    SKIP,
    STORE,
    KVCacheDecision,
    RuleAttribute,
    Verdict,
    reason_code,
)
from .priority import PRIORITIES, Priority
from .signals import SIGNALS, CallText
from .thresholds import REUSE_HEAVY_ROLES, THRESHOLDS, TOOL_AGENT_ROLE, Threshold, ThresholdsRule

REASONS: Final[dict[str, str]] = {**thresholds.REASONS, **why.REASONS}
"""The reason codes of both rules, with what each one means."""

RULE_ATTRIBUTES: Final[tuple[RuleAttribute, ...]] = (*thresholds.ATTRIBUTES, *why.ATTRIBUTES)
"""What the rules record beside their decisions."""

__all__ = [
    "PRIORITIES",
    "REASONS",
    "REUSE_HEAVY_ROLES",
    "RULE_ATTRIBUTES",
    "SIGNALS",
    "SKIP",
    "STORE",
    "THRESHOLDS",
    "TOOL_AGENT_ROLE",
    "CallText",
    "KVCacheDecision",
    "Priority",
    "RuleAttribute",
    "Threshold",
    "ThresholdsRule",
    "Verdict",
    "reason_code",
]

"""Decides. Pure: no OpenTelemetry, no openai, no I/O, no clock it was not given."""

from .decision import KVCacheDecision, reason_code
from .signals import SIGNALS, CallText
from .thresholds import REUSE_HEAVY_ROLES, TOOL_AGENT_ROLE, KVCacheLayeringPolicy

__all__ = [
    "REUSE_HEAVY_ROLES",
    "SIGNALS",
    "TOOL_AGENT_ROLE",
    "CallText",
    "KVCacheDecision",
    "KVCacheLayeringPolicy",
    "reason_code",
]

"""Decides per chat call whether its KV cache is worth storing, and records each decision."""

from .context import kv_context
from .instrumentation import KVPolicyInstrumentor
from .layering_policy import KVCacheLayeringPolicy
from .manual import decide, fold_kv_hint
from .policy import KVCacheDecision
from .settings import configure
from .version import __version__

__all__ = [
    "KVCacheDecision",
    "KVCacheLayeringPolicy",
    "KVPolicyInstrumentor",
    "__version__",
    "configure",
    "decide",
    "fold_kv_hint",
    "kv_context",
]

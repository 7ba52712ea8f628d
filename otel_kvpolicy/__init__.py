"""Decides per chat call whether its KV cache is worth storing, and makes every decision observable."""

from .policy import KVCacheDecision, KVCacheLayeringPolicy
from .version import __version__

__all__ = ["KVCacheDecision", "KVCacheLayeringPolicy", "__version__"]

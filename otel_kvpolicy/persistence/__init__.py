"""Keeps what the adaptive rule learns across restarts and shares it with a fleet, in a thread."""

from .adaptive_state import AdaptiveState

__all__ = ["AdaptiveState"]

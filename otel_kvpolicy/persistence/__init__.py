"""Keeps what the adaptive rule learns across restarts, and shares it with a fleet, off the call's path."""

from .adaptive_state import AdaptiveState

__all__ = ["AdaptiveState"]

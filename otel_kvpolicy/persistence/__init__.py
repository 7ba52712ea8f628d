"""What the learned rule has learned: one rule for a process, kept over restarts and shared with a fleet, off the call's path."""

from .process_rule import Learner, forget, learner

__all__ = ["Learner", "forget", "learner"]

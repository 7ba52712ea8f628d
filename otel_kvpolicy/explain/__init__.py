"""Reads a decision back from a trace, the decision log or a request, and says why in words. Needs the extra ``[cli]``."""

from .account import Explanation, explain
from .spans import RecordedSpan

__all__ = ["Explanation", "RecordedSpan", "explain"]

"""Reads a decision back from a trace, the decision log or a request, and says why in words. Needs the extra ``[cli]``."""

from ..spans.model import RecordedSpan
from .explanation import Explanation, explain

__all__ = ["Explanation", "RecordedSpan", "explain"]

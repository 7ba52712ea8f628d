"""Explains a recorded decision, or the decision a request would get. Needs the ``[cli]`` extra."""

from ..spans.model import RecordedSpan
from .explanation import Explanation, explain

__all__ = ["Explanation", "RecordedSpan", "explain"]

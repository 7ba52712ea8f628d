"""Makes decisions observable: names, the span writer, the metric instruments."""

from .instruments import Instruments
from .record import CallRecord, explanation

__all__ = ["CallRecord", "Instruments", "explanation"]

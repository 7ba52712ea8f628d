"""Subscribers to decisions, for routing, cache warming and custom reports.

An advisor gets one :class:`DecisionEvent` for each decided call. It never gets content. Pass
advisors to ``KVPolicyInstrumentor().instrument(advisors=[...])``, or publish them in the entry
point group ``otel_kvpolicy.advisors``.
"""

from .affinity import Affinity
from .event import Advice, Advisor, DecisionEvent
from .registry import ENTRY_POINT_GROUP, Advisors

__all__ = ["ENTRY_POINT_GROUP", "Advice", "Advisor", "Advisors", "Affinity", "DecisionEvent"]

"""Affinity: a request header for load balancers, equal for calls that share a prefix."""

from __future__ import annotations

import logging
from typing import Final

from .. import settings
from ..settings import env_name
from .event import Advice, DecisionEvent

_log = logging.getLogger("otel_kvpolicy")


class Affinity:
    """Adds the header that ``KV_CACHE_AFFINITY_HEADER`` names. Always subscribed; off if unset.

    Its value is the hash of the conversation id if the caller names one. Otherwise it is the hash
    of the part of the prompt that ``KV_CACHE_AFFINITY_SCOPE`` names.
    """

    adds_headers: Final = True

    def __init__(self) -> None:
        self._warned = False

    def on_decision(self, event: DecisionEvent) -> Advice | None:
        """Return the header for a call; None if its prompt has no stable part."""
        now = settings.current()
        if now.affinity_header is None:
            return None
        if now.affinity_key is None and not self._warned:
            self._warned = True
            _log.warning(
                "%s is set, but %s is not: each process sends different values, so only calls of "
                "one process meet the same replica. Set the same key in all processes.",
                env_name("affinity_header"),
                env_name("affinity_key"),
            )
        scoped = event.opening_hash if now.affinity_scope == "opening" else event.prefix_hash
        value = event.conversation_hash or scoped
        return Advice({now.affinity_header: value}) if value else None

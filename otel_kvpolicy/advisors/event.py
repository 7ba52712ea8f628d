"""What an advisor gets for each decided call, and what it may return."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, runtime_checkable

from ..hints.targets import Origin
from ..policy import KVCacheDecision

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class DecisionEvent(NamedTuple):
    """One decided call, without content.

    The hashes are hexadecimal and keyed with ``KV_CACHE_AFFINITY_KEY``. Without that setting the
    key is random, and only calls of the same process can be compared.

    Attributes:
        decision: what the active rule decided, with its score and signals.
        outcome: what happened to the hint, such as ``applied`` or ``observed``.
        prefix_hash: hash of the stable prefix: tools, instructions and leading system messages.
            Without any of these it equals ``opening_hash``. Empty if the request has no messages,
            or if they cannot be read.
        opening_hash: hash of everything before the first model reply, with which every call of a
            conversation starts. Empty if ``prefix_hash`` is.
        conversation_hash: hash of the conversation id; empty if none is known.
        prefix_tokens: estimated tokens of the part that ``prefix_hash`` covers.
        total_tokens: estimated tokens of the whole prompt; 0 if the policy is disabled.
        model: model that the request names.
        origin: the server.
    """

    decision: KVCacheDecision
    outcome: str
    prefix_hash: str
    opening_hash: str
    conversation_hash: str
    prefix_tokens: int
    total_tokens: int
    model: str
    origin: Origin


class Advice(NamedTuple):
    """What an advisor wants for the call.

    Attributes:
        headers: request headers to add, by name.
    """

    headers: Mapping[str, str] = _NO_HEADERS


@runtime_checkable
class Advisor(Protocol):
    """A subscriber to decisions. A plain function that takes the event is one, too.

    It runs in a background thread, after the call was decided. If it has an attribute
    ``adds_headers`` that is true, it runs on the path of the call instead, so it must be fast. An
    exception is reported as an error of this package and never reaches the caller.
    """

    def on_decision(self, event: DecisionEvent) -> Advice | None:
        """Take note of a decision.

        Args:
            event: the decided call.

        Returns:
            Headers to add, if the advisor has ``adds_headers``. Otherwise the value is ignored.
        """

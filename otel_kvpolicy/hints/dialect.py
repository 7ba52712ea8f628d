"""The protocol of a dialect: how one kind of server receives the hint."""

from __future__ import annotations

from typing import Any, Protocol


class Dialect(Protocol):
    """One way to say in the request body whether the server should store a call's KV.

    Attributes:
        name: short name for documentation and configuration.
        field: field of the request body that carries the hint.
    """

    @property
    def name(self) -> str: ...

    @property
    def field(self) -> str: ...

    def params(
        self, *, skip: bool, keys: str, keep_tokens: int = 0, stats: bool = False
    ) -> dict[str, Any]:
        """Return the keys that say store or skip.

        Args:
            skip: True if the server should not store the call's KV.
            keys: the ``KV_CACHE_HINT_KEYS`` setting.
            keep_tokens: leading tokens of a skipped call to store anyway, if the server can.
            stats: True to ask for the cached tokens of each cache.
        """

    def keeps_parts(self, keys: str) -> bool:
        """Return True if a skipped call can have its first tokens stored anyway.

        Args:
            keys: the ``KV_CACHE_HINT_KEYS`` setting.
        """

    def merge(self, given: Any, params: dict[str, Any]) -> Any:
        """Return the new value of the field: what the caller put there, with ``params`` added."""

    def is_callers(self, given: Any) -> bool:
        """Return True if the caller's value of the field already decides the call."""

    def caller_skips(self, given: Any) -> bool:
        """Return True if the caller's value of the field keeps the call from being stored."""

    def caller_caps(self, given: Any) -> bool:
        """Return True if the caller's value of the field limits how much of the call is stored."""

    def malformed(self, given: Any) -> str | None:
        """Return what is wrong with the caller's value of the field, if it can crash the server."""

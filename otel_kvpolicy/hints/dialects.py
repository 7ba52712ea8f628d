"""The setting ``KV_CACHE_DIALECT``: the dialect in which each server gets the hint."""

from __future__ import annotations

from typing import Final

from .dialect import Dialect
from .lmcache import LMCACHE
from .targets import HostPattern, Origin
from .vllm_offload import VLLM_OFFLOAD

ALL: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (LMCACHE, VLLM_OFFLOAD)}
"""Every dialect by name."""


class Dialects:
    """The setting ``KV_CACHE_DIALECT``.

    Args:
        text: entries separated by commas. Each is the name of a dialect, optionally followed by
            ``@`` and a host pattern as in ``KV_CACHE_TARGETS``, such as
            ``lmcache,vllm-offload@*.lan:8001``. The first entry whose pattern matches a server
            counts; an entry without a pattern is for all other servers (by default ``lmcache``).

    Raises:
        ValueError: a name is not a dialect, a pattern is not a host, or two entries have no
            pattern.
    """

    __slots__ = ("_default", "_placed", "text")

    def __init__(self, text: str) -> None:
        entries = [part.strip().lower() for part in text.split(",") if part.strip()]
        if not entries:
            raise ValueError("it names no dialect")
        self.text = ",".join(entries)
        placed: list[tuple[HostPattern, Dialect]] = []
        default: Dialect | None = None
        for entry in entries:
            name, at, pattern = entry.partition("@")
            dialect = ALL.get(name.strip())
            if dialect is None:
                raise ValueError(f"{name!r} is not a dialect: there are {', '.join(ALL)}")
            if at:
                placed.append((HostPattern(pattern.strip()), dialect))
            elif default is None:
                default = dialect
            else:
                raise ValueError("it names two dialects for all servers; add @HOST to one")
        self._placed = tuple(placed)
        self._default: Dialect = default or LMCACHE

    def of(self, origin: Origin | None) -> Dialect:
        """Return the dialect of a server; None stands for a server that is not known."""
        if origin is not None and self._placed:
            for pattern, dialect in self._placed:
                if pattern.matches(origin):
                    return dialect
        return self._default

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dialects) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Dialects({self.text!r})"

"""What the servers say of themselves: versions, connector mode, chunk size, tiers, metric names. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ... import series
from ..http import Http, ServerError
from ..metrics_page import Page

Mode = Literal["mp", "in_process", "unknown"]

_HINTS_SINCE: Final = (0, 5, 6)


@dataclass(frozen=True)
class VLLMFacts:
    """What vLLM says.

    Attributes:
        version: as told, where it is told.
        model: the model to ask.
        max_model_len: tokens of its longest prompt, where told.
        page: its metrics, where there are any.
    """

    version: str | None
    model: str
    max_model_len: int | None
    page: Page | None

    @property
    def is_vllm(self) -> bool:
        """Whether anything that it says is vLLM's."""
        named = self.page is not None and self.page.has_prefix(series.VLLM_PREFIX)
        return self.version is not None or named

    @property
    def prefix_caching(self) -> bool | None:
        """Whether vLLM's own prefix cache is on, where told."""
        value = self.page and self.page.label(series.CACHE_CONFIG, "enable_prefix_caching")
        return None if value is None else value == "True"


@dataclass(frozen=True)
class LMCacheFacts:
    """What LMCache's multi-process server says.

    Attributes:
        version: as told, where it is told.
        chunk_size: tokens of a chunk.
        l1_bytes: capacity of its memory tier.
        l1_used_bytes: used of it.
        l2: types of its backends.
        page: its metrics, where there are any.
    """

    version: str | None
    chunk_size: int | None
    l1_bytes: int | None
    l1_used_bytes: int | None
    l2: tuple[str, ...]
    page: Page | None

    @property
    def honours_caps(self) -> bool | None:
        """Whether its version reads ``lmcache.max_offload_tokens``; None where the version is not told."""
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", self.version or "")
        return None if found is None else tuple(map(int, found.groups())) >= _HINTS_SINCE


def read_vllm(http: Http, model: str | None) -> VLLMFacts:
    """Asks vLLM.

    Raises:
        ServerError: it cannot be reached, or serves no such model.
    """
    listed = http.try_json("/v1/models")
    models = [
        entry
        for entry in _mapping(listed).get("data") or ()
        if isinstance(entry, Mapping) and entry.get("id")
    ]
    if not models:
        raise ServerError(
            f"{http.name}/v1/models lists no model: is this an OpenAI-compatible server?"
        )
    chosen = next((entry for entry in models if model in {None, entry["id"]}), None)
    if chosen is None:
        raise ServerError(
            f"{http.name} serves no model {model!r}; there are {', '.join(str(entry['id']) for entry in models)}"
        )
    version = _mapping(http.try_json("/version")).get("version")
    return VLLMFacts(
        version if isinstance(version, str) else None,
        str(chosen["id"]),
        _int(chosen.get("max_model_len")),
        http.page(),
    )


def read_lmcache(http: Http) -> LMCacheFacts:
    """Asks LMCache's multi-process server.

    Raises:
        ServerError: it cannot be reached, or is something else.
    """
    status = _mapping(http.try_json("/status"))
    version = http.try_json("/version")
    page = http.page()
    if "chunk_size" not in status and not (page and page.has_prefix(series.LMCACHE_MP_PREFIX)):
        raise ServerError(
            f"{http.name} answers, but neither /status nor /metrics is of LMCache's multi-process server"
        )
    manager = _mapping(status.get("storage_manager"))
    tiers = [_mapping(tier) for tier in _mapping(manager.get("l1_managers")).values()] or [
        _mapping(manager.get("l1_manager"))
    ]
    adapters = [_mapping(adapter) for adapter in manager.get("l2_adapters") or ()]
    return LMCacheFacts(
        version=version if isinstance(version, str) else _text(_mapping(version).get("version")),
        chunk_size=_int(status.get("chunk_size"))
        or _int(_mapping(_mapping(http.try_json("/config")).get("mp")).get("chunk_size")),
        l1_bytes=_sum(tier.get("memory_total_bytes") for tier in tiers),
        l1_used_bytes=_sum(tier.get("memory_used_bytes") for tier in tiers),
        l2=tuple(str(adapter.get("type", "unknown")) for adapter in adapters),
        page=page,
    )


def mode_of(vllm: Page | None, lmcache: LMCacheFacts | None) -> Mode:
    """How vLLM reaches LMCache, by what is on the pages."""
    if vllm is not None and vllm.has_prefix(series.LMCACHE_IN_PROCESS_PREFIX):
        return "in_process"
    if lmcache is not None or (vllm is not None and vllm.has(series.LOOKUP_TIME)):
        return "mp"
    return "unknown"


def missing_series(vllm: Page | None, lmcache: Page | None, mode: Mode) -> list[str]:
    """Series that the dashboards query and that are not there, without those that appear only when they are first counted."""
    wanted: list[tuple[Page | None, Iterable[series.Series]]] = [(vllm, series.VLLM)]
    if mode == "mp":
        wanted.append((lmcache, series.LMCACHE_MP))
    elif mode == "in_process":
        wanted.append((vllm, series.LMCACHE_IN_PROCESS))
    return [
        one.name
        for page, all_of in wanted
        if page is not None
        for one in all_of
        if not one.lazy and not page.has(one)
    ]


_RELEASES: Final = (
    ("0.5.7 or later", (series.LOOKUP_PROMPT, series.LOOKUP_REQUEST_HIT)),
    (
        "0.5.6 or later",
        (series.L1_STAGING_BYTES, series.LOOKUP_HIT_L1_KEYS, series.KV_EVENTS_KEPT),
    ),
    ("0.5.5", (series.LOOKUP_HIT_L1, series.LOOKUPS, series.STORES_STARTED)),
    ("0.5.3 or 0.5.4", (series.L2_ADAPTERS,)),
    ("0.4.7 to 0.5.0", (series.L1_WRITE, series.L1_BYTES)),
    ("before 0.4.7", (series.OLD_L1_WRITE, series.OLDER_L1_WRITE)),
)


def release_of(page: Page | None) -> str | None:
    """The LMCache release that a multi-process page belongs to, by the names that came with each."""
    if page is None:
        return None
    return next(
        (release for release, marks in _RELEASES if any(page.has(mark) for mark in marks)), None
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _sum(values: Iterable[Any]) -> int | None:
    numbers = [int(value) for value in values if isinstance(value, (int, float))]
    return sum(numbers) if numbers else None

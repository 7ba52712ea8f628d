"""What the servers say about themselves: versions, mode, chunk size, tiers, metric names.

Only reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ... import series
from ...series import Series
from ..http import Http, ServerError
from ..metrics_page import Page

Mode = Literal["mp", "in_process", "unknown"]
"""How vLLM reaches LMCache: through a multi-process server, or inside vLLM's own process."""

_CAP_SINCE: Final = (0, 5, 6)


@dataclass(frozen=True)
class VLLMFacts:
    """What vLLM says.

    Attributes:
        version: its version, if it says.
        model: the model to ask.
        max_model_len: tokens of its longest prompt, if it says.
        page: its metrics page, if it has one.
    """

    version: str | None
    model: str
    max_model_len: int | None
    page: Page | None

    @property
    def is_vllm(self) -> bool:
        """Whether anything identifies the server as vLLM."""
        has_series = self.page is not None and self.page.has_prefix(series.VLLM_PREFIX)
        return self.version is not None or has_series

    @property
    def prefix_caching(self) -> bool | None:
        """Whether vLLM's own prefix cache is on; None if it does not say."""
        value = self.page and self.page.label(series.CACHE_CONFIG, "enable_prefix_caching")
        return None if value is None else value == "True"


@dataclass(frozen=True)
class LMCacheFacts:
    """What LMCache's multi-process server says.

    Attributes:
        version: its version, if it says.
        chunk_size: tokens of a chunk.
        l1_bytes: capacity of its memory tier.
        l1_used_bytes: how much of the memory tier is used.
        l2: types of its backends.
        page: its metrics page, if it has one.
    """

    version: str | None
    chunk_size: int | None
    l1_bytes: int | None
    l1_used_bytes: int | None
    l2: tuple[str, ...]
    page: Page | None

    @property
    def reads_caps(self) -> bool | None:
        """Whether its version reads ``lmcache.max_offload_tokens``; None if it is not known."""
        version = re.match(r"(\d+)\.(\d+)\.(\d+)", self.version or "")
        return None if version is None else tuple(map(int, version.groups())) >= _CAP_SINCE


def read_vllm(http: Http, model: str | None) -> VLLMFacts:
    """Ask vLLM.

    Args:
        http: the server.
        model: the model to ask; None for the first one the server lists.

    Raises:
        ServerError: the server cannot be reached, or does not serve the model.
    """
    listed = _mapping(http.try_json("/v1/models")).get("data") or ()
    models = [entry for entry in listed if isinstance(entry, Mapping) and entry.get("id")]
    if not models:
        text = f"{http.name}/v1/models lists no model: is this an OpenAI-compatible server?"
        raise ServerError(text, "no_models")
    chosen = next((entry for entry in models if model in {None, entry["id"]}), None)
    if chosen is None:
        served = ", ".join(str(entry["id"]) for entry in models)
        text = f"{http.name} does not serve the model {model!r}; it serves {served}"
        raise ServerError(text, "unknown_model")
    return VLLMFacts(
        _text(_mapping(http.try_json("/version")).get("version")),
        str(chosen["id"]),
        _positive(chosen.get("max_model_len")),
        http.page(),
    )


def read_lmcache(http: Http) -> LMCacheFacts:
    """Ask LMCache's multi-process server.

    Raises:
        ServerError: the server cannot be reached, or is something else.
    """
    status = _mapping(http.try_json("/status"))
    version = http.try_json("/version")
    page = http.page()
    has_series = page is not None and page.has_prefix(series.LMCACHE_MP_PREFIX)
    if "chunk_size" not in status and not has_series:
        text = (
            f"{http.name} answers, but neither its /status nor its /metrics looks like LMCache's "
            "multi-process server"
        )
        raise ServerError(text, "not_lmcache")
    manager = _mapping(status.get("storage_manager"))
    tiers = [_mapping(tier) for tier in _mapping(manager.get("l1_managers")).values()] or [
        _mapping(manager.get("l1_manager"))
    ]
    adapters = [_mapping(adapter) for adapter in manager.get("l2_adapters") or ()]
    return LMCacheFacts(
        version=version if isinstance(version, str) else _text(_mapping(version).get("version")),
        chunk_size=_positive(status.get("chunk_size")) or _configured_chunk_size(http),
        l1_bytes=_sum(tier.get("memory_total_bytes") for tier in tiers),
        l1_used_bytes=_sum(tier.get("memory_used_bytes") for tier in tiers),
        l2=tuple(str(adapter.get("type", "unknown")) for adapter in adapters),
        page=page,
    )


def _configured_chunk_size(http: Http) -> int | None:
    config = _mapping(http.try_json("/config"))
    return _positive(_mapping(config.get("mp")).get("chunk_size"))


def mode_of(vllm: Page | None, lmcache: LMCacheFacts | None) -> Mode:
    """Return how vLLM reaches LMCache, as far as the servers' pages show."""
    if vllm is not None and vllm.has_prefix(series.LMCACHE_IN_PROCESS_PREFIX):
        return "in_process"
    if lmcache is not None or (vllm is not None and vllm.has(series.LOOKUP_TIME)):
        return "mp"
    return "unknown"


def missing_series(vllm: Page | None, lmcache: Page | None, mode: Mode) -> list[str]:
    """Return the names of series that the dashboards query and the pages do not have.

    Leaves out series that appear only once they have counted something.
    """
    wanted: list[tuple[Page | None, Iterable[Series]]] = [(vllm, series.VLLM)]
    if mode == "mp":
        wanted.append((lmcache, series.LMCACHE_MP))
    elif mode == "in_process":
        wanted.append((vllm, series.LMCACHE_IN_PROCESS))
    return [
        one.name
        for page, queried in wanted
        if page is not None
        for one in queried
        if not one.lazy and not page.has(one)
    ]


OLDEST_RELEASE: Final = "before 0.4.7"
"""The release whose metric names the dashboards do not query."""

_RELEASES: Final = (
    ("0.5.7 or later", (series.LOOKUP_PROMPT, series.LOOKUP_REQUEST_HIT)),
    (
        "0.5.6 or later",
        (series.L1_STAGING_BYTES, series.LOOKUP_HIT_L1_KEYS, series.KV_EVENTS_KEPT),
    ),
    ("0.5.5", (series.LOOKUP_HIT_L1, series.LOOKUPS, series.STORES_STARTED)),
    ("0.5.3 or 0.5.4", (series.L2_ADAPTERS,)),
    ("0.4.7 to 0.5.0", (series.L1_WRITE, series.L1_BYTES)),
    (OLDEST_RELEASE, (series.OLD_L1_WRITE, series.OLDER_L1_WRITE)),
)
"""Releases of LMCache, newest first, each with series that came with it."""


def release_of(page: Page | None) -> str | None:
    """Return the release of LMCache whose metric names a multi-process server's page has."""
    if page is None:
        return None
    return next(
        (release for release, marks in _RELEASES if any(page.has(mark) for mark in marks)), None
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _sum(values: Iterable[Any]) -> int | None:
    numbers = [int(value) for value in values if isinstance(value, (int, float))]
    return sum(numbers) if numbers else None

"""The two metrics pages, under the names, types and labels of real ones (vLLM 0.32.0, LMCache 0.5.6).

vLLM's page comes from prometheus-client's instruments, as the real one does. LMCache's multi-process page comes from an OpenTelemetry
exporter: no ``_created`` series, and a counter appears with its first increment; a collector over the engine's counts gives the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .cache import Tier
from .engine import Engine, Prefill

_TOKEN_BUCKETS: Final = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
    50000.0,
    100000.0,
)
_FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_BUCKETS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_LOOKUP_BUCKETS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
_LABELS: Final = ("model_name", "engine")


class VLLMPage:
    """vLLM's ``/metrics``."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        self._values = (engine.options.models[0], "0")
        self._prefix_queries = self._counter(
            "prefix_cache_queries", "Tokens looked up in vLLM's own prefix cache."
        )
        self._prefix_hits = self._counter(
            "prefix_cache_hits", "Tokens found in vLLM's own prefix cache."
        )
        self._external_queries = self._counter(
            "external_prefix_cache_queries", "Tokens asked of the KV connector."
        )
        self._external_hits = self._counter(
            "external_prefix_cache_hits", "Tokens the KV connector supplied."
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens.")
        self._prompt_cached = self._counter("prompt_tokens_cached", "Prompt tokens from any cache.")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._preemptions = self._counter("num_preemptions", "Preemptions.")
        self._by_source = self._split(
            "prompt_tokens_by_source", "Prompt tokens by source.", "source"
        )
        self._cached_by_source = self._split(
            "prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", "source"
        )
        self._success = self._split(
            "request_success", "Requests that ended, by how.", "finished_reason"
        )
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            self._by_source.labels(*self._values, source)
        for source in ("device", "host", "p2p", "disk", "external_unspecified"):
            self._cached_by_source.labels(*self._values, source)
        for reason in ("stop", "length", "abort", "error", "repetition"):
            self._success.labels(*self._values, reason)
        self._running = self._gauge("num_requests_running", "Requests being computed.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting.")
        self._usage = self._gauge(
            "kv_cache_usage_perc", "Share of the KV cache in use by running requests."
        )
        self._prompt_size = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _TOKEN_BUCKETS
        )
        self._computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed.", _TOKEN_BUCKETS
        )
        self._generated = self._histogram(
            "request_generation_tokens", "Generated tokens of a request.", _TOKEN_BUCKETS
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Time to the first token.", _FIRST_TOKEN_BUCKETS
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "Time from arrival to the last token.", _REQUEST_BUCKETS
        )
        self._prefill_time = self._histogram(
            "request_prefill_time_seconds", "Time in prefill.", _REQUEST_BUCKETS
        )
        if engine.options.mode == "mp" and not engine.options.vendored_connector:
            self._lookup_time: Histogram | None = self._histogram(
                "lmcache_mp_lookup_duration_seconds",
                "LMCache lookups as vLLM sees them.",
                _LOOKUP_BUCKETS,
            )
        else:
            self._lookup_time = None
        if engine.options.mode == "in_process":
            self.registry.register(_InProcess(engine))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _split(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"vllm:{name}", text, (*_LABELS, label), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self.registry
        ).labels(*self._values)

    def started(self) -> float:
        """A request has arrived. Returns its start, for :meth:`prefilled` and :meth:`ended`."""
        self._running.inc()
        return time.monotonic()

    def prefilled(self, prefill: Prefill, started: float) -> None:
        """The prompt of a request is computed and its first token is there."""
        asked = prefill.prompt_tokens - prefill.gpu_tokens
        self._prefix_queries.inc(prefill.prompt_tokens)
        self._prefix_hits.inc(prefill.gpu_tokens)
        if self._engine.options.mode != "none":
            self._external_queries.inc(asked)
            self._external_hits.inc(prefill.external_tokens)
        self._prompt_tokens.inc(prefill.prompt_tokens)
        self._prompt_cached.inc(prefill.cached_tokens)
        self._by_source.labels(*self._values, "local_compute").inc(
            prefill.prompt_tokens - prefill.cached_tokens
        )
        self._by_source.labels(*self._values, "local_cache_hit").inc(prefill.gpu_tokens)
        self._by_source.labels(*self._values, "external_kv_transfer").inc(prefill.external_tokens)
        self._cached_by_source.labels(*self._values, "device").inc(prefill.gpu_tokens)
        self._cached_by_source.labels(*self._values, "external_unspecified").inc(
            prefill.external_tokens
        )
        self._prompt_size.observe(prefill.prompt_tokens)
        self._computed.observe(prefill.prompt_tokens - prefill.cached_tokens)
        took = time.monotonic() - started
        self._first_token.observe(took)
        self._prefill_time.observe(took)
        if self._lookup_time is not None:
            self._lookup_time.observe(took)

    def ended(self, started: float, finished_reason: str, generated: int = 0) -> None:
        """A request has ended, as ``stop``, ``length``, ``abort`` or ``error``."""
        self._running.dec()
        self._success.labels(*self._values, finished_reason).inc()
        self._generation_tokens.inc(generated)
        self._generated.observe(generated)
        self._e2e.observe(time.monotonic() - started)

    def render(self) -> bytes:
        """The page as Prometheus text."""
        return generate_latest(self.registry)


class LMCachePage:
    """The ``/metrics`` of LMCache's multi-process server."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_MultiProcess(engine))

    def render(self) -> bytes:
        """The page as Prometheus text."""
        return generate_latest(self.registry)


_MP_COUNTERS: Final = {
    "l1_write_chunks": "Chunks written to L1, including those loaded from L2",
    "l1_read_chunks": "Chunks read from L1",
    "l1_evicted_chunks": "Chunks evicted from L1",
    "l1_eviction_loop_triggered": "Evictions from L1",
    "l2_prefetch_lookup_requests": "L2 lookups",
    "l2_prefetch_lookup_objects_chunks": "Chunks looked up in L2",
    "l2_store_submitted_requests": "Stores to L2 begun",
    "l2_store_submitted_objects_chunks": "Chunks queued for L2",
    "l2_store_completed_requests": "Stores to L2 done",
    "l2_store_completed_objects_chunks": "Chunks written to L2",
    "l2_prefetch_load_submitted_requests": "Loads from L2 begun",
    "l2_prefetch_load_submitted_objects_chunks": "Chunks to load from L2",
    "l2_load_completed_requests": "Loads from L2 done",
    "l2_prefetch_load_completed_chunks": "Chunks loaded from L2",
    "l2_evicted_objects_chunks": "Chunks evicted from L2",
    "lookup_requested_tokens": "Tokens looked up, whole chunks only",
    "lookup_hit_tokens": "Tokens of the contiguous prefix found in L1 and L2",
    "lookup_hit_l1_tokens": "Of the hit: served by L1",
    "lookup_hit_l2_tokens": "Of the hit: added by L2",
    "lookup_hit_l1_keys": "Hit keys L1 held",
    "lookup_hit_l2_keys": "Hit keys loaded from L2",
    "lookups_requests": "Lookups",
    "lookup_early_exit_requests": "Lookups that probed nothing",
}


class _MultiProcess(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        engine = self._engine
        for name, text in _MP_COUNTERS.items():
            series = engine.counts.values.get(name)
            if series is not None:
                labels = list(dict(next(iter(series))))
                family = CounterMetricFamily(f"lmcache_mp_{name}", text, labels=labels)
                for key, value in series.items():
                    family.add_metric([value for _, value in key], value)
                yield family
        yield from self._gauges()

    def _gauges(self) -> Iterable[Metric]:
        l1, l2 = self._engine.cache.l1, self._engine.cache.l2
        labels = {"l1_tag": "_default", "backend": "dram"}
        yield _gauge(
            "lmcache_mp_l1_memory_usage_bytes", "Bytes held in L1", l1.used_bytes, **labels
        )
        yield _gauge("lmcache_mp_l1_usage_ratio", "Share of L1 in use", _share(l1), **labels)
        yield _gauge("lmcache_mp_l1_staging_bytes", "Bytes being written", 0, **labels)
        if l2 is not None:
            yield _gauge(
                "lmcache_mp_l2_usage_bytes", "Bytes held in L2", l2.used_bytes, l2_name="fs"
            )
        yield _gauge("lmcache_mp_event_bus_queue_depth", "Events queued", 0)
        yield _gauge("lmcache_mp_event_bus_drain_lag_seconds", "Age of the oldest queued event", 0)
        dropped = CounterMetricFamily("lmcache_mp_event_bus_dropped_events", "Events dropped")
        dropped.add_metric([], 0)
        yield dropped


class _InProcess(Collector):
    """The colon names of LMCache's in-process connector, which stand on vLLM's own page (``lmcache/observability.py``)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        model = engine.options.models[0]
        self._labels = {
            "model_name": engine.labels["model_name"],
            "worker_id": "0",
            "role": "worker",
            "served_model_name": model,
        }

    def collect(self) -> Iterable[Metric]:
        counts = self._engine.counts
        requested, hit = counts.total("lookup_requested_tokens"), counts.total("lookup_hit_tokens")
        stored = counts.total("l1_write_chunks") - counts.total("l2_prefetch_load_completed_chunks")
        tokens = self._engine.options.chunk_bytes // self._engine.options.kv_bytes_per_token
        for name, text, value in (
            ("num_lookup_requests", "Lookups", counts.total("lookups_requests")),
            ("num_lookup_tokens", "Tokens looked up", requested),
            ("num_lookup_hits", "Tokens found", hit),
            ("num_stored_tokens", "Tokens stored", stored * tokens),
            (
                "local_cpu_evict_keys_count",
                "Chunks evicted from memory",
                counts.total("l1_evicted_chunks"),
            ),
        ):
            family = CounterMetricFamily(f"lmcache:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family
        yield _gauge(
            "lmcache:local_cache_usage",
            "Bytes held in memory",
            self._engine.cache.l1.used_bytes,
            **self._labels,
        )
        yield _gauge(
            "lmcache:lookup_hit_rate",
            "Share of looked up tokens found",
            hit / requested if requested else 0.0,
            **self._labels,
        )
        if self._engine.cache.l2 is not None:
            yield _gauge(
                "lmcache:remote_cache_usage",
                "Bytes held remotely",
                self._engine.cache.l2.used_bytes,
                **self._labels,
            )


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _share(tier: Tier) -> float:
    return tier.used_bytes / tier.capacity_bytes if tier.capacity_bytes else 0.0

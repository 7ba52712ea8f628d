"""The stand-in's two metrics pages, with the names, types and labels of real ones.

They follow vLLM 0.32.0 and LMCache 0.5.6. vLLM's page uses prometheus-client's instruments, as the
real one does. LMCache's multi-process page comes from an OpenTelemetry exporter, which writes no
``_created`` series and no counter before its first increment; here, a collector over the engine's
counts does the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import series
from ..series import Series
from .cache import Tier
from .engine import Engine, Prefill

_TOKEN_BUCKETS: Final = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0),
    *(10000.0, 20000.0, 50000.0, 100000.0),
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
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)


class VLLMPage:
    """vLLM's ``/metrics``."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        self._values = (engine.options.models[0], "0")
        self._prefix_queries = self._counter(series.PREFIX_QUERIES)
        self._prefix_hits = self._counter(series.PREFIX_HITS)
        self._external_queries = self._counter(series.EXTERNAL_QUERIES)
        self._external_hits = self._counter(series.EXTERNAL_HITS)
        self._prompt_tokens = self._counter(series.PROMPT_TOKENS)
        self._prompt_cached = self._counter(series.PROMPT_TOKENS_CACHED)
        self._generation_tokens = self._counter(series.GENERATION_TOKENS)
        self._preemptions = self._counter(series.PREEMPTIONS)
        self._by_source = self._split(series.PROMPT_TOKENS_BY_SOURCE)
        self._cached_by_source = self._split(series.PROMPT_TOKENS_CACHED_BY_SOURCE)
        self._success = self._split(series.REQUESTS_FINISHED)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            self._by_source.labels(*self._values, source)
        for source in ("device", "host", "p2p", "disk", "external_unspecified"):
            self._cached_by_source.labels(*self._values, source)
        for reason in ("stop", "length", "abort", "error", "repetition"):
            self._success.labels(*self._values, reason)
        self._running = self._gauge(series.RUNNING)
        self._waiting = self._gauge(series.WAITING)
        self._usage = self._gauge(series.KV_USAGE)
        self._prompt_size = self._histogram(series.REQUEST_PROMPT_TOKENS, _TOKEN_BUCKETS)
        self._computed = self._histogram(series.REQUEST_COMPUTED_TOKENS, _TOKEN_BUCKETS)
        self._generated = self._histogram(series.REQUEST_GENERATION_TOKENS, _TOKEN_BUCKETS)
        self._first_token = self._histogram(series.FIRST_TOKEN, _FIRST_TOKEN_BUCKETS)
        self._e2e = self._histogram(series.REQUEST_TIME, _REQUEST_BUCKETS)
        self._prefill_time = self._histogram(series.PREFILL_TIME, _REQUEST_BUCKETS)
        own_connector = engine.options.mode == "mp" and not engine.options.vendored_connector
        self._lookup_time = (
            self._histogram(series.LOOKUP_TIME, _LOOKUP_BUCKETS) if own_connector else None
        )
        if engine.options.mode == "in_process":
            self.registry.register(_InProcess(engine))

    def _counter(self, metric: Series) -> Counter:
        return self._split(metric).labels(*self._values)

    def _split(self, metric: Series) -> Counter:
        return Counter(metric.name, metric.meaning, metric.labels, registry=self.registry)

    def _gauge(self, metric: Series) -> Gauge:
        gauge = Gauge(metric.name, metric.meaning, metric.labels, registry=self.registry)
        return gauge.labels(*self._values)

    def _histogram(self, metric: Series, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            metric.name, metric.meaning, metric.labels, buckets=buckets, registry=self.registry
        )
        return histogram.labels(*self._values)

    def started(self) -> float:
        """Count a new request and return its start time for :meth:`prefilled` and :meth:`ended`."""
        self._running.inc()
        return time.monotonic()

    def prefilled(self, prefill: Prefill, started: float) -> None:
        """Count a request whose prompt is computed and whose first token is there."""
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
        """Count a request that ended with ``stop``, ``length``, ``abort`` or ``error``."""
        self._running.dec()
        self._success.labels(*self._values, finished_reason).inc()
        self._generation_tokens.inc(generated)
        self._generated.observe(generated)
        self._e2e.observe(time.monotonic() - started)

    def render(self) -> bytes:
        """Return the page as Prometheus text."""
        return generate_latest(self.registry)


class LMCachePage:
    """The ``/metrics`` of LMCache's multi-process server."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_MultiProcess(engine))

    def render(self) -> bytes:
        """Return the page as Prometheus text."""
        return generate_latest(self.registry)


_MP_COUNTERS: Final = (
    series.L1_WRITE,
    series.L1_READ,
    series.L1_EVICTED,
    series.L1_EVICTIONS,
    series.L2_LOOKUPS,
    series.L2_LOOKUP_CHUNKS,
    series.L2_STORES_STARTED,
    series.L2_STORE_CHUNKS,
    series.L2_STORES,
    series.L2_STORED,
    series.L2_LOADS_STARTED,
    series.L2_LOAD_CHUNKS,
    series.L2_LOADS,
    series.L2_LOADED,
    series.L2_EVICTED,
    series.LOOKUP_REQUESTED,
    series.LOOKUP_HIT,
    series.LOOKUP_HIT_L1,
    series.LOOKUP_HIT_L2,
    series.LOOKUP_HIT_L1_KEYS,
    series.LOOKUP_HIT_L2_KEYS,
    series.LOOKUPS,
    series.LOOKUPS_EARLY_EXIT,
)


class _MultiProcess(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        for metric in _MP_COUNTERS:
            values = self._engine.counts.values.get(metric.stem)
            if values is not None:
                labels = list(dict(next(iter(values))))
                family = CounterMetricFamily(metric.name, metric.meaning, labels=labels)
                for key, value in values.items():
                    family.add_metric([text for _, text in key], value)
                yield family
        yield from self._gauges()

    def _gauges(self) -> Iterable[Metric]:
        l1, l2 = self._engine.cache.l1, self._engine.cache.l2
        labels = {"l1_tag": "_default", "backend": "dram"}
        yield _gauge(series.L1_BYTES, l1.used_bytes, labels)
        yield _gauge(series.L1_RATIO, _share(l1), labels)
        yield _gauge(series.L1_STAGING_BYTES, 0, labels)
        if l2 is not None:
            yield _gauge(series.L2_BYTES, l2.used_bytes, {"l2_name": "fs"})
        yield _gauge(series.EVENT_QUEUE, 0, {})
        yield _gauge(series.EVENT_LAG, 0, {})
        yield _counter(series.EVENTS_DROPPED, 0, {})


class _InProcess(Collector):
    """The series of LMCache's in-process connector, which appear on vLLM's page.

    Source: ``lmcache/observability.py``.
    """

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
        options, cache = self._engine.options, self._engine.cache
        requested = self._total(series.LOOKUP_REQUESTED)
        hit = self._total(series.LOOKUP_HIT)
        stored_chunks = self._total(series.L1_WRITE) - self._total(series.L2_LOADED)
        chunk_tokens = options.chunk_bytes // options.kv_bytes_per_token
        for metric, value in (
            (series.IN_LOOKUPS, self._total(series.LOOKUPS)),
            (series.IN_LOOKUP_TOKENS, requested),
            (series.IN_LOOKUP_HITS, hit),
            (series.IN_STORED_TOKENS, stored_chunks * chunk_tokens),
            (series.IN_EVICTED_KEYS, self._total(series.L1_EVICTED)),
        ):
            yield _counter(metric, value, self._labels)
        yield _gauge(series.IN_LOCAL_BYTES, cache.l1.used_bytes, self._labels)
        hit_rate = hit / requested if requested else 0.0
        yield _gauge(series.IN_LOOKUP_HIT_RATE, hit_rate, self._labels)
        if cache.l2 is not None:
            yield _gauge(series.IN_REMOTE_BYTES, cache.l2.used_bytes, self._labels)

    def _total(self, metric: Series) -> float:
        return self._engine.counts.total(metric.stem)


def _counter(metric: Series, value: float, labels: dict[str, str]) -> Metric:
    family = CounterMetricFamily(metric.name, metric.meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _gauge(metric: Series, value: float, labels: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _share(tier: Tier) -> float:
    return tier.used_bytes / tier.capacity_bytes if tier.capacity_bytes else 0.0

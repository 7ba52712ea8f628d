"""Every metric of other programs that the dashboards and rules query: vLLM, LMCache, the host's exporters, the Collector's span metrics.

The only place where they are spelled. Names are those that Prometheus stores; each is on a real page, or in the source of the program
that writes it. Labels are the ones that queries may use besides ``job`` and ``instance``, which every scraped series has.
Counters end in ``_total``: Prometheus' OTLP receiver adds it where it is missing, so that other names would depend on the path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Series:
    """A metric of a server.

    Attributes:
        name: as Prometheus stores it; a histogram's ``_bucket``, ``_sum`` and ``_count`` follow it.
        kind: what it is.
        labels: labels that queries may use.
        lazy: absent until it is first counted, so that absent means zero while the server is there.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...] = ()
    lazy: bool = False


def _counter(name: str, *labels: str, lazy: bool = False) -> Series:
    return Series(name, "counter", labels, lazy)


def _gauge(name: str, *labels: str) -> Series:
    return Series(name, "gauge", labels)


def _histogram(name: str, *labels: str) -> Series:
    return Series(name, "histogram", labels)


# --- vLLM, 0.16 and later ----------------------------------------------------------------------------------------------------------
_VLLM = ("model_name", "engine")
PREFIX_QUERIES: Final = _counter("vllm:prefix_cache_queries_total", *_VLLM)
PREFIX_HITS: Final = _counter("vllm:prefix_cache_hits_total", *_VLLM)
EXTERNAL_QUERIES: Final = _counter("vllm:external_prefix_cache_queries_total", *_VLLM)
EXTERNAL_HITS: Final = _counter("vllm:external_prefix_cache_hits_total", *_VLLM)
PROMPT_TOKENS_BY_SOURCE: Final = _counter("vllm:prompt_tokens_by_source_total", *_VLLM, "source")
FIRST_TOKEN: Final = _histogram("vllm:time_to_first_token_seconds", *_VLLM)
PREFILL_TIME: Final = _histogram("vllm:request_prefill_time_seconds", *_VLLM)
RUNNING: Final = _gauge("vllm:num_requests_running", *_VLLM)
WAITING: Final = _gauge("vllm:num_requests_waiting", *_VLLM)
KV_USAGE: Final = _gauge("vllm:kv_cache_usage_perc", *_VLLM)
PREEMPTIONS: Final = _counter("vllm:num_preemptions_total", *_VLLM)
VLLM: Final = (
    PREFIX_QUERIES,
    PREFIX_HITS,
    EXTERNAL_QUERIES,
    EXTERNAL_HITS,
    PROMPT_TOKENS_BY_SOURCE,
    FIRST_TOKEN,
    PREFILL_TIME,
    RUNNING,
    WAITING,
    KV_USAGE,
    PREEMPTIONS,
)

# --- LMCache, multi-process server, 0.5.5 and later --------------------------------------------------------------------------------
_LOOKUP = ("model_name", "cache_salt")
LOOKUP_REQUESTED: Final = _counter("lmcache_mp_lookup_requested_tokens_total", *_LOOKUP, lazy=True)
LOOKUP_HIT: Final = _counter("lmcache_mp_lookup_hit_tokens_total", *_LOOKUP, lazy=True)
LOOKUP_HIT_L1: Final = _counter("lmcache_mp_lookup_hit_l1_tokens_total", *_LOOKUP, lazy=True)
LOOKUP_HIT_L2: Final = _counter("lmcache_mp_lookup_hit_l2_tokens_total", *_LOOKUP, lazy=True)
LOOKUP_HIT_L1_KEYS: Final = _counter("lmcache_mp_lookup_hit_l1_keys_total", *_LOOKUP, lazy=True)
LOOKUP_HIT_L2_KEYS: Final = _counter("lmcache_mp_lookup_hit_l2_keys_total", *_LOOKUP, lazy=True)
L1_WRITE: Final = _counter("lmcache_mp_l1_write_chunks_total", "l1_tag", lazy=True)
L1_EVICTED: Final = _counter("lmcache_mp_l1_evicted_chunks_total", "l1_tag", lazy=True)
L1_ALLOCATION_FAILURES: Final = _counter(
    "lmcache_mp_l1_allocation_failure_chunks_total", "during", lazy=True
)
L1_BYTES: Final = _gauge("lmcache_mp_l1_memory_usage_bytes", "l1_tag", "backend")
L1_RATIO: Final = _gauge("lmcache_mp_l1_usage_ratio", "l1_tag", "backend")
L2_STORED: Final = _counter("lmcache_mp_l2_store_completed_objects_chunks_total", lazy=True)
L2_LOADED: Final = _counter("lmcache_mp_l2_prefetch_load_completed_chunks_total", lazy=True)
L2_EVICTED: Final = _counter("lmcache_mp_l2_evicted_objects_chunks_total", lazy=True)
L2_BYTES: Final = _gauge("lmcache_mp_l2_usage_bytes", "l2_name")
EVENT_QUEUE: Final = _gauge("lmcache_mp_event_bus_queue_depth")
EVENTS_DROPPED: Final = _counter("lmcache_mp_event_bus_dropped_events_total")
LMCACHE_MP: Final = (
    LOOKUP_REQUESTED,
    LOOKUP_HIT,
    LOOKUP_HIT_L1,
    LOOKUP_HIT_L2,
    LOOKUP_HIT_L1_KEYS,
    LOOKUP_HIT_L2_KEYS,
    L1_WRITE,
    L1_EVICTED,
    L1_ALLOCATION_FAILURES,
    L1_BYTES,
    L1_RATIO,
    L2_STORED,
    L2_LOADED,
    L2_EVICTED,
    L2_BYTES,
    EVENT_QUEUE,
    EVENTS_DROPPED,
)

# --- LMCache, multi-process server, before 0.4.7: only to say that it is too old ---------------------------------------------------
OLD_L1_WRITE: Final = _counter("lmcache_mp_l1_write_keys_total", lazy=True)
OLDER_L1_WRITE: Final = _counter("lmcache_mp:l1_write_keys_total", lazy=True)
LMCACHE_OLD: Final = (OLD_L1_WRITE, OLDER_L1_WRITE)

# --- LMCache inside vLLM's process, 0.3.9 and later; on vLLM's own page ------------------------------------------------------------
_IN_PROCESS = ("model_name", "worker_id")
IN_LOOKUP_TOKENS: Final = _counter("lmcache:num_lookup_tokens_total", *_IN_PROCESS)
IN_LOOKUP_HITS: Final = _counter("lmcache:num_lookup_hits_total", *_IN_PROCESS)
IN_STORED_TOKENS: Final = _counter("lmcache:num_stored_tokens_total", *_IN_PROCESS)
IN_EVICTED_KEYS: Final = _counter("lmcache:local_cpu_evict_keys_count_total", *_IN_PROCESS)
IN_LOCAL_BYTES: Final = _gauge("lmcache:local_cache_usage", *_IN_PROCESS)
IN_REMOTE_BYTES: Final = _gauge("lmcache:remote_cache_usage", *_IN_PROCESS)
LMCACHE_IN_PROCESS: Final = (
    IN_LOOKUP_TOKENS,
    IN_LOOKUP_HITS,
    IN_STORED_TOKENS,
    IN_EVICTED_KEYS,
    IN_LOCAL_BYTES,
    IN_REMOTE_BYTES,
)

# --- node_exporter -----------------------------------------------------------------------------------------------------------------
MEM_TOTAL: Final = _gauge("node_memory_MemTotal_bytes")
MEM_AVAILABLE: Final = _gauge("node_memory_MemAvailable_bytes")
SWAP_TOTAL: Final = _gauge("node_memory_SwapTotal_bytes")
SWAP_FREE: Final = _gauge("node_memory_SwapFree_bytes")
MEM_STALLED: Final = _counter("node_pressure_memory_stalled_seconds_total")
MEM_PRESSURE: Final = _counter("node_pressure_memory_waiting_seconds_total")
IO_PRESSURE: Final = _counter("node_pressure_io_waiting_seconds_total")
CPU_PRESSURE: Final = _counter("node_pressure_cpu_waiting_seconds_total")
DISK_READ: Final = _counter("node_disk_read_bytes_total", "device")
DISK_WRITTEN: Final = _counter("node_disk_written_bytes_total", "device")
DISK_BUSY: Final = _counter("node_disk_io_time_seconds_total", "device")
NET_RECEIVED: Final = _counter("node_network_receive_bytes_total", "device")
NET_SENT: Final = _counter("node_network_transmit_bytes_total", "device")
FS_FREE: Final = _gauge("node_filesystem_avail_bytes", "mountpoint", "fstype")
NODE: Final = (
    MEM_TOTAL,
    MEM_AVAILABLE,
    SWAP_TOTAL,
    SWAP_FREE,
    MEM_STALLED,
    MEM_PRESSURE,
    IO_PRESSURE,
    CPU_PRESSURE,
    DISK_READ,
    DISK_WRITTEN,
    DISK_BUSY,
    NET_RECEIVED,
    NET_SENT,
    FS_FREE,
)

# --- dcgm-exporter, its default counters; on a GB10 the framebuffer ones (DCGM_FI_DEV_FB_*) are not supported and so not here ------
_GPU = ("gpu", "modelName")
GPU_UTIL: Final = _gauge("DCGM_FI_DEV_GPU_UTIL", *_GPU)
GPU_TEMP: Final = _gauge("DCGM_FI_DEV_GPU_TEMP", *_GPU)
GPU_POWER: Final = _gauge("DCGM_FI_DEV_POWER_USAGE", *_GPU)
GPU_CLOCK: Final = _gauge("DCGM_FI_DEV_SM_CLOCK", *_GPU)
DCGM: Final = (GPU_UTIL, GPU_TEMP, GPU_POWER, GPU_CLOCK)

# --- the Collector's span_metrics connector, as collector/app.yaml configures it ---------------------------------------------------
SPAN_DIMENSIONS: Final = (
    "kvpolicy.decision",
    "kvpolicy.hint.outcome",
    "kvpolicy.reasons",
    "gen_ai.request.model",
    "gen_ai.agent.name",
)
_SPAN = ("span_name", "status_code", *(name.replace(".", "_") for name in SPAN_DIMENSIONS))
SPAN_CALLS: Final = _counter("traces_span_metrics_calls_total", *_SPAN)
SPAN_DURATION: Final = _histogram("traces_span_metrics_duration_seconds", *_SPAN)
SPAN_METRICS: Final = (SPAN_CALLS, SPAN_DURATION)

# --- what Prometheus, or the Collector's receiver, says of a scrape ----------------------------------------------------------------
UP: Final = _gauge("up")

SERVERS: Final = (
    *VLLM,
    *LMCACHE_MP,
    *LMCACHE_OLD,
    *LMCACHE_IN_PROCESS,
    *NODE,
    *DCGM,
    *SPAN_METRICS,
    UP,
)

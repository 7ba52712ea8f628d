"""The metrics of other programs that this package reads: the only place where they are spelled.

Covers vLLM, LMCache, the host's exporters, epistemic-graph and the Collector's span metrics. This
package's own metrics are in ``telemetry/names.py``.

A name is written as Prometheus stores it. Every one is on a real metrics page, or in the source or
the documentation of the program that writes it. Counters end in ``_total``: Prometheus' OTLP
receiver appends it if it is missing, so any other name would depend on how the sample came in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .telemetry import names

Kind = Literal["counter", "gauge", "histogram"]

VLLM_PREFIX: Final = "vllm:"
"""Starts every name on vLLM's own page."""
LMCACHE_MP_PREFIX: Final = "lmcache_mp"
"""Starts every name of LMCache's multi-process server; a ``_`` follows, or a ``:`` before 0.4.4."""
LMCACHE_IN_PROCESS_PREFIX: Final = "lmcache:"
"""Starts every name of LMCache inside vLLM's process."""
VLLM_OFFLOAD_PREFIX: Final = "vllm:kv_offload_"
"""Starts the names of vLLM's own ``OffloadingConnector``."""
SGLANG_PREFIX: Final = "sglang:"
TENSORRT_LLM_PREFIX: Final = "trtllm_"
DYNAMO_PREFIX: Final = "dynamo_frontend_"


@dataclass(frozen=True)
class Series:
    """One metric of another program.

    Attributes:
        name: as Prometheus stores it. For a histogram, without ``_bucket``, ``_sum`` or ``_count``.
        kind: counter, gauge or histogram.
        unit: what a value of 1 stands for; empty for an info metric.
        meaning: what is counted or measured.
        labels: labels that queries may use, besides ``job`` and ``instance``.
        since: first release known to have the metric; empty if not known.
        lazy: True if the series does not exist before its first event. A missing series then means
            zero, as long as its server is up.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    since: str = ""
    lazy: bool = False

    @property
    def stem(self) -> str:
        """The name without its program's prefix and without ``_total``."""
        return (
            self.name.removeprefix(VLLM_PREFIX)
            .removeprefix(LMCACHE_IN_PROCESS_PREFIX)
            .removeprefix(f"{LMCACHE_MP_PREFIX}_")
            .removesuffix("_total")
        )


def _counter(
    name: str, unit: str, meaning: str, *labels: str, since: str = "", lazy: bool = False
) -> Series:
    return Series(name, "counter", unit, meaning, labels, since, lazy)


def _gauge(name: str, unit: str, meaning: str, *labels: str, since: str = "") -> Series:
    return Series(name, "gauge", unit, meaning, labels, since)


def _histogram(name: str, unit: str, meaning: str, *labels: str, since: str = "") -> Series:
    return Series(name, "histogram", unit, meaning, labels, since)


# --- vLLM, its own page ---------------------------------------------------------------------------
_VLLM = ("model_name", "engine")
PREFIX_QUERIES: Final = _counter(
    "vllm:prefix_cache_queries_total", "tokens", "Tokens looked up in vLLM's prefix cache.", *_VLLM
)
PREFIX_HITS: Final = _counter(
    "vllm:prefix_cache_hits_total", "tokens", "Tokens found in vLLM's prefix cache.", *_VLLM
)
EXTERNAL_QUERIES: Final = _counter(
    "vllm:external_prefix_cache_queries_total",
    "tokens",
    "Tokens vLLM asked its KV connector for: those its own prefix cache did not have.",
    *_VLLM,
    since="vLLM 0.11.2",
)
EXTERNAL_HITS: Final = _counter(
    "vllm:external_prefix_cache_hits_total",
    "tokens",
    "Tokens the KV connector supplied.",
    *_VLLM,
    since="vLLM 0.11.2",
)
PROMPT_TOKENS: Final = _counter(
    "vllm:prompt_tokens_total", "tokens", "Prompt tokens, cached or computed.", *_VLLM
)
PROMPT_TOKENS_CACHED: Final = _counter(
    "vllm:prompt_tokens_cached_total", "tokens", "Prompt tokens from any cache.", *_VLLM
)
PROMPT_TOKENS_BY_SOURCE: Final = _counter(
    "vllm:prompt_tokens_by_source_total",
    "tokens",
    "Prompt tokens by source: local_compute, local_cache_hit or external_kv_transfer.",
    *_VLLM,
    "source",
    since="vLLM 0.16",
)
PROMPT_TOKENS_CACHED_BY_SOURCE: Final = _counter(
    "vllm:prompt_tokens_cached_by_source_total",
    "tokens",
    "Cached prompt tokens by tier; LMCache's are external_unspecified.",
    *_VLLM,
    "source",
    since="vLLM 0.32",
)
GENERATION_TOKENS: Final = _counter(
    "vllm:generation_tokens_total", "tokens", "Generated tokens.", *_VLLM
)
REQUESTS_FINISHED: Final = _counter(
    "vllm:request_success_total",
    "requests",
    "Requests that ended, by how they ended.",
    *_VLLM,
    "finished_reason",
)
PREEMPTIONS: Final = _counter(
    "vllm:num_preemptions_total",
    "preemptions",
    "Requests put back into the queue because the KV cache was full.",
    *_VLLM,
)
RUNNING: Final = _gauge("vllm:num_requests_running", "requests", "Requests being computed.", *_VLLM)
WAITING: Final = _gauge("vllm:num_requests_waiting", "requests", "Requests in the queue.", *_VLLM)
KV_USAGE: Final = _gauge(
    "vllm:kv_cache_usage_perc",
    "ratio",
    "Share of the KV cache that running requests use, 0 to 1 despite the name.",
    *_VLLM,
)
FIRST_TOKEN: Final = _histogram(
    "vllm:time_to_first_token_seconds", "s", "Time from arrival to the first token.", *_VLLM
)
PREFILL_TIME: Final = _histogram(
    "vllm:request_prefill_time_seconds", "s", "Time a request spent in prefill.", *_VLLM
)
REQUEST_TIME: Final = _histogram(
    "vllm:e2e_request_latency_seconds", "s", "Time from arrival to the last token.", *_VLLM
)
REQUEST_PROMPT_TOKENS: Final = _histogram(
    "vllm:request_prompt_tokens", "tokens", "Prompt tokens of a request.", *_VLLM
)
REQUEST_COMPUTED_TOKENS: Final = _histogram(
    "vllm:request_prefill_kv_computed_tokens",
    "tokens",
    "Prompt tokens of a request that no cache had.",
    *_VLLM,
)
REQUEST_GENERATION_TOKENS: Final = _histogram(
    "vllm:request_generation_tokens", "tokens", "Generated tokens of a request.", *_VLLM
)
CACHE_CONFIG: Final = _gauge(
    "vllm:cache_config_info",
    "",
    "Always 1; its labels are vLLM's cache settings.",
    "enable_prefix_caching",
)
LOOKUP_TIME: Final = _histogram(
    "vllm:lmcache_mp_lookup_duration_seconds",
    "s",
    "Time of an LMCache lookup. Only LMCache's own connector has it, not the copy inside vLLM.",
    *_VLLM,
    since="LMCache 0.5.6",
)
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
"""The series of vLLM that the dashboards query."""

# --- LMCache, multi-process server ----------------------------------------------------------------
_LOOKUP = ("model_name", "cache_salt")
LOOKUPS: Final = _counter(
    "lmcache_mp_lookups_requests_total",
    "requests",
    "Completed lookups.",
    *_LOOKUP,
    since="LMCache 0.5.5",
    lazy=True,
)
LOOKUPS_EARLY_EXIT: Final = _counter(
    "lmcache_mp_lookup_early_exit_requests_total",
    "requests",
    "Lookups that ended before the cache was asked, by reason.",
    *_LOOKUP,
    "reason",
    since="LMCache 0.5.5",
    lazy=True,
)
LOOKUP_REQUESTED: Final = _counter(
    "lmcache_mp_lookup_requested_tokens_total",
    "tokens",
    "Tokens looked up, whole chunks only. Includes tokens that vLLM's own cache has.",
    *_LOOKUP,
    since="LMCache 0.4.7",
    lazy=True,
)
LOOKUP_HIT: Final = _counter(
    "lmcache_mp_lookup_hit_tokens_total",
    "tokens",
    "Looked-up tokens of the contiguous prefix found in L1 and L2.",
    *_LOOKUP,
    since="LMCache 0.4.7",
    lazy=True,
)
LOOKUP_HIT_L1: Final = _counter(
    "lmcache_mp_lookup_hit_l1_tokens_total",
    "tokens",
    "Hit tokens that L1 served.",
    *_LOOKUP,
    since="LMCache 0.5.5",
    lazy=True,
)
LOOKUP_HIT_L2: Final = _counter(
    "lmcache_mp_lookup_hit_l2_tokens_total",
    "tokens",
    "Hit tokens that L2 added; L1 and L2 add up to all hit tokens.",
    *_LOOKUP,
    since="LMCache 0.5.5",
    lazy=True,
)
LOOKUP_HIT_L1_KEYS: Final = _counter(
    "lmcache_mp_lookup_hit_l1_keys_total",
    "objects",
    "Hit objects that L1 had; an object is a chunk of one KV group on one rank.",
    *_LOOKUP,
    since="LMCache 0.5.6",
    lazy=True,
)
LOOKUP_HIT_L2_KEYS: Final = _counter(
    "lmcache_mp_lookup_hit_l2_keys_total",
    "objects",
    "Hit objects that were loaded from L2.",
    *_LOOKUP,
    since="LMCache 0.5.6",
    lazy=True,
)
LOOKUP_PROMPT: Final = _counter(
    "lmcache_mp_lookup_prompt_tokens_total",
    "tokens",
    "Prompt tokens of the requests that were looked up, partial chunks included.",
    since="LMCache 0.5.7",
    lazy=True,
)
LOOKUP_REQUEST_HIT: Final = _counter(
    "lmcache_mp_lookup_request_hit_tokens_total",
    "tokens",
    "Prompt tokens found in vLLM's cache or in LMCache.",
    since="LMCache 0.5.7",
    lazy=True,
)
L1_WRITE: Final = _counter(
    "lmcache_mp_l1_write_chunks_total",
    "chunks",
    "Chunks written to L1, those loaded from L2 included.",
    "l1_tag",
    since="LMCache 0.4.7",
    lazy=True,
)
L1_READ: Final = _counter(
    "lmcache_mp_l1_read_chunks_total",
    "chunks",
    "Chunks read from L1.",
    "l1_tag",
    since="LMCache 0.4.7",
    lazy=True,
)
L1_EVICTED: Final = _counter(
    "lmcache_mp_l1_evicted_chunks_total",
    "chunks",
    "Chunks evicted from L1.",
    "l1_tag",
    since="LMCache 0.4.7",
    lazy=True,
)
L1_EVICTIONS: Final = _counter(
    "lmcache_mp_l1_eviction_loop_triggered_total",
    "runs",
    "Runs of L1's eviction loop that had to evict.",
    lazy=True,
)
L1_ALLOCATION_FAILURES: Final = _counter(
    "lmcache_mp_l1_allocation_failure_chunks_total",
    "chunks",
    "Chunks lost because L1 had no room.",
    "during",
    lazy=True,
)
L1_BYTES: Final = _gauge(
    "lmcache_mp_l1_memory_usage_bytes",
    "bytes",
    "Bytes held in L1.",
    "l1_tag",
    "backend",
    since="LMCache 0.4.7",
)
L1_RATIO: Final = _gauge(
    "lmcache_mp_l1_usage_ratio", "ratio", "Share of L1 in use, 0 to 1.", "l1_tag", "backend"
)
L1_STAGING_BYTES: Final = _gauge(
    "lmcache_mp_l1_staging_bytes",
    "bytes",
    "Bytes reserved for chunks that are still being written to L1.",
    "l1_tag",
    "backend",
    since="LMCache 0.5.6",
)
L2_LOOKUPS: Final = _counter(
    "lmcache_mp_l2_prefetch_lookup_requests_total", "requests", "Lookups in L2.", lazy=True
)
L2_LOOKUP_CHUNKS: Final = _counter(
    "lmcache_mp_l2_prefetch_lookup_objects_chunks_total",
    "chunks",
    "Chunks looked up in L2.",
    lazy=True,
)
L2_STORES_STARTED: Final = _counter(
    "lmcache_mp_l2_store_submitted_requests_total", "requests", "Stores to L2 started.", lazy=True
)
L2_STORE_CHUNKS: Final = _counter(
    "lmcache_mp_l2_store_submitted_objects_chunks_total",
    "chunks",
    "Chunks queued for L2.",
    lazy=True,
)
L2_STORES: Final = _counter(
    "lmcache_mp_l2_store_completed_requests_total",
    "requests",
    "Stores to L2 completed.",
    "l2_name",
    lazy=True,
)
L2_STORED: Final = _counter(
    "lmcache_mp_l2_store_completed_objects_chunks_total",
    "chunks",
    "Chunks written to L2.",
    lazy=True,
)
L2_LOADS_STARTED: Final = _counter(
    "lmcache_mp_l2_prefetch_load_submitted_requests_total",
    "requests",
    "Loads from L2 started.",
    lazy=True,
)
L2_LOAD_CHUNKS: Final = _counter(
    "lmcache_mp_l2_prefetch_load_submitted_objects_chunks_total",
    "chunks",
    "Chunks to be loaded from L2.",
    lazy=True,
)
L2_LOADS: Final = _counter(
    "lmcache_mp_l2_load_completed_requests_total",
    "requests",
    "Loads from L2 completed.",
    "l2_name",
    lazy=True,
)
L2_LOADED: Final = _counter(
    "lmcache_mp_l2_prefetch_load_completed_chunks_total",
    "chunks",
    "Chunks loaded from L2 into L1. L1 counts them as written, too.",
    lazy=True,
)
L2_EVICTED: Final = _counter(
    "lmcache_mp_l2_evicted_objects_chunks_total", "chunks", "Chunks evicted from L2.", lazy=True
)
L2_BYTES: Final = _gauge(
    "lmcache_mp_l2_usage_bytes", "bytes", "Bytes held in each L2 backend.", "l2_name"
)
L2_ADAPTERS: Final = _gauge(
    "lmcache_mp_l2_store_adapters",
    "backends",
    "L2 backends that take stores, by state.",
    "state",
    since="LMCache 0.5.3",
)
STORES_STARTED: Final = _counter(
    "lmcache_mp_num_submitted_stores_total",
    "transfers",
    "Transfers from the GPU to LMCache started.",
    "device",
    since="LMCache 0.5.5",
    lazy=True,
)
EVENT_QUEUE: Final = _gauge(
    "lmcache_mp_event_bus_queue_depth", "events", "Events that wait to be counted."
)
EVENT_LAG: Final = _gauge(
    "lmcache_mp_event_bus_drain_lag_seconds", "s", "Age of the oldest event in the queue."
)
EVENTS_DROPPED: Final = _counter(
    "lmcache_mp_event_bus_dropped_events_total",
    "events",
    "Events lost because the queue was full. If there are any, all other counters are too low.",
)
KV_EVENTS_KEPT: Final = _gauge(
    "lmcache_mp_kv_events_log_depth",
    "events",
    "Cache events kept for subscribers.",
    since="LMCache 0.5.6",
)
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
"""The series of LMCache's multi-process server, 0.5.5 and later, that the dashboards query."""

# --- LMCache, multi-process server before 0.4.7: queried only to say that it is too old -----------
OLD_L1_WRITE: Final = _counter(
    "lmcache_mp_l1_write_keys_total",
    "chunks",
    "Chunks written to L1, as LMCache 0.4.4 to 0.4.6 named them.",
    since="LMCache 0.4.4",
    lazy=True,
)
OLDER_L1_WRITE: Final = _counter(
    "lmcache_mp:l1_write_keys_total",
    "chunks",
    "Chunks written to L1, as LMCache before 0.4.4 named them.",
    since="LMCache 0.3.15",
    lazy=True,
)
LMCACHE_OLD: Final = (OLD_L1_WRITE, OLDER_L1_WRITE)

# --- LMCache inside vLLM's process, 0.3.9 and later: on vLLM's page -------------------------------
_IN_PROCESS = ("model_name", "worker_id")
IN_LOOKUPS: Final = _counter(
    "lmcache:num_lookup_requests_total", "requests", "Lookups.", *_IN_PROCESS
)
IN_LOOKUP_TOKENS: Final = _counter(
    "lmcache:num_lookup_tokens_total", "tokens", "Tokens looked up.", *_IN_PROCESS
)
IN_LOOKUP_HITS: Final = _counter(
    "lmcache:num_lookup_hits_total", "tokens", "Looked-up tokens that were found.", *_IN_PROCESS
)
IN_LOOKUP_HIT_RATE: Final = _gauge(
    "lmcache:lookup_hit_rate", "ratio", "Share of looked-up tokens found, 0 to 1.", *_IN_PROCESS
)
IN_STORED_TOKENS: Final = _counter(
    "lmcache:num_stored_tokens_total", "tokens", "Tokens stored.", *_IN_PROCESS
)
IN_EVICTED_KEYS: Final = _counter(
    "lmcache:local_cpu_evict_keys_count_total",
    "chunks",
    "Chunks evicted from the memory tier.",
    *_IN_PROCESS,
)
IN_LOCAL_BYTES: Final = _gauge(
    "lmcache:local_cache_usage", "bytes", "Bytes held in the memory tier.", *_IN_PROCESS
)
IN_REMOTE_BYTES: Final = _gauge(
    "lmcache:remote_cache_usage", "bytes", "Bytes held in the remote tier.", *_IN_PROCESS
)
LMCACHE_IN_PROCESS: Final = (
    IN_LOOKUP_TOKENS,
    IN_LOOKUP_HITS,
    IN_STORED_TOKENS,
    IN_EVICTED_KEYS,
    IN_LOCAL_BYTES,
    IN_REMOTE_BYTES,
)
"""The series of LMCache inside vLLM's process that the dashboards query."""

# --- node_exporter --------------------------------------------------------------------------------
MEM_TOTAL: Final = _gauge("node_memory_MemTotal_bytes", "bytes", "Memory of the host.")
MEM_AVAILABLE: Final = _gauge(
    "node_memory_MemAvailable_bytes", "bytes", "Memory a new process could get without swapping."
)
SWAP_TOTAL: Final = _gauge("node_memory_SwapTotal_bytes", "bytes", "Swap space.")
SWAP_FREE: Final = _gauge("node_memory_SwapFree_bytes", "bytes", "Unused swap space.")
MEM_STALLED: Final = _counter(
    "node_pressure_memory_stalled_seconds_total", "s", "Time in which every task waited for memory."
)
MEM_PRESSURE: Final = _counter(
    "node_pressure_memory_waiting_seconds_total", "s", "Time in which some task waited for memory."
)
IO_PRESSURE: Final = _counter(
    "node_pressure_io_waiting_seconds_total", "s", "Time in which some task waited for I/O."
)
CPU_PRESSURE: Final = _counter(
    "node_pressure_cpu_waiting_seconds_total", "s", "Time in which some task waited for a CPU."
)
DISK_READ: Final = _counter("node_disk_read_bytes_total", "bytes", "Bytes read.", "device")
DISK_WRITTEN: Final = _counter("node_disk_written_bytes_total", "bytes", "Bytes written.", "device")
DISK_BUSY: Final = _counter(
    "node_disk_io_time_seconds_total", "s", "Time in which the disk was busy.", "device"
)
NET_RECEIVED: Final = _counter(
    "node_network_receive_bytes_total", "bytes", "Bytes received.", "device"
)
NET_SENT: Final = _counter("node_network_transmit_bytes_total", "bytes", "Bytes sent.", "device")
FS_FREE: Final = _gauge(
    "node_filesystem_avail_bytes", "bytes", "Space that users can fill.", "mountpoint", "fstype"
)
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
"""The series of node_exporter that the dashboards query."""

# --- dcgm-exporter, its default counters ----------------------------------------------------------
# A GB10 has no separate frame buffer: the driver answers "not supported" for DCGM_FI_DEV_FB_*.
_GPU = ("gpu", "modelName")
GPU_UTIL: Final = _gauge("DCGM_FI_DEV_GPU_UTIL", "percent", "Share of time the GPU worked.", *_GPU)
GPU_TEMP: Final = _gauge("DCGM_FI_DEV_GPU_TEMP", "celsius", "Temperature of the GPU.", *_GPU)
GPU_POWER: Final = _gauge("DCGM_FI_DEV_POWER_USAGE", "W", "Power draw.", *_GPU)
GPU_CLOCK: Final = _gauge("DCGM_FI_DEV_SM_CLOCK", "MHz", "Clock of the SMs.", *_GPU)
DCGM: Final = (GPU_UTIL, GPU_TEMP, GPU_POWER, GPU_CLOCK)
"""The series of dcgm-exporter that the dashboards query."""

# --- nvidia_gpu_exporter (utkuozdemir), which reads nvidia-smi: for hosts without DCGM ------------
SMI_UTIL: Final = _gauge(
    "nvidia_smi_utilization_gpu_ratio", "ratio", "Share of time the GPU worked, 0 to 1.", "uuid"
)
SMI_TEMP: Final = _gauge("nvidia_smi_temperature_gpu", "celsius", "Temperature of the GPU.", "uuid")
SMI_POWER: Final = _gauge("nvidia_smi_power_draw_watts", "W", "Power draw.", "uuid")
SMI_CLOCK: Final = _gauge(
    "nvidia_smi_clocks_current_sm_clock_hz", "Hz", "Clock of the SMs.", "uuid"
)
NVIDIA_SMI: Final = (SMI_UTIL, SMI_TEMP, SMI_POWER, SMI_CLOCK)
"""The counterparts of :data:`DCGM`. No dashboard queries them yet."""

# --- epistemic-graph, the engine behind LMCache's native_plugin L2; needs --metrics-addr ----------
# It has no series of its KV cache: GET /kv/stats on its KV port tells that, as JSON.
EG_REQUESTS: Final = _counter(
    "epistemic_graph_requests_total", "requests", "Requests dispatched, by operation.", "op"
)
EG_REQUEST_TIME: Final = _histogram(
    "epistemic_graph_request_duration_seconds", "s", "Time to answer a request.", "op"
)
EG_IN_FLIGHT: Final = _gauge(
    "epistemic_graph_in_flight_requests", "requests", "Requests being answered."
)
EG_PERMITS: Final = _gauge(
    "epistemic_graph_inflight_permits_available", "requests", "Further requests it would admit."
)
EG_REJECTED: Final = _counter(
    "epistemic_graph_busy_rejections_total", "requests", "Requests rejected because it was busy."
)
EPISTEMIC_GRAPH: Final = (EG_REQUESTS, EG_REQUEST_TIME, EG_IN_FLIGHT, EG_PERMITS, EG_REJECTED)
"""Series of an epistemic-graph engine. No dashboard queries them yet."""

# --- the Collector's span_metrics connector, as collector/app.yaml configures it ------------------
SPAN_DIMENSIONS: Final = (
    names.DECISION,
    names.HINT_OUTCOME,
    names.REASONS,
    names.REQUEST_MODEL,
    names.AGENT_NAME,
)
"""Span attributes that become labels of the span metrics."""
_SPAN = ("span_name", "status_code", *(name.replace(".", "_") for name in SPAN_DIMENSIONS))
SPAN_CALLS: Final = _counter("traces_span_metrics_calls_total", "spans", "Spans.", *_SPAN)
SPAN_DURATION: Final = _histogram(
    "traces_span_metrics_duration_seconds", "s", "Duration of a span.", *_SPAN
)
SPAN_METRICS: Final = (SPAN_CALLS, SPAN_DURATION)

# --- written by Prometheus, or by the Collector's receiver, for each scrape -----------------------
UP: Final = _gauge("up", "", "1 if the last scrape succeeded, else 0.")

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
"""Every series that dashboards, rules and alerts query."""

EVERY: Final = tuple(value for value in globals().copy().values() if isinstance(value, Series))
"""Every series in this module."""

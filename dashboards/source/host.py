"""Dashboard "GB10 host": the resources of the machine that runs vLLM and LMCache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_kvpolicy import series
from otel_kvpolicy.series import Series

from . import limits
from .common import ALERTS, HOST, UID_HOST
from .layout import dashboard
from .model import JSON, Panel, Query, Row, Threshold
from .panels import stat, text, timeseries
from .queries import SELECTED

NO_NODE: Final = "no node_exporter metrics"
NO_GPU: Final = "no dcgm-exporter metrics"
NO_VLLM: Final = "no vLLM metrics"
_NO_VIRTUAL_NETWORKS: Final = 'device!~"lo|veth.*|docker.*|br-.*"'
_NO_VIRTUAL_DISKS: Final = 'device!~"loop.*|dm-.*|ram.*"'
_NO_VIRTUAL_FILE_SYSTEMS: Final = 'fstype!~"tmpfs|ramfs|squashfs|devtmpfs"'
_BY_DEVICE: Final = ("instance", "device")


def build() -> JSON:
    """Return the dashboard."""
    return dashboard(
        UID_HOST,
        "GB10 host",
        "Unified memory, GPU, vLLM's queue, and the disk and network of L2, on the host of vLLM and"
        " LMCache.",
        [
            Row("Memory", _memory()),
            Row("GPU", _gpu()),
            Row("vLLM", _vllm()),
            Row("L2: disk and network", _l2()),
        ],
        [HOST],
        tempo=False,
        annotations=ALERTS,
    )


def _memory() -> list[Panel]:
    total, available = SELECTED.select(series.MEM_TOTAL), SELECTED.select(series.MEM_AVAILABLE)
    swap = f"{SELECTED.select(series.SWAP_TOTAL)} - {SELECTED.select(series.SWAP_FREE)}"
    return [
        stat(
            "Available memory",
            "MemAvailable: what the CPU and the GPU can still use without swapping. A GB10 that"
            " runs out of memory tends to freeze.",
            "bytes",
            [Query(f"min by (instance) ({available})", "{{instance}}")],
            NO_NODE,
            base="red",
            thresholds=[Threshold(limits.MEMORY_LOW_BYTES, "green")],
            width=4,
        ),
        stat(
            "Failing scrapes",
            "Scrapes of this host that fail now. A target that was removed is not counted; its"
            " panels have no data.",
            "short",
            [Query(f"sum by (job) ({SELECTED.select(series.UP)} == bool 0)", "{{job}}")],
            "no scrapes of this host",
            base="green",
            thresholds=[Threshold(limits.ANY, "red")],
            width=14,
        ),
        text(
            "No separate GPU memory",
            "The CPU and the GPU share one memory, so there is no GPU memory to show (NVML does not"
            " support the query). vLLM, LMCache's L1 and all other processes use the same pool.",
            width=6,
            height=4,
        ),
        timeseries(
            "Unified memory",
            "In use is MemTotal minus MemAvailable: the weights, vLLM's KV pool, LMCache's L1 and"
            " all processes together. Page cache that the kernel can drop counts as available.",
            "bytes",
            [
                Query(f"sum({total} - {available})", "in use"),
                Query(f"sum({available})", "available"),
                Query(f"sum({SELECTED.select(series.L1_BYTES)})", "in use by LMCache L1"),
                Query(f"sum({swap})", "swap in use"),
            ],
            NO_NODE,
            colors={
                "in use": "blue",
                "available": "green",
                "in use by LMCache L1": "purple",
                "swap in use": "red",
            },
            thresholds=[Threshold(limits.MEMORY_LOW_BYTES, "red")],
        ),
        timeseries(
            "Pressure",
            "Share of time in which at least one task waited for memory, disk or CPU, and in which"
            " all tasks waited for memory (PSI).",
            "percentunit",
            [
                _per_instance(series.MEM_PRESSURE, "memory"),
                _per_instance(series.MEM_STALLED, "memory, all tasks"),
                _per_instance(series.IO_PRESSURE, "disk"),
                _per_instance(series.CPU_PRESSURE, "CPU"),
            ],
            "no node_exporter metrics, or a kernel without PSI",
            high=1,
            thresholds=[Threshold(limits.PRESSURE_HIGH, "orange")],
        ),
    ]


def _per_instance(counter: Series, legend: str) -> Query:
    return Query(SELECTED.rate(counter, by=("instance",)), f"{{{{instance}}}} {legend}")


def _gpu() -> list[Panel]:
    return [
        _gpu_gauge(
            "GPU utilization",
            "Share of time in which a kernel ran. It does not show how much of the GPU was busy.",
            "percent",
            series.GPU_UTIL,
            high=100,
        ),
        _gpu_gauge("GPU power", "Power that the GPU draws.", "watt", series.GPU_POWER),
        _gpu_gauge(
            "GPU temperature",
            "Temperature of the GPU.",
            "celsius",
            series.GPU_TEMP,
            thresholds=[Threshold(limits.GPU_HOT_CELSIUS, "red")],
        ),
        _gpu_gauge(
            "GPU clock",
            "SM clock. It falls when power or heat limits it.",
            "hertz",
            series.GPU_CLOCK,
            factor=" * 1e6",
        ),
    ]


def _gpu_gauge(
    title: str,
    meaning: str,
    unit: str,
    gauge: Series,
    *,
    factor: str = "",
    high: float | None = None,
    thresholds: Sequence[Threshold] = (),
) -> Panel:
    expr = f"max by (instance, gpu) ({SELECTED.select(gauge)}){factor}"
    return timeseries(
        title,
        meaning,
        unit,
        [Query(expr, "{{instance}} GPU {{gpu}}")],
        NO_GPU,
        width=6,
        high=high,
        thresholds=thresholds,
    )


def _vllm() -> list[Panel]:
    running, waiting = SELECTED.select(series.RUNNING), SELECTED.select(series.WAITING)
    return [
        timeseries(
            "KV pool in use",
            "Share of vLLM's KV blocks that running requests hold. Near 1, vLLM preempts requests.",
            "percentunit",
            [Query(f"max by (instance) ({SELECTED.select(series.KV_USAGE)})", "{{instance}}")],
            NO_VLLM,
            width=8,
            high=1,
            thresholds=[Threshold(limits.KV_FULL_RATIO, "red")],
        ),
        timeseries(
            "Requests",
            "Requests that run, and requests that wait.",
            "short",
            [
                Query(f"sum by (instance) ({running})", "{{instance}} running"),
                Query(f"sum by (instance) ({waiting})", "{{instance}} waiting"),
            ],
            NO_VLLM,
            width=8,
            thresholds=[Threshold(limits.QUEUE_LONG, "orange")],
        ),
        timeseries(
            "Preemptions",
            "Requests per second that vLLM removed from the KV pool, to compute them again later.",
            "ops",
            [Query(SELECTED.rate(series.PREEMPTIONS, by=("instance",)), "{{instance}}")],
            NO_VLLM,
            width=8,
        ),
    ]


def _l2() -> list[Panel]:
    free = SELECTED.select(series.FS_FREE, _NO_VIRTUAL_FILE_SYSTEMS)
    return [
        timeseries(
            "Disk",
            "Bytes read and written per second, by device. If L2's backend is a file system on this"
            " host, its traffic is included.",
            "Bps",
            [
                _per_device(series.DISK_READ, _NO_VIRTUAL_DISKS, " read"),
                _per_device(series.DISK_WRITTEN, _NO_VIRTUAL_DISKS, " written"),
            ],
            NO_NODE,
        ),
        timeseries(
            "Disk busy",
            "Share of time in which the device was busy.",
            "percentunit",
            [_per_device(series.DISK_BUSY, _NO_VIRTUAL_DISKS, "")],
            NO_NODE,
            high=1,
        ),
        timeseries(
            "Network",
            "Bytes received and sent per second, by interface. If L2's backend is remote, its"
            " traffic is included.",
            "Bps",
            [
                _per_device(series.NET_RECEIVED, _NO_VIRTUAL_NETWORKS, " received"),
                _per_device(series.NET_SENT, _NO_VIRTUAL_NETWORKS, " sent"),
            ],
            NO_NODE,
        ),
        timeseries(
            "Free disk space",
            "Bytes free on each file system.",
            "bytes",
            [Query(f"min by (instance, mountpoint) ({free})", "{{instance}} {{mountpoint}}")],
            NO_NODE,
        ),
    ]


def _per_device(counter: Series, matcher: str, suffix: str) -> Query:
    expr = SELECTED.rate(counter, matcher, by=_BY_DEVICE)
    return Query(expr, f"{{{{instance}}}} {{{{device}}}}{suffix}")

"""Dashboard "GB10 host": what the machine under vLLM and LMCache has left."""

from __future__ import annotations

from typing import Final

from otel_kvpolicy import series as servers

from . import limits
from .common import ALERTS, HOST, UID_HOST
from .panels import JSON, Panel, Query, Row, Threshold, dashboard, stat, text, timeseries
from .queries import DASHBOARD as ALL

NO_NODE: Final = "no node_exporter to read"
NO_GPU: Final = "no dcgm-exporter to read"
NO_VLLM: Final = "no vLLM to read"
_VIRTUAL: Final = 'device!~"lo|veth.*|docker.*|br-.*"'
_PARTS: Final = 'device!~"loop.*|dm-.*|ram.*"'
_REAL: Final = 'fstype!~"tmpfs|ramfs|squashfs|devtmpfs"'


def build() -> JSON:
    """The dashboard."""
    return dashboard(
        UID_HOST,
        "GB10 host",
        "Unified memory, GPU, vLLM's queue and the disk and network of L2, on the host of vLLM and LMCache.",
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


def _used() -> str:
    return f"{ALL.select(servers.MEM_TOTAL)} - {ALL.select(servers.MEM_AVAILABLE)}"


def _memory() -> list[Panel]:
    return [
        stat(
            "Memory left",
            "MemAvailable: what CPU and GPU can still take without swapping. On a GB10 running out tends to freeze the host.",
            "bytes",
            [Query(f"min by (instance) ({ALL.select(servers.MEM_AVAILABLE)})", "{{instance}}")],
            NO_NODE,
            base="red",
            thresholds=[Threshold(limits.MEMORY_LOW_BYTES, "green")],
            width=4,
        ),
        stat(
            "Silent targets",
            "Scrapes of this host that fail now. A target that is gone altogether is not counted; its panels have no data.",
            "short",
            [Query(f"sum by (job) ({ALL.select(servers.UP)} == bool 0)", "{{job}}")],
            "no scrape of this host",
            base="green",
            thresholds=[Threshold(1, "red")],
            width=14,
        ),
        text(
            "One memory",
            "CPU and GPU share one pool, so the GPU has no memory of its own to show (NVML does not support the query). "
            "What vLLM, LMCache's L1 and everything else take comes out of the same figure.",
            width=6,
            height=4,
        ),
        timeseries(
            "Unified memory",
            "In use is MemTotal less MemAvailable: weights, vLLM's KV pool, LMCache's L1 and all processes together; page cache "
            "that can be dropped "
            "counts as left. L1 is the part of it that LMCache holds.",
            "bytes",
            [
                Query(f"sum({_used()})", "in use"),
                Query(f"sum({ALL.select(servers.MEM_AVAILABLE)})", "left"),
                Query(f"sum({ALL.select(servers.L1_BYTES)})", "of which LMCache L1"),
                Query(
                    f"sum({ALL.select(servers.SWAP_TOTAL)} - {ALL.select(servers.SWAP_FREE)})",
                    "swap in use",
                ),
            ],
            NO_NODE,
            colours={
                "in use": "blue",
                "left": "green",
                "of which LMCache L1": "purple",
                "swap in use": "red",
            },
            thresholds=[Threshold(limits.MEMORY_LOW_BYTES, "red")],
        ),
        timeseries(
            "Pressure",
            "Share of time in which some task waited for memory, disk or CPU, and in which all waited for memory (PSI).",
            "percentunit",
            [
                Query(ALL.rate(servers.MEM_PRESSURE, by=("instance",)), "{{instance}} memory"),
                Query(
                    ALL.rate(servers.MEM_STALLED, by=("instance",)),
                    "{{instance}} memory, all stalled",
                ),
                Query(ALL.rate(servers.IO_PRESSURE, by=("instance",)), "{{instance}} disk"),
                Query(ALL.rate(servers.CPU_PRESSURE, by=("instance",)), "{{instance}} CPU"),
            ],
            "no node_exporter to read, or a kernel without PSI",
            high=1,
            thresholds=[Threshold(limits.PRESSURE_HIGH, "orange")],
        ),
    ]


def _gpu() -> list[Panel]:
    return [
        timeseries(
            "GPU utilisation",
            "Share of time in which a kernel ran. It does not say how much of the GPU was busy.",
            "percent",
            [
                Query(
                    f"max by (instance, gpu) ({ALL.select(servers.GPU_UTIL)})",
                    "{{instance}} GPU {{gpu}}",
                )
            ],
            NO_GPU,
            width=6,
            high=100,
        ),
        timeseries(
            "GPU power",
            "Power the GPU draws.",
            "watt",
            [
                Query(
                    f"max by (instance, gpu) ({ALL.select(servers.GPU_POWER)})",
                    "{{instance}} GPU {{gpu}}",
                )
            ],
            NO_GPU,
            width=6,
        ),
        timeseries(
            "GPU temperature",
            "GPU temperature.",
            "celsius",
            [
                Query(
                    f"max by (instance, gpu) ({ALL.select(servers.GPU_TEMP)})",
                    "{{instance}} GPU {{gpu}}",
                )
            ],
            NO_GPU,
            width=6,
            thresholds=[Threshold(limits.GPU_HOT_CELSIUS, "red")],
        ),
        timeseries(
            "GPU clock",
            "SM clock; falls when power or heat limits it.",
            "hertz",
            [
                Query(
                    f"max by (instance, gpu) ({ALL.select(servers.GPU_CLOCK)}) * 1e6",
                    "{{instance}} GPU {{gpu}}",
                )
            ],
            NO_GPU,
            width=6,
        ),
    ]


def _vllm() -> list[Panel]:
    return [
        timeseries(
            "KV pool in use",
            "Share of vLLM's KV blocks that running requests hold. Near 1 vLLM preempts.",
            "percentunit",
            [Query(f"max by (instance) ({ALL.select(servers.KV_USAGE)})", "{{instance}}")],
            NO_VLLM,
            width=8,
            high=1,
            thresholds=[Threshold(limits.KV_FULL_RATIO, "red")],
        ),
        timeseries(
            "Requests",
            "Requests being computed, and waiting.",
            "short",
            [
                Query(f"sum by (instance) ({ALL.select(servers.RUNNING)})", "{{instance}} running"),
                Query(f"sum by (instance) ({ALL.select(servers.WAITING)})", "{{instance}} waiting"),
            ],
            NO_VLLM,
            width=8,
            thresholds=[Threshold(limits.QUEUE_LONG, "orange")],
        ),
        timeseries(
            "Preemptions",
            "Requests thrown out of the KV pool per second, to be computed again.",
            "ops",
            [Query(ALL.rate(servers.PREEMPTIONS, by=("instance",)), "{{instance}}")],
            NO_VLLM,
            width=8,
        ),
    ]


def _l2() -> list[Panel]:
    return [
        timeseries(
            "Disk",
            "Bytes per second read and written, by device: L2's traffic where its backend is a file system here.",
            "Bps",
            [
                Query(
                    ALL.rate(servers.DISK_READ, _PARTS, by=("instance", "device")),
                    "{{instance}} {{device}} read",
                ),
                Query(
                    ALL.rate(servers.DISK_WRITTEN, _PARTS, by=("instance", "device")),
                    "{{instance}} {{device}} written",
                ),
            ],
            NO_NODE,
        ),
        timeseries(
            "Disk busy",
            "Share of time in which the device had work.",
            "percentunit",
            [
                Query(
                    ALL.rate(servers.DISK_BUSY, _PARTS, by=("instance", "device")),
                    "{{instance}} {{device}}",
                )
            ],
            NO_NODE,
            high=1,
        ),
        timeseries(
            "Network",
            "Bytes per second received and sent, by interface: L2's traffic where its backend is remote, beside everything else.",
            "Bps",
            [
                Query(
                    ALL.rate(servers.NET_RECEIVED, _VIRTUAL, by=("instance", "device")),
                    "{{instance}} {{device}} received",
                ),
                Query(
                    ALL.rate(servers.NET_SENT, _VIRTUAL, by=("instance", "device")),
                    "{{instance}} {{device}} sent",
                ),
            ],
            NO_NODE,
        ),
        timeseries(
            "Disk space left",
            "Bytes left on each file system.",
            "bytes",
            [
                Query(
                    f"min by (instance, mountpoint) ({ALL.select(servers.FS_FREE, _REAL)})",
                    "{{instance}} {{mountpoint}}",
                )
            ],
            NO_NODE,
        ),
    ]

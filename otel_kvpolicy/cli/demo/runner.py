"""Runs one side of the comparison: a fresh stand-in, the application in a process of its own, and what both then tell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx2

from ... import series
from ...settings import env_name
from ...standin import CHUNK_TOKENS, StandIn
from ...standin.options import Mode
from ..metrics_page import Page
from .receiver import DecidedCall, Receiver
from .workload import Conversation, Step

_MIB: Final = 1 << 20


class DemoError(RuntimeError):
    """The application could not be run to its end."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the stand-in, the same on both sides.

    Attributes:
        mode: how vLLM reaches LMCache.
        l1_mib: LMCache's memory tier.
        l2_mib: LMCache's backend.
        gpu_tokens: tokens in vLLM's own prefix cache.
    """

    mode: Mode
    l1_mib: int
    l2_mib: int
    gpu_tokens: int


@dataclass(frozen=True)
class Caches:
    """What the servers' metrics pages say after the run. Tokens, unless said otherwise; None where the page does not tell.

    Attributes:
        prompt: all prompt tokens.
        from_gpu: of those, from vLLM's own prefix cache.
        from_lmcache: of those, loaded from LMCache beyond what vLLM had.
        requested: tokens LMCache looked up, whole chunks only.
        hit: of the looked up ones, found.
        hit_l1: of those, served by L1.
        hit_l2: of those, added by L2.
        chunks_written: chunks that calls stored.
        l1_evicted: chunks evicted from L1.
        l2_evicted: chunks evicted from L2.
    """

    prompt: int
    from_gpu: int
    from_lmcache: int
    requested: int
    hit: int
    hit_l1: int | None
    hit_l2: int | None
    chunks_written: int
    l1_evicted: int
    l2_evicted: int | None


@dataclass(frozen=True)
class Side:
    """One side of the comparison.

    Attributes:
        calls: decided calls, read back from the application's own telemetry.
        sent: calls the application made.
        caches: what the servers say.
        seconds: how long it took.
    """

    calls: list[DecidedCall]
    sent: int
    caches: Caches
    seconds: float


def run_side(
    conversations: Sequence[Conversation],
    order: Sequence[Step],
    sizes: Sizes,
    *,
    layering: bool,
    advance: Callable[[], None],
) -> Side:
    """Sends the workload to a fresh stand-in.

    Args:
        conversations: the workload.
        order: its calls, in the order to send them.
        sizes: of the stand-in.
        layering: ``KV_CACHE_LAYERING`` of the application; false stores everything.
        advance: called after each call.

    Raises:
        DemoError: ``opentelemetry-instrument`` is missing, or the application failed.
    """
    started = time.monotonic()
    standin = StandIn(
        mode=sizes.mode,
        l1_bytes=sizes.l1_mib * _MIB,
        l2_bytes=sizes.l2_mib * _MIB,
        gpu_tokens=sizes.gpu_tokens,
        keep_requests=0,
    )
    with (
        standin as server,
        Receiver() as receiver,
        tempfile.TemporaryDirectory(prefix="otel-kvpolicy-") as folder,
    ):
        workload = Path(folder, "workload.json")
        write_workload(workload, server.options.models[0], conversations, order)
        environment = _environment(server.base_url, receiver.url, layering)
        sent = _run(_command(workload), environment, Path(folder, "stderr"), advance)
        return Side(receiver.calls, sent, _caches(server), time.monotonic() - started)


def write_workload(
    path: Path,
    model: str,
    conversations: Sequence[Conversation],
    order: Sequence[Step],
    max_tokens: int = 64,
) -> None:
    """Writes what the application is to send: the conversations and the order of their calls. Answers are kept short: nobody reads them."""
    content = {
        "model": model,
        "max_tokens": max_tokens,
        "conversations": [asdict(each) for each in conversations],
        "steps": order,
    }
    path.write_text(json.dumps(content), encoding="utf-8")


def _command(workload: Path) -> list[str]:
    folder = Path(sys.executable).parent
    instrument = shutil.which("opentelemetry-instrument", path=str(folder))
    if instrument is None:
        raise DemoError(
            f"there is no opentelemetry-instrument in {folder}; pip install 'otel-kvpolicy[demo]' into this environment"
        )
    return [instrument, sys.executable, "-m", "otel_kvpolicy.cli.demo.application", str(workload)]


def _environment(base_url: str, otlp_url: str, layering: bool) -> dict[str, str]:
    """The user's own environment, so that ``KV_CACHE_*`` settings are tried out, but no telemetry settings meant for other processes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return kept | {
        env_name("layering"): str(layering).lower(),
        "NO_PROXY": "127.0.0.1",
        "OPENAI_API_KEY": "none-needed",
        "OPENAI_BASE_URL": base_url,
        "OTEL_BSP_MAX_QUEUE_SIZE": "100000",
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp_url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_SERVICE_NAME": "otel-kvpolicy-demo",
        "OTEL_TRACES_EXPORTER": "otlp",
    }


def _run(
    command: list[str], environment: dict[str, str], log: Path, advance: Callable[[], None]
) -> int:
    sent = 0
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr) as child,  # noqa: S603
    ):
        assert child.stdout is not None
        try:
            while child.stdout.read(1):
                sent += 1
                advance()
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or [
            "it said nothing"
        ]
        raise DemoError(
            f"the application ended with {child.returncode} after {sent} calls: {last[0]}"
        )
    return sent


def _caches(server: StandIn) -> Caches:
    vllm = _page(server.url)
    own = {
        "prompt": vllm.count(series.PROMPT_TOKENS),
        "from_gpu": vllm.count(series.PREFIX_HITS),
        "from_lmcache": vllm.count(series.EXTERNAL_HITS),
    }
    if server.lmcache_url is None:
        return Caches(
            **own,
            requested=vllm.count(series.IN_LOOKUP_TOKENS),
            hit=vllm.count(series.IN_LOOKUP_HITS),
            hit_l1=None,
            hit_l2=None,
            chunks_written=vllm.count(series.IN_STORED_TOKENS) // CHUNK_TOKENS,
            l1_evicted=vllm.count(series.IN_EVICTED_KEYS),
            l2_evicted=None,
        )
    lmcache = _page(server.lmcache_url)
    return Caches(
        **own,
        requested=lmcache.count(series.LOOKUP_REQUESTED),
        hit=lmcache.count(series.LOOKUP_HIT),
        hit_l1=lmcache.count(series.LOOKUP_HIT_L1),
        hit_l2=lmcache.count(series.LOOKUP_HIT_L2),
        # LMCache counts chunks that came back from L2 as written to L1.
        chunks_written=lmcache.count(series.L1_WRITE) - lmcache.count(series.L2_LOADED),
        l1_evicted=lmcache.count(series.L1_EVICTED),
        l2_evicted=lmcache.count(series.L2_EVICTED),
    )


def _page(url: str) -> Page:
    return Page.parse(httpx2.get(f"{url}/metrics", trust_env=False).raise_for_status().text)

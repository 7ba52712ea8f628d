"""Run one side of the demo: a fresh stand-in, and the application in its own process."""

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
from ..spans.files import FileSource
from ..spans.model import RecordedSpan
from ..spans.source import Query
from .workload import Conversation, Step

_MIB: Final = 1 << 20
_NEVER_ROTATE: Final = 1 << 40


class DemoError(RuntimeError):
    """The application could not be run to its end. The text is one line for people."""


@dataclass(frozen=True)
class Sizes:
    """How large the stand-in's caches are; the same on both sides.

    Attributes:
        mode: how vLLM reaches LMCache.
        l1_mib: LMCache's memory tier, in MiB.
        l2_mib: LMCache's backend, in MiB; 0 for none.
        gpu_tokens: tokens that vLLM's own prefix cache holds.
    """

    mode: Mode
    l1_mib: int
    l2_mib: int
    gpu_tokens: int


@dataclass(frozen=True)
class Caches:
    """What the servers' metrics pages say after the run. None if the page does not say.

    Attributes:
        prompt: prompt tokens.
        from_gpu: prompt tokens from vLLM's own prefix cache.
        from_lmcache: prompt tokens loaded from LMCache because vLLM did not have them.
        requested: tokens looked up in LMCache, whole chunks only.
        hit: looked-up tokens that were found.
        hit_l1: found tokens that L1 served.
        hit_l2: found tokens that L2 added.
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
        calls: the decisions in the application's decision log, oldest first.
        sent: number of calls the application made.
        caches: what the servers counted.
        seconds: how long the side took.
    """

    calls: list[RecordedSpan]
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
    """Send the workload to a fresh stand-in.

    Args:
        conversations: the workload.
        order: its calls, in the order in which they are sent.
        sizes: sizes of the stand-in's caches.
        layering: ``KV_CACHE_LAYERING`` of the application; False stores everything.
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
    with standin as server, tempfile.TemporaryDirectory(prefix="otel-kvpolicy-") as folder:
        workload, log = Path(folder, "workload.json"), Path(folder, "decisions.jsonl")
        write_workload(workload, server.options.models[0], conversations, order)
        environment = _environment(server.base_url, log, layering)
        sent = _run(_command(workload), environment, Path(folder, "stderr"), advance)
        return Side(_decisions(log), sent, _caches(server), time.monotonic() - started)


def write_workload(
    path: Path,
    model: str,
    conversations: Sequence[Conversation],
    order: Sequence[Step],
    max_tokens: int = 64,
) -> None:
    """Write what the application is to send. Answers are kept short because nothing uses them."""
    content = {
        "model": model,
        "max_tokens": max_tokens,
        "conversations": [asdict(conversation) for conversation in conversations],
        "steps": order,
    }
    path.write_text(json.dumps(content), encoding="utf-8")


def _command(workload: Path) -> list[str]:
    folder = Path(sys.executable).parent
    instrument = shutil.which("opentelemetry-instrument", path=str(folder))
    if instrument is None:
        raise DemoError(
            f"opentelemetry-instrument not found in {folder}: "
            "run pip install 'otel-kvpolicy[demo]' in this environment"
        )
    return [instrument, sys.executable, "-m", "otel_kvpolicy.cli.demo.application", str(workload)]


def _environment(base_url: str, log: Path, layering: bool) -> dict[str, str]:
    """Return the environment of the application.

    It is the user's, so that their ``KV_CACHE_*`` settings take effect, but without ``OTEL_*``
    settings, which are meant for other processes.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return kept | {
        env_name("layering"): str(layering).lower(),
        env_name("decision_log"): str(log),
        env_name("decision_log_bytes"): str(_NEVER_ROTATE),
        "NO_PROXY": "127.0.0.1",
        "OPENAI_API_KEY": "none-needed",
        "OPENAI_BASE_URL": base_url,
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_SERVICE_NAME": "otel-kvpolicy-demo",
        "OTEL_TRACES_EXPORTER": "none",
    }


def _run(
    command: list[str], environment: dict[str, str], log: Path, advance: Callable[[], None]
) -> int:
    sent = 0
    with (
        log.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603 - no shell, and no argument from outside
            command, env=environment, stdout=subprocess.PIPE, stderr=stderr
        ) as child,
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
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise DemoError(
            f"the application failed with exit code {child.returncode} after {sent} calls: "
            f"{lines[-1] if lines else 'no error message'}"
        )
    return sent


def _decisions(log: Path) -> list[RecordedSpan]:
    """Return the decisions in a decision log, oldest first; none if nothing was ever logged."""
    if not log.exists():
        return []
    return FileSource(str(log)).recent(Query(limit=sys.maxsize))[::-1]


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

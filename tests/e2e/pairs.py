"""A vLLM with LMCache as a test sees it: over HTTP only, so that the stand-in and the real pair are asked the very same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_kvpolicy import series
from otel_kvpolicy.cli.metrics_page import Page
from otel_kvpolicy.series import Series

from .receiver import Receiver

CHUNK = 256
PATIENCE_SECONDS = 60


class Pair:
    """Attributes:
    name: ``standin`` or ``real``.
    base_url: vLLM's, with ``/v1``.
    lmcache_url: LMCache's HTTP server.
    receiver: takes the application's spans, and vLLM's where ``exports_spans``.
    exports_spans: whether the server exports spans of its own to ``receiver``.
    """

    def __init__(
        self, name: str, base_url: str, lmcache_url: str, receiver: Receiver, *, exports_spans: bool
    ) -> None:
        self.name = name
        self.base_url = base_url
        self.url = base_url.removesuffix("/v1")
        self.lmcache_url = lmcache_url
        self.receiver = receiver
        self.exports_spans = exports_spans
        self.http = httpx2.Client(trust_env=False, timeout=PATIENCE_SECONDS)
        self.model = self.http.get(f"{base_url}/models").raise_for_status().json()["data"][0]["id"]

    def call(
        self, calls: Sequence[dict[str, Any]], **environment: str
    ) -> tuple[list[dict[str, Any]], list[Span]]:
        """Lets an instrumented process make the calls. Returns each call's usage and the spans the process exported."""
        before = len(self.receiver.spans)
        done = subprocess.run(
            [
                Path(sys.executable).with_name("opentelemetry-instrument"),
                sys.executable,
                Path(__file__).with_name("caller.py"),
            ],
            input=json.dumps(calls),
            env=self.environment() | environment,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], self.receiver.spans[before:]

    def environment(self) -> dict[str, str]:
        """Of an instrumented process that calls this pair."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "KV_CACHE_"))
        }
        return kept | {
            "NO_PROXY": "127.0.0.1",
            "OPENAI_API_KEY": "none-needed",
            "OPENAI_BASE_URL": self.base_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.receiver.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "otlp",
        }

    def page(self, url: str) -> Page:
        """The metrics page of one of the servers."""
        return Page.parse(self.http.get(f"{url}/metrics").raise_for_status().text)

    def counter(self, counter: Series) -> int:
        """Sum of a counter of LMCache; 0 before its first increment."""
        return self.page(self.lmcache_url).count(counter)

    def chunks_written(self) -> int:
        """Chunks that calls stored, without those that moved from L2 to L1."""
        return self.counter(series.L1_WRITE) - self.counter(series.L2_LOADED)

    def empty_vllm(self) -> None:
        """Empties vLLM's own cache, so that the next hit must come from LMCache. It refuses while blocks are still being stored."""
        wait_until(
            lambda: self.http.post(f"{self.url}/reset_prefix_cache").json()["success"],
            "vLLM to let go of its blocks",
        )


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Asks until it holds: the real servers store and count in the background."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"waited {PATIENCE_SECONDS} s in vain for {what}"
        threading.Event().wait(0.05)

"""A vLLM with LMCache as the tests see it: over HTTP only, the same for stand-in and real pair."""

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
    """A vLLM server and its LMCache server.

    Attributes:
        name: ``standin`` or ``real``.
        base_url: URL of vLLM, with ``/v1``.
        lmcache_url: URL of LMCache's HTTP server.
        receiver: takes the application's spans, and vLLM's spans if ``exports_spans``.
        exports_spans: vLLM exports its own spans to ``receiver``.
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
        """Make the calls in an instrumented process; return each usage and the exported spans."""
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
        """Return the environment of an instrumented process that calls this pair."""
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
        """Return the sum of an LMCache counter; 0 before its first increment."""
        return self.page(self.lmcache_url).count(counter)

    def chunks_written(self) -> int:
        """Return the chunks that calls stored, without those that moved from L2 to L1."""
        return self.counter(series.L1_WRITE) - self.counter(series.L2_LOADED)

    def empty_vllm(self) -> None:
        """Empty vLLM's own cache, so that the next hit must come from LMCache.

        vLLM refuses while blocks are still being stored, so this repeats the request.
        """
        wait_until(
            lambda: self.http.post(f"{self.url}/reset_prefix_cache").json()["success"],
            "vLLM to let go of its blocks",
        )


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds: real servers store and count in the background."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"after {PATIENCE_SECONDS} s still no sign of {what}"
        threading.Event().wait(0.05)

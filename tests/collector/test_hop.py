"""Metrics and spans over OTLP, through a Collector, and by remote write into Prometheus.

The queries of the dashboards find them there. rotel is a real OTLP collector from PyPI; its tests
are skipped if it is missing. Names are translated as Prometheus 3 does.
"""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import names

from ..dashboards.built import fill, panel_expr
from ..dashboards.live import App, Prometheus, free_port, listening, until
from .otlp import Sink, snappy, write_request

pytestmark = pytest.mark.live

KINDS = ("store", "store", "skip", "caller", "store", "skip")


@contextmanager
def hop(kind: str, sink: Sink, folder: Path) -> Iterator[str]:
    """Yield the endpoint that the application exports to."""
    if kind == "direct":
        yield sink.url
        return
    found = importlib.util.find_spec("rotel")
    if found is None or found.origin is None:
        pytest.skip("rotel is not installed (pip install rotel==0.0.1a15)")
    grpc, http = free_port(), free_port()
    command = [
        str(Path(found.origin).with_name("rotel-agent")),
        "start",
        f"--pid-file={folder / 'pid'}",
        f"--otlp-grpc-endpoint=127.0.0.1:{grpc}",
        f"--otlp-http-endpoint=127.0.0.1:{http}",
        "--exporter=otlp",
        "--otlp-exporter-protocol=http",
        f"--otlp-exporter-endpoint={sink.url}",
    ]
    with listening(command, http):
        yield f"http://127.0.0.1:{http}"


@pytest.mark.parametrize("kind", ["direct", "rotel"])
def test_metrics_and_exemplars_arrive_in_prometheus(kind: str, tmp_path: Path) -> None:
    with (
        Sink() as sink,
        hop(kind, sink, tmp_path) as endpoint,
        StandIn() as server,
        App(endpoint, KV_CACHE_CHARS_PER_TOKEN="auto") as app,
        Prometheus(tmp_path, []) as prometheus,
    ):
        seen = app.calls(server.base_url, *KINDS)
        until(lambda: sink.total(names.DECISIONS.name) == len(seen), "all decisions arrive")
        until(lambda: len(_decided(sink)) == len(seen), "all spans arrive")
        # Rates miss the first sample of a series, so they are queried from here on.
        started = time.time()
        _exported(sink)
        seen += app.calls(server.base_url, *KINDS)
        until(lambda: sink.total(names.DECISIONS.name) == len(seen), "all decisions arrive")
        _exported(sink)

        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        body = snappy(write_request(sink.samples()))
        answer = httpx2.post(
            f"http://127.0.0.1:{prometheus.port}/api/v1/write",
            content=body,
            headers=headers,
            trust_env=False,
        )
        assert answer.status_code == 204, answer.text

        kinds = Counter(call["kind"] for call in seen)
        assert prometheus.number(fill(panel_expr("Calls"))) == len(seen)
        skipped = (kinds["skip"] + kinds["caller"]) / len(seen)
        assert prometheus.number(fill(panel_expr("Skipped calls"))) == pytest.approx(skipped)
        window = f"{(time.time() - started) * 1000:.0f}ms"
        ratio = prometheus.number(
            fill(panel_expr("Skip ratio", "skip ratio, calls"), window=window)
        )
        assert ratio == pytest.approx(skipped, rel=1e-6), "both rounds of calls have the same share"
        only_sometimes = (names.ERRORS, names.CHARS_PER_TOKEN_RATIO)
        stored = {metric.prometheus for metric in names.METRICS if metric not in only_sometimes}
        present = set(prometheus.api("label/__name__/values"))
        assert stored <= present | {name.rsplit("_bucket", 1)[0] for name in present}

        # Exemplars, which only this path carries, lead to traces that were sent.
        query = {
            "query": names.DECISIONS.prometheus,
            "start": time.time() - 600,
            "end": time.time() + 60,
        }
        exemplars = [
            item
            for series in prometheus.api("query_exemplars", **query)
            for item in series["exemplars"]
        ]
        traces = {span.trace_id.hex() for span in _decided(sink)}
        assert exemplars
        assert {exemplar["labels"]["trace_id"] for exemplar in exemplars} <= traces


def _exported(sink: Sink) -> None:
    exports = len(sink.metrics)
    until(lambda: len(sink.metrics) > exports + 1, "two more exports")


def _decided(sink: Sink) -> list[Span]:
    return [span for span in sink.spans if names.DECISION in sink.attributes(span)]

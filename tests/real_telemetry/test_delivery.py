"""Nothing is lost on the way through the Collector, whatever is down or restarted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import names

from ..dashboards.live import App, free_port, until
from .servers import Collector, Jaeger, Prometheus, tags
from .traffic import SKIPPED, sending

pytestmark = pytest.mark.live
KINDS = ("store", "store", "skip", "caller", "store", "skip", "store", "skip") * 5
# More than the 8,192 spans that make a batch by default, and about 15 MB.
BACKLOG = 10_000
ENOUGH = {"check_interval": "1s", "limit_percentage": 75, "spike_limit_percentage": 20}


def test_an_outage_of_the_trace_server_loses_no_skipped_call(tmp_path: Path) -> None:
    """Not even if the Collector crashes meanwhile; the backlog exceeds one gRPC message."""
    jaeger = Jaeger(tmp_path / "jaeger")
    with Collector("app", tmp_path / "app", TEMPO_ENDPOINT=jaeger.endpoint) as collector:
        assert isinstance(collector, Collector)
        with sending(collector.url) as sender:
            sender.calls(BACKLOG, SKIPPED)
        until(
            lambda: (
                collector.total("processor_tail_sampling_global_count_traces_sampled") >= BACKLOG
            ),
            "every trace is judged and in the queue",
        )
        assert not collector.total("exporter_enqueue_failed_spans", exporter="otlp_grpc/tempo")
        collector.kill()
        collector.start()
        with jaeger:
            until(
                lambda: collector.total("exporter_sent_spans") >= BACKLOG,
                "the backlog is sent",
            )
            assert not collector.total("exporter_send_failed_spans", exporter="otlp_grpc/tempo")
            found = {span["traceID"] for span in jaeger.spans("app")}
            assert len(found) == BACKLOG


@pytest.mark.parametrize("name", ["gb10", "gateway"])
def test_an_outage_of_the_next_collector_loses_no_span(name: str, tmp_path: Path) -> None:
    """The Collectors of ``gb10.yaml`` and ``gateway.yaml`` send to the one of ``app.yaml``."""
    receiving = Collector("app", tmp_path / "app")

    def edit(config: dict[str, Any]) -> None:
        http = {"endpoint": f"127.0.0.1:{sender_collector_port}"}
        config["receivers"]["otlp"]["protocols"]["http"] = http
        if name == "gateway":
            hosts = {"hostnames": [receiving.target]}
            config["exporters"]["load_balancing"]["resolver"] = {"static": hosts}

    sender_collector_port = free_port()
    collector = Collector(
        name,
        tmp_path / name,
        edit,
        UPSTREAM_ENDPOINT=receiving.target,
        UPSTREAM_INSECURE="true",
    )
    with collector:
        with sending(f"http://127.0.0.1:{sender_collector_port}") as sender:
            sender.calls(BACKLOG, SKIPPED)
        collector.kill()
        collector.start()
        with receiving:
            until(
                lambda: receiving.total("receiver_accepted_spans") >= BACKLOG,
                "the backlog arrives",
            )
            assert receiving.total("receiver_accepted_spans") == BACKLOG


def test_counters_are_exact_after_restarts_and_outages(tmp_path: Path) -> None:
    """Prometheus ends up with the application's own counts, decision by decision."""
    prometheus = Prometheus(tmp_path / "prometheus")
    jaeger = Jaeger(tmp_path / "jaeger")
    collector = Collector(
        "app",
        tmp_path / "app",
        PROMETHEUS_ENDPOINT=prometheus.url,
        TEMPO_ENDPOINT=jaeger.endpoint,
        KEEP_PERCENT="100",
    )
    with prometheus, jaeger, collector, StandIn() as server, App(collector.url) as app:
        seen = app.calls(server.base_url, *KINDS)
        until(lambda: counted(prometheus) == len(seen), "the first calls are counted")
        prometheus.stop()
        seen += app.calls(server.base_url, *KINDS)
        until(
            lambda: collector.total("exporter_queue_size", exporter="otlp_http/prometheus") > 0,
            "the queue for Prometheus fills",
        )
        collector.stop()
        seen += app.calls(server.base_url, *KINDS)
        collector.start()
        seen += app.calls(server.base_url, *KINDS)
        prometheus.start()
        seen += app.calls(server.base_url, *KINDS)
        until(lambda: counted(prometheus) == len(seen), "all calls are counted")

        kinds = Counter(call["kind"] for call in seen)
        assert counted(prometheus, "skip", "applied") == kinds["skip"]
        assert counted(prometheus, "skip", "caller") == kinds["caller"]
        assert counted(prometheus, "store", "applied") == kinds["store"]
        tokens = prometheus.number(f"sum({names.CACHED_TOKENS.prometheus})")
        assert tokens == sum(call["cached"] for call in seen)

        def decided() -> list[dict[str, Any]]:
            return [span for span in jaeger.spans("app") if names.DECISION in tags(span)]

        until(lambda: len(decided()) >= len(seen), "all spans arrive")
        assert len({span["spanID"] for span in decided()}) == len(seen)


def counted(prometheus: Prometheus, decision: str = "", outcome: str = "") -> float | None:
    """Return how many decisions the application has counted, as Prometheus has it."""
    decided = f'kvpolicy_decision="{decision}"' if decision else 'kvpolicy_decision!=""'
    became = f', kvpolicy_hint_outcome="{outcome}"' if outcome else ""
    return prometheus.number(f"sum({names.DECISIONS.prometheus}{{{decided}{became}}})")


def test_a_full_queue_is_counted_and_the_metrics_recover(tmp_path: Path) -> None:
    """A queue has an end. Calls go on, the loss shows, and counters are exact again afterwards."""
    prometheus = Prometheus(tmp_path / "prometheus")

    def edit(config: dict[str, Any]) -> None:
        for exporter in config["exporters"].values():
            exporter["sending_queue"] |= {"queue_size": 60_000}
            exporter["sending_queue"]["batch"] = {
                "sizer": "bytes",
                "min_size": 1000,
                "max_size": 50_000,
            }

    collector = Collector(
        "app",
        tmp_path / "app",
        edit,
        PROMETHEUS_ENDPOINT=prometheus.url,
        TEMPO_ENDPOINT="127.0.0.1:1",
    )
    with collector, StandIn() as server, App(collector.url) as app:
        with sending(collector.url) as sender:
            sender.calls(1000, SKIPPED)
        until(
            lambda: collector.total("exporter_enqueue_failed_spans") > 0,
            "the loss of spans is counted",
        )
        seen = app.calls(server.base_url, *KINDS)
        until(
            lambda: collector.total("exporter_enqueue_failed_metric_points") > 0,
            "the loss of metric points is counted",
        )
        with prometheus:
            seen += app.calls(server.base_url, *KINDS)
            until(lambda: counted(prometheus) == len(seen), "all calls are counted")


def test_a_collector_without_memory_refuses_and_what_it_refused_comes_later(
    tmp_path: Path,
) -> None:
    prometheus = Prometheus(tmp_path / "prometheus")
    folder = tmp_path / "app"

    def no_memory(config: dict[str, Any]) -> None:
        config["processors"]["memory_limiter"] = {
            "check_interval": "100ms",
            "limit_mib": 2,
            "spike_limit_mib": 1,
        }

    refusing = Collector("app", folder, no_memory, PROMETHEUS_ENDPOINT=prometheus.url)
    with prometheus, refusing, StandIn() as server, App(refusing.url) as app:
        seen = app.calls(server.base_url, *KINDS)
        until(lambda: refusing.total("receiver_refused_metric_points") > 0, "metrics are refused")
        assert counted(prometheus) is None
        refusing.stop()
        refusing.configure(lambda config: config["processors"].update(memory_limiter=ENOUGH))
        refusing.start()
        seen += app.calls(server.base_url, *KINDS)
        until(lambda: counted(prometheus) == len(seen), "all calls are counted")

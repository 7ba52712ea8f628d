"""From 200 decided calls to Prometheus 3, Jaeger and ``explain``, with what ``collector/`` ships.

The application's own truth is its decision log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy import series
from otel_kvpolicy.telemetry import names

from ..dashboards.live import LOOPBACK, free_port, until
from .servers import ROOT, Collector, Jaeger, Prometheus, clean_environment, tags

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("real telemetry path")]
CALLS = 200
PUSHED, SCRAPED = "demo", "scraped"


@dataclass
class Run:
    """What the tests look at: the servers, and the application's decision log."""

    prometheus: Prometheus
    jaeger: Jaeger
    collector: Collector
    log: list[dict[str, Any]]


def label(name: str) -> str:
    return name.replace(".", "_")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run the load once, pushing and being scraped, with every other setting as documented."""
    folder = tmp_path_factory.mktemp("path")
    page, vllm, lmcache = free_port(), free_port(), free_port()
    prometheus = Prometheus(
        folder / "prometheus", {SCRAPED: page, "vllm": vllm, "lmcache": lmcache}
    )
    jaeger = Jaeger(folder / "jaeger")
    collector = Collector(
        "app",
        folder / "app",
        PROMETHEUS_ENDPOINT=prometheus.url,
        TEMPO_ENDPOINT=jaeger.endpoint,
    )
    log = folder / "decisions.jsonl"
    environment = clean_environment() | {
        "OTEL_SERVICE_NAME": PUSHED,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "otlp,prometheus",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_EXPORTER_PROMETHEUS_HOST": LOOPBACK,
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(page),
        "OTEL_LOGS_EXPORTER": "none",
        "KV_CACHE_DECISION_LOG": str(log),
        "KV_CACHE_CHARS_PER_TOKEN": "auto",  # which adds the gauge
    }
    command = [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        sys.executable,
        str(Path(__file__).with_name("application.py")),
        f"--port={vllm}",
        f"--lmcache-port={lmcache}",
        f"--calls={CALLS}",
        "--rate=100",
    ]
    with prometheus, jaeger, collector:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout
            assert process.stdout.readline() == "done\n"
            decided = [json.loads(line) for line in log.read_text().splitlines()]
            assert len(decided) == CALLS
            yield Run(prometheus, jaeger, collector, decided)
            process.terminate()


def of_log(run: Run) -> Counter[tuple[str, str]]:
    """Count decisions and outcomes in the application's log."""
    attributes = [line.get("attributes", line) for line in run.log]
    return Counter((line[names.DECISION], line[names.HINT_OUTCOME]) for line in attributes)


def of_prometheus(run: Run, metric: str, job: str) -> Counter[tuple[str, str]]:
    """Count decisions and outcomes in Prometheus."""
    decision, outcome = label(names.DECISION), label(names.HINT_OUTCOME)
    query = f'sum by ({decision}, {outcome}) ({metric}{{job="{job}"}})'
    found: Counter[tuple[str, str]] = Counter()
    for labels, value in run.prometheus.vector(query):
        found[labels[decision], labels[outcome]] = int(value)
    return found


@pytest.mark.parametrize(
    ("metric", "job"),
    [
        pytest.param(names.DECISIONS.prometheus, PUSHED, id="pushed by OTLP"),
        pytest.param(names.DECISIONS.prometheus, SCRAPED, id="scraped"),
        pytest.param(series.SPAN_CALLS.name, PUSHED, id="span metrics"),
    ],
)
def test_prometheus_counts_what_the_application_counted(run: Run, metric: str, job: str) -> None:
    until(
        lambda: of_prometheus(run, metric, job) == of_log(run),
        f"{metric} of {job} agrees with the decision log",
    )


def test_both_ways_give_the_same_names(run: Run) -> None:
    """Queries and alerts work the same, whether the application pushes or is scraped."""

    def stored(job: str) -> set[str]:
        match = f'{{job="{job}", __name__=~"kvpolicy_.*"}}'
        return set(run.prometheus.api("label/__name__/values", **{"match[]": match}))

    until(lambda: stored(PUSHED) == stored(SCRAPED), "the same names are stored both ways")
    suffixes = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    expected = {
        metric.prometheus + suffix
        for metric in names.METRICS
        if metric is not names.ERRORS  # counted only when something fails
        for suffix in suffixes[metric.kind]
    }
    assert expected == {name for name in stored(PUSHED) if not name.endswith("_created")}


def test_both_ways_give_the_labels_that_queries_use(run: Run) -> None:
    for metric in names.METRICS:
        if metric is names.ERRORS:
            continue
        name = metric.prometheus + ("_count" if metric.kind == "histogram" else "")
        known = {label(attribute) for attribute in metric.attributes}

        def keys(job: str, name: str = name, known: set[str] = known) -> set[frozenset[str]]:
            found = run.prometheus.vector(f'{name}{{job="{job}"}}')
            return {frozenset(known & labels.keys()) for labels, _ in found}

        until(
            lambda keys=keys: keys(PUSHED) and keys(PUSHED) == keys(SCRAPED),
            f"{name} has the same labels both ways",
        )


def test_resource_attributes_are_promoted_and_joinable(run: Run) -> None:
    (job, instance), *more = {
        (labels["job"], labels["instance"])
        for labels, _ in run.prometheus.vector(f'{names.DECISIONS.prometheus}{{job="{PUSHED}"}}')
    }
    assert not more, "one process is one instance"
    found = run.prometheus.vector(f'{names.DECISIONS.prometheus}{{job="{PUSHED}"}}')
    for labels, _ in found:
        assert labels["service_name"] == PUSHED
        assert labels["deployment_environment_name"] == "dev"
    joined = run.prometheus.vector(
        f"sum by (telemetry_sdk_language) ({names.DECISIONS.prometheus} "
        f'* on (job, instance) group_left (telemetry_sdk_language) target_info{{job="{job}", '
        f'instance="{instance}"}})'
    )
    assert joined == [({"telemetry_sdk_language": "python"}, CALLS)]


def test_every_skipped_call_is_in_jaeger(run: Run) -> None:
    skipped = of_log(run)[names.SKIP, "applied"]
    assert skipped > 0

    def arrived() -> int:
        spans = run.jaeger.spans(PUSHED)
        return sum(tags(span).get(names.DECISION) == names.SKIP for span in spans)

    until(lambda: arrived() == skipped, "every skipped call arrives")


@pytest.mark.parametrize(
    "metric", [series.SPAN_DURATION.name, names.SCORE_METRIC.prometheus], ids=["span", "own"]
)
def test_an_exemplar_leads_to_the_trace_and_to_the_explanation(run: Run, metric: str) -> None:
    query = {
        "query": f'{metric}_bucket{{{label(names.DECISION)}="{names.SKIP}", job="{PUSHED}"}}',
        "start": time.time() - 600,
        "end": time.time() + 60,
    }
    found = until(
        lambda: run.prometheus.api("query_exemplars", **query), "Prometheus has exemplars"
    )
    exemplar = found[0]["exemplars"][0]["labels"]
    trace_id, span_id = exemplar["trace_id"], exemplar["span_id"]

    def in_jaeger() -> list[dict[str, Any]]:
        return [
            span
            for span in run.jaeger.spans(PUSHED)
            if (span["traceID"], span["spanID"]) == (trace_id, span_id)
        ]

    (span,) = until(in_jaeger, "the exemplar's span is in Jaeger")
    assert tags(span)[names.DECISION] == names.SKIP

    command = [sys.executable, "-m", "otel_kvpolicy.cli", "explain", trace_id]
    done = subprocess.run(
        [*command, "--span", span_id, "--from", run.jaeger.url, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (call,) = json.loads(done.stdout)["calls"]
    assert (call["trace_id"], call["span_id"]) == (trace_id, span_id)
    assert call["verdict"] == names.SKIP
    assert call["headline"]
    for signal in ("prefix_tokens", "user_tokens", "total_tokens", "history_turns"):
        assert call["decision"]["signals"][signal] == tags(span)[names.SIGNALS + signal]


def test_the_collector_reports_no_trouble(run: Run) -> None:
    lines = run.collector.log.splitlines()
    assert not [line for line in lines if "\twarn\t" in line or "\terror\t" in line]

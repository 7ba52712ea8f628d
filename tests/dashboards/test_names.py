"""A metric is named the same on every path into Prometheus: scraped from the SDK's exporter, and sent by OTLP to Prometheus 3."""

from __future__ import annotations

import re

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.source.queries import label
from otel_kvpolicy import series as servers
from otel_kvpolicy.telemetry import names
from otel_kvpolicy.telemetry.names import Metric

UNITS = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "1": ""}

# Written down, not computed: what Prometheus' OTLP receiver stores with its default translation (UnderscoreEscapingWithSuffixes).
TABLE = {
    "kvpolicy.decisions": "kvpolicy_decisions_total",
    "kvpolicy.prompt.tokens": "kvpolicy_prompt_tokens_total",
    "kvpolicy.cached.tokens": "kvpolicy_cached_tokens_total",
    "kvpolicy.score": "kvpolicy_score",
    "kvpolicy.decision.duration": "kvpolicy_decision_duration_seconds",
    "kvpolicy.errors": "kvpolicy_errors_total",
}


def translated(name: str, unit: str, kind: str) -> str:
    """The rules of OpenTelemetry's "Prometheus and OpenMetrics compatibility", as Prometheus 3 applies them to OTLP."""
    stem = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
    suffix = UNITS.get(unit, "") if not unit.startswith("{") else ""
    if suffix and not stem.endswith(suffix):
        stem = f"{stem}_{suffix}"
    if unit == "1" and kind == "gauge" and not stem.endswith("_ratio"):
        stem = f"{stem}_ratio"
    if kind == "counter" and not stem.endswith("_total"):
        stem = f"{stem}_total"
    return stem


@pytest.mark.parametrize("metric", names.METRICS, ids=lambda metric: metric.name)
def test_sent_by_otlp(metric: Metric) -> None:
    assert (
        metric.prometheus == TABLE[metric.name] == translated(metric.name, metric.unit, metric.kind)
    )


def test_the_table_is_complete() -> None:
    assert set(TABLE) == {metric.name for metric in names.METRICS}


def test_scraped_from_the_sdk() -> None:
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    provider = MeterProvider([reader])
    meter = provider.get_meter(names.SCOPE)
    for metric in names.METRICS:
        attributes = dict.fromkeys(metric.attributes, "x")
        if metric.kind == "counter":
            meter.create_counter(metric.name, unit=metric.unit).add(1, attributes)
        else:
            meter.create_histogram(
                metric.name,
                unit=metric.unit,
                explicit_bucket_boundaries_advisory=list(metric.buckets),
            ).record(0.1, attributes)
    page = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    provider.shutdown()
    for metric in names.METRICS:
        for suffix in ("",) if metric.kind == "counter" else ("_bucket", "_sum", "_count"):
            assert {label(name) for name in metric.attributes} <= page[
                f"{metric.prometheus}{suffix}"
            ]


def test_span_metrics_are_named_by_the_same_rules() -> None:
    """Namespace and names of the span_metrics connector, its unit set to seconds in collector/app.yaml."""
    assert translated("traces.span.metrics.calls", "", "counter") == servers.SPAN_CALLS.name
    assert (
        translated("traces.span.metrics.duration", "s", "histogram") == servers.SPAN_DURATION.name
    )


def test_a_gauge_would_have_to_be_named_ratio() -> None:
    """The SDK's exporter adds no _ratio to a gauge of unit 1, Prometheus 3 does: only a name that ends in it is the same on both."""
    assert translated("kvpolicy.skip", "1", "gauge") == "kvpolicy_skip_ratio"
    assert translated("kvpolicy.skip_ratio", "1", "gauge") == "kvpolicy_skip_ratio"
    assert not [metric for metric in names.METRICS if metric.kind not in ("counter", "histogram")]


def test_scraped_pages_keep_their_names_through_otlp() -> None:
    """The Collector sends what it scraped by OTLP: a counter keeps its name only if it ends in _total, a gauge if it has no unit to add."""
    for series in servers.SERVERS:
        assert translated(series.name, "", series.kind) == series.name

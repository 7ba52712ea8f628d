"""A metric has the same name on every path into Prometheus: scraped, and sent by OTLP."""

from __future__ import annotations

import re

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.source.queries import label
from otel_kvpolicy import series
from otel_kvpolicy.telemetry import names

UNITS = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "1": ""}

# Typed in, not computed: the names that Prometheus' OTLP receiver stores with its default
# translation, UnderscoreEscapingWithSuffixes.
STORED = {
    "kvpolicy.decisions": "kvpolicy_decisions_total",
    "kvpolicy.prompt.tokens": "kvpolicy_prompt_tokens_total",
    "kvpolicy.cached.tokens": "kvpolicy_cached_tokens_total",
    "kvpolicy.score": "kvpolicy_score",
    "kvpolicy.decision.duration": "kvpolicy_decision_duration_seconds",
    "kvpolicy.errors": "kvpolicy_errors_total",
    "kvpolicy.chars_per_token.ratio": "kvpolicy_chars_per_token_ratio",
}


def translated(name: str, unit: str, kind: str) -> str:
    """Return the name that Prometheus 3 stores for an OTLP metric.

    The rules are those of OpenTelemetry's "Prometheus and OpenMetrics Compatibility".
    """
    stem = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
    suffix = UNITS.get(unit, "") if not unit.startswith("{") else ""
    if suffix and not stem.endswith(suffix):
        stem = f"{stem}_{suffix}"
    if unit == "1" and kind == "gauge" and not stem.endswith("_ratio"):
        stem = f"{stem}_ratio"
    if kind == "counter" and not stem.endswith("_total"):
        stem = f"{stem}_total"
    return stem


def test_names_of_metrics_sent_by_otlp(subtests: pytest.Subtests) -> None:
    assert set(STORED) == {metric.name for metric in names.METRICS}
    for metric in names.METRICS:
        with subtests.test(metric.name):
            assert metric.prometheus == STORED[metric.name]
            assert metric.prometheus == translated(metric.name, metric.unit, metric.kind)


def test_names_of_metrics_scraped_from_the_sdk(subtests: pytest.Subtests) -> None:
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    provider = MeterProvider([reader])
    meter = provider.get_meter(names.SCOPE)
    for metric in names.METRICS:
        attributes = dict.fromkeys(metric.attributes, "x")
        if metric.kind == "counter":
            meter.create_counter(metric.name, unit=metric.unit).add(1, attributes)
        elif metric.kind == "gauge":
            meter.create_gauge(metric.name, unit=metric.unit).set(1, attributes)
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
        with subtests.test(metric.name):
            labels = {label(name) for name in metric.attributes}
            suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
            for suffix in suffixes:
                assert labels <= page[f"{metric.prometheus}{suffix}"]


def test_span_metrics_follow_the_same_rules() -> None:
    """Names are the span_metrics connector's; collector/app.yaml sets its unit to seconds."""
    assert translated("traces.span.metrics.calls", "", "counter") == series.SPAN_CALLS.name
    assert translated("traces.span.metrics.duration", "s", "histogram") == series.SPAN_DURATION.name


def test_no_metric_is_a_gauge_whose_name_depends_on_the_path() -> None:
    """Prometheus 3 adds ``_ratio`` to a gauge of unit 1, and the SDK's exporter does not.

    Only a name that ends in ``_ratio`` is the same on both paths.
    """
    assert translated("kvpolicy.skip", "1", "gauge") == "kvpolicy_skip_ratio"
    assert translated("kvpolicy.skip_ratio", "1", "gauge") == "kvpolicy_skip_ratio"
    gauges = [metric for metric in names.METRICS if metric.kind not in ("counter", "histogram")]
    assert all(metric.prometheus.endswith("_ratio") for metric in gauges)


def test_scraped_metrics_keep_their_names_through_the_collector() -> None:
    """The Collector sends by OTLP what it scraped.

    A counter keeps its name only if it ends in ``_total``, and a gauge only if no unit is added.
    """
    for one in series.SERVERS:
        assert translated(one.name, "", one.kind) == one.name

"""The names that Prometheus 3 gives to metrics that arrive by OTLP, by translation strategy."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_kvpolicy import series
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import names

from ..dashboards.live import App, until
from .servers import FOLDER, Collector, Prometheus

pytestmark = pytest.mark.live
SHIPPED = "UnderscoreEscapingWithSuffixes"
# Of a counter, a histogram, a gauge and the Collector's counter.
STORED = {
    SHIPPED: (
        names.DECISIONS.prometheus,
        names.DECISION_DURATION.prometheus + "_bucket",
        names.CHARS_PER_TOKEN_RATIO.prometheus,
        series.SPAN_CALLS.name,
    ),
    "UnderscoreEscapingWithoutSuffixes": (
        "kvpolicy_decisions",
        "kvpolicy_decision_duration_bucket",
        "kvpolicy_chars_per_token_ratio",
        series.SPAN_CALLS.name.removesuffix("_total"),
    ),
    "NoUTF8EscapingWithSuffixes": (
        "kvpolicy.decisions_total",
        "kvpolicy.decision.duration_seconds_bucket",
        "kvpolicy.chars_per_token_ratio",
        "traces.span.metrics.calls_total",
    ),
    "NoTranslation": (
        "kvpolicy.decisions",
        "kvpolicy.decision.duration_bucket",
        "kvpolicy.chars_per_token.ratio",
        "traces.span.metrics.calls",
    ),
}


def test_names_by_translation_strategy(tmp_path: Path) -> None:
    shipped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert shipped["otlp"]["translation_strategy"] == SHIPPED
    servers = {
        strategy: Prometheus(tmp_path / strategy, otlp={"translation_strategy": strategy})
        for strategy in STORED
    }

    def edit(config: dict[str, Any]) -> None:
        template = config["exporters"].pop("otlp_http/prometheus")
        template["sending_queue"] = {"batch": {}}
        exporters = {
            f"otlp_http/{strategy.lower()}": template | {"endpoint": f"{server.url}/api/v1/otlp"}
            for strategy, server in servers.items()
        }
        config["exporters"] |= exporters
        for pipeline in ("metrics/spans", "metrics/in"):
            config["service"]["pipelines"][pipeline]["exporters"] = list(exporters)

    with ExitStack() as stack:
        for server in servers.values():
            stack.enter_context(server)
        collector = Collector("app", tmp_path / "app", edit)
        stack.enter_context(collector)
        llm = stack.enter_context(StandIn())
        app = stack.enter_context(App(collector.url, KV_CACHE_CHARS_PER_TOKEN="auto"))
        app.calls(llm.base_url, "store", "skip")
        for strategy, server in servers.items():
            until(
                lambda strategy=strategy, server=server: (
                    set(STORED[strategy]) <= set(server.api("label/__name__/values"))
                ),
                f"the names of {strategy} are stored",
            )

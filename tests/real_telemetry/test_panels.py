"""Every panel query, recording rule, and alert of ``dashboards/`` on a real Prometheus 3."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ..dashboards.built import fill
from ..dashboards.live import free_port, node_exporter, until
from .servers import ROOT, Collector, Prometheus, clean_environment, program

pytestmark = pytest.mark.live
DASHBOARDS = ROOT / "dashboards" / "grafana"
RULES = sorted((ROOT / "dashboards" / "rules").glob("*.yaml"))
# Panels without data after the load, by what would have to be there. Their descriptions tell.
EMPTY = {
    "no dcgm-exporter metrics": {
        "GPU utilization",
        "GPU power",
        "GPU temperature",
        "GPU clock",
    },
    "no in-process LMCache": {
        "Tokens looked up, found, stored",
        "Memory and backend usage",
        "Evictions from memory",
    },
    "no errors so far": {"Errors"},
}


class Query(NamedTuple):
    """One PromQL query of a panel."""

    dashboard: str
    panel: str
    expr: str
    description: str


def queries() -> Iterator[Query]:
    """Yield the PromQL queries of all dashboards; those for Tempo cannot be run here."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in panels(json.loads(file.read_text())["panels"]):
            for target in panel.get("targets", []):
                if expr := target.get("expr"):
                    yield Query(file.stem, panel["title"], expr, panel.get("description", ""))


def panels(nested: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the panels of a dashboard, those in collapsed rows too."""
    for panel in nested:
        yield panel
        yield from panels(panel.get("panels", []))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that gets what the compose file's would, and a host's metrics."""
    folder = tmp_path_factory.mktemp("panels")
    vllm, lmcache = free_port(), free_port()
    with node_exporter() as node:
        targets = {"vllm": vllm, "lmcache": lmcache, "node": node}
        with Prometheus(folder / "prometheus", targets) as server:
            assert isinstance(server, Prometheus)
            collector = Collector(
                "app",
                folder / "app",
                PROMETHEUS_ENDPOINT=server.url,
                TEMPO_ENDPOINT="127.0.0.1:1",
            )
            environment = clean_environment() | {
                "OTEL_SERVICE_NAME": "demo",
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_METRIC_EXPORT_INTERVAL": "1000",
                "KV_CACHE_SHADOW": "true",
            }
            command = [
                str(Path(sys.executable).with_name("opentelemetry-instrument")),
                sys.executable,
                str(ROOT / "collector" / "load.py"),
                f"--port={vllm}",
                f"--lmcache-port={lmcache}",
                "--rate=20",
            ]
            with collector, subprocess.Popen(command, env=environment) as load:
                yield server
                load.terminate()


def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    promtool = program("promtool")
    config = Prometheus(tmp_path).folder / "prometheus.yaml"
    for command in (["check", "rules", *map(str, RULES)], ["check", "config", str(config)]):
        done = subprocess.run(
            [promtool, *command], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_panel_has_data_or_says_why_not(prometheus: Prometheus) -> None:
    excused = {title for titles in EMPTY.values() for title in titles}
    wanted = [query for query in queries() if query.panel not in excused]
    assert len(wanted) > 80

    def empty() -> list[Query]:
        return [query for query in wanted if not prometheus.vector(fill(query.expr))]

    until(lambda: not empty(), "every panel query has data", within=240)


def test_a_panel_that_may_be_empty_says_what_is_missing(prometheus: Prometheus) -> None:
    by_title = {query.panel: query for query in queries()}
    for reason, titles in EMPTY.items():
        for title in titles:
            assert f"No data: {reason}" in by_title[title].description
            assert not prometheus.vector(fill(by_title[title].expr)), "does it have data now?"


def test_every_rule_is_healthy(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        groups = prometheus.api("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in rules()), "every rule has run")
    assert len(rules()) > 30
    assert not [(rule["name"], rule["lastError"]) for rule in rules() if rule["health"] != "ok"]
    firing = {
        alert["labels"]["alertname"]
        for alert in prometheus.api("alerts")["alerts"]
        if alert["state"] == "firing"
    }
    assert not firing, "the load is no reason to page anyone"

"""What the generator builds, taken apart for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dashboards.source.build import files

FILES = files()
DASHBOARDS: dict[str, dict[str, Any]] = {
    name: json.loads(text) for name, text in FILES.items() if name.endswith(".json")
}
RULES: list[dict[str, Any]] = [
    rule
    for name, text in FILES.items()
    if name.endswith(".yaml")
    for group in yaml.safe_load(text)["groups"]
    for rule in group["rules"]
]


@dataclass(frozen=True)
class Asked:
    """A PromQL query, and what asks it."""

    where: str
    expr: str
    unit: str = ""
    instant: bool = False

    def __str__(self) -> str:
        return self.where


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels but rows, those of collapsed rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def is_prometheus(panel: dict[str, Any]) -> bool:
    return bool(panel.get("targets")) and panel["datasource"]["type"] == "prometheus"


def panel_queries() -> Iterator[Asked]:
    for dashboard in DASHBOARDS.values():
        for panel in filter(is_prometheus, panels(dashboard)):
            for target in panel["targets"]:
                unit = panel["fieldConfig"]["defaults"]["unit"]
                yield Asked(
                    f"{dashboard['title']} / {panel['title']} / {target['refId']}",
                    target["expr"],
                    unit,
                    target["instant"],
                )


def variable_queries() -> Iterator[Asked]:
    """The selectors of ``label_values``, as the series API is asked for them."""
    for dashboard in DASHBOARDS.values():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                assert found, variable["query"]
                yield Asked(
                    f"{dashboard['title']} / variable {variable['name']} of {found[2]}", found[1]
                )


def annotation_queries() -> Iterator[Asked]:
    for dashboard in DASHBOARDS.values():
        for annotation in dashboard["annotations"]["list"]:
            yield Asked(
                f"{dashboard['title']} / annotation {annotation['name']}", annotation["expr"]
            )


def rule_queries() -> Iterator[Asked]:
    for rule in RULES:
        yield Asked(f"rule {rule.get('record') or rule['alert']}", rule["expr"])


def fill(expr: str, *, window: str = "5m", span: str = "1h", **variables: str) -> str:
    """What Grafana does to a query before it sends it: macros, and variables (All where none is named)."""
    values = {
        "__rate_interval": window,
        "__range": span,
        "chunk": "256",
        "decision": "skip",
        **variables,
    }
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), expr)


ALL_QUERIES = [*panel_queries(), *variable_queries(), *annotation_queries(), *rule_queries()]

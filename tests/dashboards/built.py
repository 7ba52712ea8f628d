"""What the generator builds, taken apart for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from dashboards.source.build import files

FILES = files()
DASHBOARDS: dict[str, dict[str, Any]] = {
    name: json.loads(text) for name, text in FILES.items() if name.endswith(".json")
}
RULES: dict[str, list[dict[str, Any]]] = {
    name: [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    for name, text in FILES.items()
    if name.endswith(".yaml")
}
ALL_RULES = [rule for rules in RULES.values() for rule in rules]


@dataclass(frozen=True)
class Asked:
    """A PromQL query and the part of a built file that has it.

    Attributes:
        kind: kind of that part.
        name: title of the panel, or name of the variable, annotation or rule.
        expr: PromQL.
        ref: letter of a panel's query.
        label: label that a variable offers.
        unit: unit of a panel.
        instant: whether a panel asks for one moment only.
    """

    kind: Literal["panel", "variable", "annotation", "rule"]
    name: str
    expr: str
    ref: str = ""
    label: str = ""
    unit: str = ""
    instant: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" / {self.ref}" if self.ref else "")


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel except rows, including the panels of collapsed rows."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def is_prometheus(panel: dict[str, Any]) -> bool:
    return bool(panel.get("targets")) and panel["datasource"]["type"] == "prometheus"


def panel_queries(dashboard: dict[str, Any]) -> Iterator[Asked]:
    for panel in filter(is_prometheus, panels(dashboard)):
        for target in panel["targets"]:
            yield Asked(
                "panel",
                panel["title"],
                target["expr"],
                ref=target["refId"],
                unit=panel["fieldConfig"]["defaults"]["unit"],
                instant=target["instant"],
            )


def variable_queries(dashboard: dict[str, Any]) -> Iterator[Asked]:
    """Yield the selectors inside ``label_values``, as the series API gets them."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert match, variable["query"]
            yield Asked("variable", variable["name"], match[1], label=match[2])


def annotation_queries(dashboard: dict[str, Any]) -> Iterator[Asked]:
    for annotation in dashboard["annotations"]["list"]:
        yield Asked("annotation", annotation["name"], annotation["expr"])


def rule_queries(rules: list[dict[str, Any]]) -> Iterator[Asked]:
    for rule in rules:
        yield Asked("rule", rule.get("record") or rule["alert"], rule["expr"])


def fill(expr: str, *, window: str = "5m", span: str = "1h", **variables: str) -> str:
    """Replace Grafana's macros and variables; a variable that is not given selects All."""
    values = {
        "__rate_interval": window,
        "__range": span,
        "chunk": "256",
        "decision": "skip",
        **variables,
    }
    return re.sub(r"\$(\w+)", lambda match: values.get(match[1], ".*"), expr)


def panel_expr(title: str, legend: str = "") -> str:
    """Return a panel's query by the panel's title and the query's legend."""
    exprs = [
        target["expr"]
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
        if panel["title"] == title and legend in ("", target.get("legendFormat"))
    ]
    assert len(exprs) == 1, (title, legend, exprs)
    return str(exprs[0])


QUERIES: dict[str, list[Asked]] = {
    **{
        name: [
            *panel_queries(dashboard),
            *variable_queries(dashboard),
            *annotation_queries(dashboard),
        ]
        for name, dashboard in DASHBOARDS.items()
    },
    **{name: list(rule_queries(rules)) for name, rules in RULES.items()},
}
"""All queries of each built file."""

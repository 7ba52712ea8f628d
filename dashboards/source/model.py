"""The parts of a dashboard before they become Grafana's JSON: queries, panels, rows, variables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

JSON = dict[str, Any]

PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
TEMPO: Final = {"type": "tempo", "uid": "${tempo}"}


@dataclass(frozen=True)
class Query:
    """A PromQL query of a panel.

    Attributes:
        expr: PromQL, with Grafana's variables.
        legend: name of the query's series; may hold ``{{label}}``.
        exemplar: whether to ask for exemplars, the dots that link to traces.
        heat: whether the series are the buckets of a heatmap.
    """

    expr: str
    legend: str
    exemplar: bool = False
    heat: bool = False


@dataclass(frozen=True)
class Threshold:
    """The color of values from ``value`` up."""

    value: float
    color: str


@dataclass(frozen=True)
class Panel:
    """A panel without its id and position."""

    body: JSON
    width: int
    height: int


@dataclass(frozen=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


@dataclass(frozen=True)
class Variable:
    """A template variable whose values are the values of a Prometheus label."""

    name: str
    label: str
    query: str
    meaning: str
    regex: str = ""


@dataclass(frozen=True)
class Choice:
    """A template variable with fixed values; the first one is the default."""

    name: str
    label: str
    values: Sequence[str]
    meaning: str


@dataclass(frozen=True)
class Link:
    """A link that a data point or a table cell opens."""

    title: str
    url: str


@dataclass(frozen=True)
class Annotation:
    """Events that are drawn over every graph of a dashboard."""

    name: str
    expr: str
    color: str


def explore(query: str) -> str:
    """Return a link to Grafana's Explore with a TraceQL query over the dashboard's time range."""
    pane = {
        "kv": {
            "datasource": "${tempo}",
            "queries": [
                {
                    "refId": "A",
                    "datasource": TEMPO,
                    "queryType": "traceql",
                    "query": query,
                    "tableType": "spans",
                    "limit": 50,
                }
            ],
            "range": {"from": "${__from}", "to": "${__to}"},
        }
    }
    # Grafana fills in the variables of a link, so their braces must survive the quoting.
    quoted = quote(json.dumps(pane, separators=(",", ":")))
    return "/explore?schemaVersion=1&panes=" + _QUOTED_VARIABLE.sub(_unquote, quoted)


_QUOTED_VARIABLE: Final = re.compile(r"%24%7B([\w.]+?)(?:%3A(\w+))?%7D")
"""``${name}`` or ``${name:format}`` after URL quoting."""


def _unquote(match: re.Match[str]) -> str:
    name, form = match.groups()
    return f"${{{name}:{form}}}" if form else f"${{{name}}}"

"""A small generator of classic Grafana dashboards (schema version 39, Grafana 10.4 to 13): one function for each kind of panel.

Everything a panel must have is a parameter without a default: title, meaning, unit, queries, and what no data means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from otel_kvpolicy.telemetry import names

from .queries import label

JSON = dict[str, Any]

PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
TEMPO: Final = {"type": "tempo", "uid": "${tempo}"}
GRID: Final = 24
TAG: Final = "kvpolicy"

COLOURS: Final[Mapping[str, str]] = {
    "store": "blue",
    "skip": "orange",
    "skip ratio, calls": "dark-orange",
    "skip ratio, tokens": "orange",
    "skip sent, tokens": "orange",
    "L1": "green",
    "L2": "purple",
    "L1 hit rate": "green",
    "L2 hit rate": "purple",
    "L1 + L2 hit rate": "blue",
    "miss": "#808080",
    "evicted": "red",
    "evicted from L1": "red",
    "evicted from L2": "purple",
    "applied": "blue",
    "observed": "yellow",
    "caller": "purple",
    "excluded_target": "#808080",
    "rejected": "red",
    "error": "dark-red",
    "disabled": "semi-dark-yellow",
}
"""One colour for each meaning, on every dashboard; palette names and mid grey read well on light and on dark."""


@dataclass(frozen=True)
class Query:
    """A query of a panel."""

    expr: str
    legend: str
    exemplar: bool = False
    heat: bool = False


@dataclass(frozen=True)
class Threshold:
    """From this value on, the colour."""

    value: float
    colour: str


@dataclass(frozen=True)
class Panel:
    """A panel before it is placed."""

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
    """A template variable that asks Prometheus for label values."""

    name: str
    label: str
    query: str
    meaning: str
    regex: str = ""


@dataclass(frozen=True)
class Choice:
    """A template variable with fixed values."""

    name: str
    label: str
    values: Sequence[str]
    meaning: str


@dataclass(frozen=True)
class Link:
    """A data link."""

    title: str
    url: str


@dataclass
class _Placer:
    """Gives ids and positions: panels from left to right, a new line where the next does not fit."""

    y: int = 0
    next_id: int = 1
    placed: list[JSON] = field(default_factory=list)

    def row(self, row: Row) -> None:
        head: JSON = {"type": "row", "title": row.title, "collapsed": row.collapsed, "panels": []}
        self.placed.append(self._at(head, 0, GRID, 1))
        self.y += 1
        inside = list(self._lines(row.panels))
        if row.collapsed:
            head["panels"] = inside
        else:
            self.placed.extend(inside)

    def _lines(self, panels: Sequence[Panel]) -> Iterator[JSON]:
        x = line = 0
        for panel in panels:
            if x + panel.width > GRID:
                self.y, x, line = self.y + line, 0, 0
            yield self._at(dict(panel.body), x, panel.width, panel.height)
            x, line = x + panel.width, max(line, panel.height)
        self.y += line

    def _at(self, body: JSON, x: int, width: int, height: int) -> JSON:
        body["id"] = self.next_id
        self.next_id += 1
        body["gridPos"] = {"h": height, "w": width, "x": x, "y": self.y}
        return body


_NAME: Final = re.compile(r"(?:[a-zA-Z_][a-zA-Z0-9_:]*)(?=\{|\[)")


def metric_names(exprs: Sequence[str]) -> list[str]:
    """Names of the series that expressions select, in order of appearance."""
    return list(dict.fromkeys(name for expr in exprs for name in _NAME.findall(expr)))


def _describe(meaning: str, nothing: str, exprs: Sequence[str]) -> str:
    found = metric_names(exprs)
    source = f"\n\nFrom: {', '.join(f'`{name}`' for name in found)}." if found else ""
    return f"{meaning}\n\nNo data: {nothing}{source}"


def _targets(queries: Sequence[Query], *, instant: bool = False, table: bool = False) -> list[JSON]:
    return [
        {
            "datasource": PROMETHEUS,
            "editorMode": "code",
            "exemplar": query.exemplar,
            "expr": query.expr,
            "format": "heatmap" if query.heat else "table" if table else "time_series",
            "instant": instant,
            "legendFormat": query.legend,
            "range": not instant,
            "refId": chr(ord("A") + index),
        }
        for index, query in enumerate(queries)
    ]


def _thresholds(steps: Sequence[Threshold], base: str) -> JSON:
    # Grafana's own types insist on the null of the first step.
    return {
        "mode": "absolute",
        "steps": [
            {"color": base, "value": None},
            *({"color": s.colour, "value": s.value} for s in steps),
        ],
    }


_VALUES: Final[Mapping[str, Sequence[str]]] = {
    label(names.DECISION): (names.STORE, names.SKIP),
    label(names.HINT_OUTCOME): (
        "applied",
        "observed",
        "caller",
        "excluded_target",
        "rejected",
        "error",
        "disabled",
    ),
}
"""What a legend made of this label can read."""


def _overrides(queries: Sequence[Query], extra: Mapping[str, str]) -> list[JSON]:
    colours = {**COLOURS, **extra}
    shown = [
        *(query.legend for query in queries),
        *(name for name in extra if name not in {query.legend for query in queries}),
    ]
    shown += [
        value for key, values in _VALUES.items() for value in values if f"{{{{{key}}}}}" in shown
    ]
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [
                {"id": "color", "value": {"fixedColor": colours[name], "mode": "fixed"}}
            ],
        }
        for name in shown
        if name in colours
    ]


def _body(kind: str, title: str, meaning: str, nothing: str, queries: Sequence[Query]) -> JSON:
    return {
        "type": kind,
        "title": title,
        "description": _describe(meaning, nothing, [query.expr for query in queries]),
        "datasource": PROMETHEUS,
    }


def _links(links: Sequence[Link]) -> list[JSON]:
    return [{"title": link.title, "url": link.url, "targetBlank": True} for link in links]


def timeseries(
    title: str,
    meaning: str,
    unit: str,
    queries: Sequence[Query],
    nothing: str,
    *,
    width: int = 12,
    height: int = 8,
    low: float | None = 0,
    high: float | None = None,
    stack: bool = False,
    thresholds: Sequence[Threshold] = (),
    colours: Mapping[str, str] | None = None,
    links: Sequence[Link] = (),
    points: bool = False,
) -> Panel:
    """Lines over time."""
    body = _body("timeseries", title, meaning, nothing, queries)
    custom: JSON = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1 if stack else 2,
        "fillOpacity": 60 if stack else 8,
        "showPoints": "always" if points else "auto",
        "pointSize": 5,
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stack else "none"},
        "thresholdsStyle": {"mode": "line" if thresholds else "off"},
        "axisPlacement": "auto",
        "axisLabel": "",
    }
    defaults: JSON = {
        "unit": unit,
        "noValue": nothing,
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "mappings": [],
        "links": _links(links),
        "thresholds": _thresholds(thresholds, "blue"),
    }
    if low is not None:
        defaults["min"] = low
    if high is not None:
        defaults["max"] = high
    body |= {
        "targets": _targets(queries),
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(queries, colours or {})},
        "options": {
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["mean", "max", "lastNotNull"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
    return Panel(body, width, height)


def stat(
    title: str,
    meaning: str,
    unit: str,
    queries: Sequence[Query],
    nothing: str,
    *,
    width: int = 4,
    height: int = 4,
    low: float | None = None,
    high: float | None = None,
    base: str = "blue",
    thresholds: Sequence[Threshold] = (),
    states: Mapping[int, tuple[str, str]] | None = None,
    decimals: int | None = None,
    background: bool = False,
    instant: bool = True,
    by_name: bool = False,
) -> Panel:
    """A number, or a state in words."""
    body = _body("stat", title, meaning, nothing, queries)
    mappings = []
    if states:
        options = {
            str(value): {"text": words, "color": colour, "index": index}
            for index, (value, (words, colour)) in enumerate(states.items())
        }
        mappings.append({"type": "value", "options": options})
    defaults: JSON = {
        "unit": unit,
        "noValue": nothing,
        "color": {"mode": "thresholds"},
        "mappings": mappings,
        "thresholds": _thresholds(thresholds, base),
    }
    for key, value in (("min", low), ("max", high), ("decimals", decimals)):
        if value is not None:
            defaults[key] = value
    body |= {
        "targets": _targets(queries, instant=instant),
        "fieldConfig": {
            "defaults": defaults,
            "overrides": _overrides(queries, {}) if by_name else [],
        },
        "options": {
            "colorMode": "background" if background else "value",
            "graphMode": "none" if instant else "area",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name"
            if len(queries) > 1 or "{{" in queries[0].legend
            else "value",
            "wideLayout": True,
        },
    }
    return Panel(body, width, height)


def heatmap(
    title: str,
    meaning: str,
    unit: str,
    query: Query,
    nothing: str,
    *,
    width: int = 12,
    height: int = 8,
) -> Panel:
    """A histogram's buckets over time."""
    body = _body("heatmap", title, meaning, nothing, [query])
    body |= {
        "targets": _targets([query]),
        "fieldConfig": {
            "defaults": {
                "custom": {"scaleDistribution": {"type": "linear"}},
                "unit": unit,
                "noValue": nothing,
            },
            "overrides": [],
        },
        "options": {
            "calculate": False,
            "cellGap": 1,
            "color": {
                "mode": "scheme",
                "scheme": "Oranges",
                "steps": 32,
                "reverse": False,
                "exponent": 0.5,
                "fill": "orange",
                "scale": "exponential",
            },
            "exemplars": {"color": "rgba(128,128,255,0.8)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
        },
    }
    return Panel(body, width, height)


def xychart(
    title: str,
    meaning: str,
    unit: str,
    queries: Sequence[Query],
    nothing: str,
    *,
    width: int = 12,
    height: int = 9,
) -> Panel:
    """The first query against the others, point by point in time.

    Written in the options of Grafana 10.4; later ones migrate them, as long as the panel names no later plugin version.
    """
    x, *ys = queries
    body = _body("xychart", title, meaning, nothing, queries)
    body |= {
        "pluginVersion": "10.4.0",
        "targets": _targets(queries),
        "transformations": [{"id": "joinByField", "options": {"byField": "Time", "mode": "inner"}}],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "max": 1,
                "noValue": nothing,
                "color": {"mode": "palette-classic"},
                "custom": {
                    "show": "points",
                    "pointSize": {"fixed": 6},
                    "axisPlacement": "auto",
                    "axisLabel": "",
                },
            },
            "overrides": _overrides(queries, {}),
        },
        "options": {
            "seriesMapping": "manual",
            "dims": {"frame": 0, "x": x.legend},
            "series": [
                {
                    "name": y.legend,
                    "x": x.legend,
                    "y": y.legend,
                    "pointColor": {"fixed": COLOURS[y.legend]},
                }
                for y in ys
            ],
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }
    return Panel(body, width, height)


def table(
    title: str,
    meaning: str,
    unit: str,
    queries: Sequence[Query],
    nothing: str,
    *,
    width: int = 12,
    height: int = 8,
    links: Sequence[Link] = (),
) -> Panel:
    """Labels and a number, one row for each series."""
    body = _body("table", title, meaning, nothing, queries)
    body |= {
        "targets": _targets(queries, instant=True, table=True),
        "transformations": [
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "renameByName": {"Value": queries[0].legend},
                },
            }
        ],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "decimals": 0,
                "noValue": nothing,
                "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True},
                "links": _links(links),
            },
            "overrides": [],
        },
        "options": {
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [{"displayName": queries[0].legend, "desc": True}],
        },
    }
    return Panel(body, width, height)


def traces(
    title: str,
    meaning: str,
    query: str,
    nothing: str,
    *,
    width: int = 24,
    height: int = 12,
    links: Sequence[Link] = (),
) -> Panel:
    """A table of spans that Tempo finds."""
    body: JSON = {
        "type": "table",
        "title": title,
        "description": _describe(meaning, nothing, []),
        "datasource": TEMPO,
        "targets": [
            {
                "datasource": TEMPO,
                "queryType": "traceql",
                "query": query,
                "tableType": "spans",
                "limit": 100,
                "spss": 10,
                "refId": "A",
            }
        ],
        "fieldConfig": {
            "defaults": {
                "unit": "none",
                "noValue": nothing,
                "custom": {
                    "align": "auto",
                    "cellOptions": {"type": "auto", "wrapText": True},
                    "filterable": True,
                },
            },
            "overrides": [
                {
                    "matcher": {"id": "byName", "options": name},
                    "properties": [{"id": "links", "value": _links(links)}],
                }
                for name in ("Trace ID", "traceID", "traceIdHidden")
            ]
            + [
                {
                    "matcher": {"id": "byName", "options": "kvpolicy.explanation"},
                    "properties": [{"id": "custom.width", "value": 520}],
                },
                {
                    "matcher": {"id": "byName", "options": "Duration"},
                    "properties": [{"id": "unit", "value": "ns"}],
                },
            ],
        },
        "options": {"showHeader": True, "cellHeight": "sm"},
    }
    return Panel(body, width, height)


def trace_metrics(
    title: str,
    meaning: str,
    unit: str,
    queries: Sequence[tuple[str, str]],
    nothing: str,
    *,
    width: int = 12,
    height: int = 8,
) -> Panel:
    """Lines over time that Tempo computes from spans (TraceQL metrics)."""
    shape = timeseries(
        title,
        meaning,
        unit,
        [Query("", legend) for _, legend in queries],
        nothing,
        width=width,
        height=height,
    )
    body = dict(shape.body)
    body["datasource"] = TEMPO
    body["targets"] = [
        {
            "datasource": TEMPO,
            "queryType": "traceql",
            "query": query,
            "metricsQueryType": "range",
            "tableType": "traces",
            "refId": chr(ord("A") + index),
        }
        for index, (query, _) in enumerate(queries)
    ]
    overrides = [
        {
            "matcher": {"id": "byFrameRefID", "options": chr(ord("A") + index)},
            "properties": [{"id": "displayName", "value": legend}],
        }
        for index, (_, legend) in enumerate(queries)
    ]
    body["fieldConfig"] = {**body["fieldConfig"], "overrides": overrides}
    return Panel(body, width, height)


def text(title: str, content: str, *, width: int = 24, height: int = 3) -> Panel:
    """Words, as Markdown."""
    body: JSON = {
        "type": "text",
        "title": title,
        "description": "How to read this dashboard.",
        "options": {"mode": "markdown", "content": content},
        "fieldConfig": {"defaults": {}, "overrides": []},
    }
    return Panel(body, width, height)


def explore(query: str) -> str:
    """A link to Grafana's Explore with a TraceQL query, over the dashboard's time range."""
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
    # Grafana interpolates variables in the address, so their braces must survive the quoting.
    quoted = quote(json.dumps(pane, separators=(",", ":")))
    return "/explore?schemaVersion=1&panes=" + re.sub(
        r"%24%7B([\w.]+?)(?:%3A(\w+))?%7D", _variable, quoted
    )


def _variable(found: re.Match[str]) -> str:
    return f"${{{found[1]}:{found[2]}}}" if found[2] else f"${{{found[1]}}}"


def _datasource(name: str, label: str, kind: str) -> JSON:
    return {
        "type": "datasource",
        "name": name,
        "label": label,
        "query": kind,
        "regex": "",
        "refresh": 1,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "skipUrlSync": False,
    }


def _query_variable(variable: Variable) -> JSON:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "description": variable.meaning,
        "datasource": PROMETHEUS,
        "definition": variable.query,
        "query": variable.query,
        "regex": variable.regex,
        # On every change of the time range: what was there last week must be selectable when looking at last week.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Not the list of values: a series without the label must be matched too.
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
        "skipUrlSync": False,
    }


def _choice_variable(choice: Choice) -> JSON:
    first = choice.values[0]
    return {
        "type": "custom",
        "name": choice.name,
        "label": choice.label,
        "description": choice.meaning,
        "query": ",".join(choice.values),
        "options": [
            {"selected": value == first, "text": value, "value": value} for value in choice.values
        ],
        "current": {"selected": True, "text": first, "value": first},
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "skipUrlSync": False,
    }


def dashboard(
    uid: str,
    title: str,
    meaning: str,
    rows: Sequence[Row],
    variables: Sequence[Variable | Choice],
    *,
    tempo: bool,
    span: str = "now-6h",
    annotations: Sequence[tuple[str, str, str]] = (),
) -> JSON:
    """A whole dashboard: variables, links to its siblings, annotations and placed panels."""
    placer = _Placer()
    for row in rows:
        placer.row(row)
    notes: list[JSON] = [
        {
            "name": name,
            "datasource": PROMETHEUS,
            "enable": True,
            "hide": False,
            "iconColor": colour,
            # Grafana 10 reads the query here, later ones in target.
            "expr": expr,
            "target": {"refId": "Anno", "expr": expr},
            "step": "60s",
            "titleFormat": "{{alertname}}",
            "textFormat": "{{alertstate}}",
        }
        for name, expr, colour in annotations
    ]
    return {
        "uid": uid,
        "title": title,
        "description": meaning,
        "tags": [TAG],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        # Shared crosshair: the point of these dashboards is to see things happen at the same time.
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": span, "to": "now"},
        "timepicker": {},
        "refresh": "30s",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "weekStart": "",
        "links": [
            {
                "type": "dashboards",
                "title": "KV policy",
                "tags": [TAG],
                "asDropdown": False,
                "icon": "external link",
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "tooltip": "The other dashboards, with the same variables and time range",
                "url": "",
            }
        ],
        "annotations": {"list": notes},
        "templating": {
            "list": [
                _datasource("datasource", "Prometheus", "prometheus"),
                *([_datasource("tempo", "Tempo", "tempo")] if tempo else []),
                *(
                    _query_variable(v) if isinstance(v, Variable) else _choice_variable(v)
                    for v in variables
                ),
            ]
        },
        "panels": placer.placed,
    }

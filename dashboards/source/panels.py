"""One function for each kind of panel.

Everything a panel must have is a parameter without a default: title, meaning, unit, queries, and
what no data means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from otel_kvpolicy.telemetry import names

from .common import COLORS, color_overrides
from .model import JSON, PROMETHEUS, TEMPO, Link, Panel, Query, Threshold


def timeseries(
    title: str,
    meaning: str,
    unit: str,
    queries: Sequence[Query],
    no_data: str,
    *,
    width: int = 12,
    height: int = 8,
    low: float | None = 0,
    high: float | None = None,
    stack: bool = False,
    thresholds: Sequence[Threshold] = (),
    colors: Mapping[str, str] | None = None,
    links: Sequence[Link] = (),
) -> Panel:
    """Return a graph over time.

    Args:
        title: title.
        meaning: what the panel shows.
        unit: Grafana's name of the unit.
        queries: one or more series each.
        no_data: what it means if there is no data.
        width: columns of the grid.
        height: rows of the grid.
        low: lower end of the axis; None to fit the data.
        high: upper end of the axis; None to fit the data.
        stack: whether to stack the series.
        thresholds: lines across the graph.
        colors: colors by legend, in addition to the ones that all dashboards share.
        links: what a click on a point offers.
    """
    body = _body("timeseries", title, meaning, no_data, queries)
    custom: JSON = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1 if stack else 2,
        "fillOpacity": 60 if stack else 8,
        "showPoints": "auto",
        "pointSize": 5,
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stack else "none"},
        "thresholdsStyle": {"mode": "line" if thresholds else "off"},
        "axisPlacement": "auto",
        "axisLabel": "",
    }
    defaults: JSON = {
        "unit": unit,
        "noValue": no_data,
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "mappings": [],
        "links": _links(links),
        "thresholds": _thresholds(thresholds, "blue"),
        **_given(min=low, max=high),
    }
    body |= {
        "targets": _targets(queries),
        "fieldConfig": {"defaults": defaults, "overrides": color_overrides(queries, colors or {})},
        "options": {
            "legend": _legend("table", "mean", "max", "lastNotNull"),
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
    return Panel(body, width, height)


def stat(
    title: str,
    meaning: str,
    unit: str,
    queries: Sequence[Query],
    no_data: str,
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
) -> Panel:
    """Return a single number, or a state in words.

    Args:
        title: title.
        meaning: what the panel shows.
        unit: Grafana's name of the unit.
        queries: one number each.
        no_data: what it means if there is no data.
        width: columns of the grid.
        height: rows of the grid.
        low: smallest possible value.
        high: largest possible value.
        base: color below the first threshold.
        thresholds: colors from a value up.
        states: text and color that replace a value.
        decimals: digits after the point.
        background: whether to color the background instead of the number.
    """
    body = _body("stat", title, meaning, no_data, queries)
    mappings = []
    if states:
        options = {
            str(value): {"text": words, "color": color, "index": index}
            for index, (value, (words, color)) in enumerate(states.items())
        }
        mappings.append({"type": "value", "options": options})
    several = len(queries) > 1 or "{{" in queries[0].legend
    body |= {
        "targets": _targets(queries, instant=True),
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "noValue": no_data,
                "color": {"mode": "thresholds"},
                "mappings": mappings,
                "thresholds": _thresholds(thresholds, base),
                **_given(min=low, max=high, decimals=decimals),
            },
            "overrides": [],
        },
        "options": {
            "colorMode": "background" if background else "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name" if several else "value",
            "wideLayout": True,
        },
    }
    return Panel(body, width, height)


def heatmap(
    title: str,
    meaning: str,
    unit: str,
    query: Query,
    no_data: str,
    *,
    width: int = 12,
    height: int = 8,
) -> Panel:
    """Return a heatmap of a histogram's buckets over time; parameters as in `timeseries`."""
    body = _body("heatmap", title, meaning, no_data, [query])
    body |= {
        "targets": _targets([query]),
        "fieldConfig": {
            "defaults": {
                "custom": {"scaleDistribution": {"type": "linear"}},
                "unit": unit,
                "noValue": no_data,
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
    no_data: str,
    *,
    width: int = 12,
    height: int = 9,
) -> Panel:
    """Return a scatter plot of the other queries over the first one; parameters as in `timeseries`.

    It has the options of Grafana 10.4. Later versions migrate them, as long as the panel does not
    name a later plugin version.
    """
    x, *ys = queries
    body = _body("xychart", title, meaning, no_data, queries)
    body |= {
        "pluginVersion": "10.4.0",
        "targets": _targets(queries),
        "transformations": [{"id": "joinByField", "options": {"byField": "Time", "mode": "inner"}}],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "max": 1,
                "noValue": no_data,
                "color": {"mode": "palette-classic"},
                "custom": {
                    "show": "points",
                    "pointSize": {"fixed": 6},
                    "axisPlacement": "auto",
                    "axisLabel": "",
                },
            },
            "overrides": color_overrides(queries, {}),
        },
        "options": {
            "seriesMapping": "manual",
            "dims": {"frame": 0, "x": x.legend},
            "series": [
                {
                    "name": y.legend,
                    "x": x.legend,
                    "y": y.legend,
                    "pointColor": {"fixed": COLORS[y.legend]},
                }
                for y in ys
            ],
            "legend": _legend("list"),
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }
    return Panel(body, width, height)


def table(
    title: str,
    meaning: str,
    unit: str,
    query: Query,
    no_data: str,
    *,
    width: int = 12,
    height: int = 8,
    links: Sequence[Link] = (),
) -> Panel:
    """Return a table of labels and a number, one row per series; parameters as in `timeseries`."""
    body = _body("table", title, meaning, no_data, [query])
    body |= {
        "targets": _targets([query], instant=True, form="table"),
        "transformations": [
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "renameByName": {"Value": query.legend},
                },
            }
        ],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "decimals": 0,
                "noValue": no_data,
                "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True},
                "links": _links(links),
            },
            "overrides": [],
        },
        "options": {
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [{"displayName": query.legend, "desc": True}],
        },
    }
    return Panel(body, width, height)


def traces(
    title: str,
    meaning: str,
    query: str,
    no_data: str,
    *,
    width: int = 24,
    height: int = 12,
    links: Sequence[Link] = (),
) -> Panel:
    """Return a table of the spans that Tempo finds for a TraceQL query.

    The links are offered on each trace ID; other parameters as in `timeseries`.
    """
    body: JSON = {
        "type": "table",
        "title": title,
        "description": _describe(meaning, no_data, []),
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
                "noValue": no_data,
                "custom": {
                    "align": "auto",
                    "cellOptions": {"type": "auto", "wrapText": True},
                    "filterable": True,
                },
            },
            "overrides": [
                *(
                    _override("byName", name, "links", _links(links))
                    for name in ("Trace ID", "traceID", "traceIdHidden")
                ),
                _override("byName", names.EXPLANATION, "custom.width", 520),
                _override("byName", "Duration", "unit", "ns"),
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
    no_data: str,
    *,
    width: int = 12,
    height: int = 8,
) -> Panel:
    """Return a graph over time that Tempo computes from spans (TraceQL metrics).

    Args:
        title: title.
        meaning: what the panel shows.
        unit: Grafana's name of the unit.
        queries: TraceQL and legend of each series.
        no_data: what it means if there is no data.
        width: columns of the grid.
        height: rows of the grid.
    """
    legends = [Query("", legend) for _, legend in queries]
    body = dict(timeseries(title, meaning, unit, legends, no_data, width=width, height=height).body)
    body["datasource"] = TEMPO
    body["targets"] = [
        {
            "datasource": TEMPO,
            "queryType": "traceql",
            "query": query,
            "metricsQueryType": "range",
            "tableType": "traces",
            "refId": _ref_id(index),
        }
        for index, (query, _) in enumerate(queries)
    ]
    overrides = [
        _override("byFrameRefID", _ref_id(index), "displayName", legend)
        for index, (_, legend) in enumerate(queries)
    ]
    body["fieldConfig"] = {**body["fieldConfig"], "overrides": overrides}
    return Panel(body, width, height)


def text(title: str, content: str, *, width: int = 24, height: int = 3) -> Panel:
    """Return a panel of Markdown."""
    body: JSON = {
        "type": "text",
        "title": title,
        "description": "How to read this dashboard.",
        "options": {"mode": "markdown", "content": content},
        "fieldConfig": {"defaults": {}, "overrides": []},
    }
    return Panel(body, width, height)


_SELECTED_NAME: Final = re.compile(r"(?:[a-zA-Z_][a-zA-Z0-9_:]*)(?=\{|\[)")


def metric_names(exprs: Sequence[str]) -> list[str]:
    """Return the names of the series that expressions select, in order of appearance."""
    return list(dict.fromkeys(name for expr in exprs for name in _SELECTED_NAME.findall(expr)))


def _body(kind: str, title: str, meaning: str, no_data: str, queries: Sequence[Query]) -> JSON:
    return {
        "type": kind,
        "title": title,
        "description": _describe(meaning, no_data, [query.expr for query in queries]),
        "datasource": PROMETHEUS,
    }


def _describe(meaning: str, no_data: str, exprs: Sequence[str]) -> str:
    sources = ", ".join(f"`{name}`" for name in metric_names(exprs))
    return f"{meaning}\n\nNo data: {no_data}" + (f"\n\nFrom: {sources}." if sources else "")


def _targets(
    queries: Sequence[Query], *, instant: bool = False, form: str = "time_series"
) -> list[JSON]:
    return [
        {
            "datasource": PROMETHEUS,
            "editorMode": "code",
            "exemplar": query.exemplar,
            "expr": query.expr,
            "format": "heatmap" if query.heat else form,
            "instant": instant,
            "legendFormat": query.legend,
            "range": not instant,
            "refId": _ref_id(index),
        }
        for index, query in enumerate(queries)
    ]


def _ref_id(index: int) -> str:
    return chr(ord("A") + index)


def _thresholds(steps: Sequence[Threshold], base: str) -> JSON:
    # Grafana's types require the null of the first step.
    return {
        "mode": "absolute",
        "steps": [
            {"color": base, "value": None},
            *({"color": step.color, "value": step.value} for step in steps),
        ],
    }


def _override(matcher: str, name: str, key: str, value: object) -> JSON:
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [{"id": key, "value": value}],
    }


def _legend(mode: str, *calcs: str) -> JSON:
    return {
        "displayMode": mode,
        "placement": "bottom",
        "showLegend": True,
        "calcs": list(calcs),
    }


def _links(links: Sequence[Link]) -> list[JSON]:
    return [{"title": link.title, "url": link.url, "targetBlank": True} for link in links]


def _given(**values: float | None) -> JSON:
    return {key: value for key, value in values.items() if value is not None}

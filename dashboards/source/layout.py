"""Assemble a Grafana dashboard (classic JSON, schema version 39, Grafana 10.4 to 13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from .common import TAG
from .model import JSON, PROMETHEUS, Annotation, Choice, Panel, Row, Variable

GRID: Final = 24
"""Columns of Grafana's grid."""


def dashboard(
    uid: str,
    title: str,
    meaning: str,
    rows: Sequence[Row],
    variables: Sequence[Variable | Choice],
    *,
    tempo: bool,
    start: str = "now-6h",
    annotations: Sequence[Annotation] = (),
) -> JSON:
    """Return a whole dashboard: variables, links to the other dashboards, annotations, panels.

    Args:
        uid: identifier in Grafana's addresses.
        title: title.
        meaning: description.
        rows: rows of panels, from top to bottom.
        variables: template variables besides the data sources.
        tempo: whether any panel or link needs a Tempo data source.
        start: start of the time range; it ends now.
        annotations: events to draw over the graphs.
    """
    placer = _Placer()
    for row in rows:
        placer.place(row)
    return {
        "uid": uid,
        "title": title,
        "description": meaning,
        "tags": [TAG],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        # Shared crosshair: these dashboards show what happens at the same time.
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": start, "to": "now"},
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
        "annotations": {"list": [_annotation(one) for one in annotations]},
        "templating": {
            "list": [
                _datasource("datasource", "Prometheus", "prometheus"),
                *([_datasource("tempo", "Tempo", "tempo")] if tempo else []),
                *(
                    _query_variable(one) if isinstance(one, Variable) else _choice_variable(one)
                    for one in variables
                ),
            ]
        },
        "panels": placer.placed,
    }


@dataclass
class _Placer:
    """Gives panels their ids and positions: left to right, then on a new line."""

    y: int = 0
    next_id: int = 1
    placed: list[JSON] = field(default_factory=list)

    def place(self, row: Row) -> None:
        head: JSON = {"type": "row", "title": row.title, "collapsed": row.collapsed, "panels": []}
        self.placed.append(self._positioned(head, 0, GRID, 1))
        self.y += 1
        panels = list(self._lines(row.panels))
        if row.collapsed:
            head["panels"] = panels
        else:
            self.placed.extend(panels)

    def _lines(self, panels: Sequence[Panel]) -> Iterator[JSON]:
        x = line = 0
        for panel in panels:
            if x + panel.width > GRID:
                self.y, x, line = self.y + line, 0, 0
            yield self._positioned(dict(panel.body), x, panel.width, panel.height)
            x, line = x + panel.width, max(line, panel.height)
        self.y += line

    def _positioned(self, body: JSON, x: int, width: int, height: int) -> JSON:
        body["id"] = self.next_id
        self.next_id += 1
        body["gridPos"] = {"h": height, "w": width, "x": x, "y": self.y}
        return body


def _annotation(annotation: Annotation) -> JSON:
    return {
        "name": annotation.name,
        "datasource": PROMETHEUS,
        "enable": True,
        "hide": False,
        "iconColor": annotation.color,
        # Grafana 10 reads the query here, later versions in target.
        "expr": annotation.expr,
        "target": {"refId": "Anno", "expr": annotation.expr},
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{alertstate}}",
    }


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
        # On every change of the time range, so that last week's values can be selected when looking
        # at last week.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Not the list of values: it must match series without the label, too.
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

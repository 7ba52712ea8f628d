"""The dashboards match Grafana's own schema and the rules of a good dashboard."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dashboards.source import limits
from dashboards.source.common import TAG
from dashboards.source.queries import NAMES_STATES
from otel_kvpolicy.cli.explain.command import command as explain

from .built import ALL_RULES, DASHBOARDS, is_prometheus, panels

SCHEMA = Path(__file__).parents[1] / "data" / "grafana_dashboard.jsonschema.json"
EVERY_DASHBOARD = pytest.mark.parametrize(
    "dashboard", DASHBOARDS.values(), ids=[one["uid"] for one in DASHBOARDS.values()]
)
UNITS = {
    "percentunit",
    "percent",
    "short",
    "s",
    "reqps",
    "ops",
    "bytes",
    "Bps",
    "watt",
    "celsius",
    "hertz",
    "none",
}
PALETTE = re.compile(
    r"(super-light-|light-|semi-dark-|dark-)?(red|orange|yellow|green|blue|purple)|#808080"
)
UNBOUNDED = {"Does LMCache honor the hint?"}
"""Graphs whose ratio can exceed 1."""


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    """Grafana's schema, with three corrections.

    In these places it takes what Grafana's TypeScript calls unknown for an object.
    """
    content = json.loads(SCHEMA.read_text())
    parts = content["definitions"]
    parts["MatcherConfig"]["properties"]["options"] = {}
    parts["DynamicConfigValue"]["properties"]["value"] = {}
    parts["FieldConfig"]["properties"]["links"] = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["title", "url"],
            "properties": {
                "title": {"type": "string"},
                "url": {"type": "string"},
                "targetBlank": {"type": "boolean"},
            },
            "additionalProperties": False,
        },
    }
    return jsonschema.Draft7Validator(content)


@EVERY_DASHBOARD
def test_dashboards_match_grafanas_schema(
    dashboard: dict[str, Any], schema: jsonschema.Draft7Validator
) -> None:
    schema.validate(dashboard)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("titel",), "KV policy"),
        (("panels", 1, "gridPos", "w"), "12"),
        (("templating", "list", 0, "refresh"), 7),
        (("links", 0, "typ"), 1),
    ],
)
def test_the_schema_finds_a_mistake(
    path: tuple[Any, ...], value: Any, schema: jsonschema.Draft7Validator
) -> None:
    wrong = json.loads(json.dumps(next(iter(DASHBOARDS.values()))))
    part = wrong
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(wrong)


@EVERY_DASHBOARD
def test_settings_of_a_dashboard(dashboard: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z0-9-]{1,40}", dashboard["uid"])
    assert dashboard["title"]
    assert len(dashboard["description"]) > 40
    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] == 39
    assert "id" not in dashboard, "an id would clash with an existing dashboard"
    assert dashboard["tags"] == [TAG]
    assert dashboard["graphTooltip"] == 1
    assert dashboard["refresh"]
    (link,) = dashboard["links"]
    assert (link["tags"], link["includeVars"], link["keepTime"]) == ([TAG], True, True)


def test_uids_and_titles_are_unique() -> None:
    for key in ("uid", "title"):
        assert len({one[key] for one in DASHBOARDS.values()}) == len(DASHBOARDS)


@EVERY_DASHBOARD
def test_no_data_source_is_hard_coded(dashboard: dict[str, Any]) -> None:
    uids = set(re.findall(r'"uid": "([^"]+)"', json.dumps({**dashboard, "uid": ""})))
    assert uids <= {"${datasource}", "${tempo}"}
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert {uid.strip("${}") for uid in uids} <= variables


@EVERY_DASHBOARD
def test_variables(dashboard: dict[str, Any], subtests: pytest.Subtests) -> None:
    variables = dashboard["templating"]["list"]
    assert variables[0]["type"] == "datasource"
    assert variables[0]["query"] == "prometheus"
    names = [variable["name"] for variable in variables]
    assert len(set(names)) == len(names)
    text = json.dumps(dashboard["panels"])
    for variable in variables:
        with subtests.test(variable["name"]):
            assert variable["label"]
            if variable["type"] == "query":
                assert variable["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
                assert variable["refresh"] == 2, "on every change of the time range"
                assert variable["multi"]
                assert variable["includeAll"]
                assert variable["allValue"] == ".*"
                assert variable["description"]
            name = variable["name"]
            assert f"${name}" in text or f"${{{name}}}" in text, "the variable selects nothing"
    used = set(re.findall(r"\$\{?([a-z]\w*)\b(?!\.)", text)) - {"labels", "value"}
    assert used <= set(names), "a variable that does not exist"


@EVERY_DASHBOARD
def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    shown = [
        *dashboard["panels"],
        *(p for row in dashboard["panels"] if row["type"] == "row" for p in row["panels"]),
    ]
    ids = [panel["id"] for panel in shown]
    assert len(set(ids)) == len(ids)
    for panel in shown:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert place["h"] >= (1 if panel["type"] == "row" else 3)
    for one, other in combinations([panel["gridPos"] for panel in shown], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, f"{one} and {other} overlap"


@EVERY_DASHBOARD
def test_panels_fill_every_line(dashboard: dict[str, Any]) -> None:
    widths: dict[int, int] = {}
    for panel in panels(dashboard):
        place = panel["gridPos"]
        widths[place["y"]] = widths.get(place["y"], 0) + place["w"]
    assert set(widths.values()) == {24}, widths


@EVERY_DASHBOARD
def test_panels_say_what_they_show(dashboard: dict[str, Any], subtests: pytest.Subtests) -> None:
    for panel in panels(dashboard):
        with subtests.test(panel["title"]):
            assert panel["title"]
            assert len(panel["title"]) <= 60
            assert panel["description"]
            if panel["type"] == "text":
                assert panel["options"]["content"]
            else:
                _check_display(panel)


def _check_display(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    assert defaults["noValue"], "what no data means"
    assert f"No data: {defaults['noValue']}" in panel["description"]
    is_graph = panel["type"] in ("timeseries", "xychart")
    if defaults["unit"] == "percentunit" and is_graph and panel["title"] not in UNBOUNDED:
        assert (defaults["min"], defaults["max"]) == (0, 1)
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["showLegend"]
        assert panel["options"]["tooltip"]["mode"] == "multi"
        if panel["datasource"]["type"] == "prometheus":
            assert all(target["legendFormat"] for target in panel["targets"])


@EVERY_DASHBOARD
def test_targets(dashboard: dict[str, Any], subtests: pytest.Subtests) -> None:
    for panel in panels(dashboard):
        if panel["type"] == "text":
            continue
        with subtests.test(panel["title"]):
            assert panel["targets"]
            assert panel["datasource"]["uid"] in ("${datasource}", "${tempo}")
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs)
            for target in panel["targets"]:
                assert target["datasource"] == panel["datasource"]
                if panel["datasource"]["type"] == "prometheus":
                    assert target["instant"] != target["range"]
                    is_graph = panel["type"] in ("timeseries", "xychart", "heatmap")
                    assert not is_graph or target["range"]
                    assert (target["format"] == "heatmap") == (panel["type"] == "heatmap")


@EVERY_DASHBOARD
def test_legends_tell_the_series_of_a_panel_apart(
    dashboard: dict[str, Any], subtests: pytest.Subtests
) -> None:
    for panel in filter(is_prometheus, panels(dashboard)):
        with subtests.test(panel["title"]):
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert len(set(legends)) == len(legends)


@EVERY_DASHBOARD
def test_thresholds_rise_and_colors_suit_both_themes(
    dashboard: dict[str, Any], subtests: pytest.Subtests
) -> None:
    for panel in panels(dashboard):
        with subtests.test(panel["title"]):
            defaults = panel["fieldConfig"]["defaults"]
            steps = defaults.get("thresholds", {}).get("steps", [])
            if steps:
                assert steps[0]["value"] is None, "Grafana's types require the first step's null"
                values = [step["value"] for step in steps[1:]]
                assert values == sorted(values)
            used = [step["color"] for step in steps]
            used += [
                state["color"]
                for mapping in defaults.get("mappings", [])
                for state in mapping["options"].values()
            ]
            used += [color for _, color in _series_colors(panel)]
            for color in used:
                assert PALETTE.fullmatch(color), f"{color} is not readable in both themes"


def _series_colors(panel: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (override["matcher"]["options"], part["value"]["fixedColor"])
        for override in panel["fieldConfig"]["overrides"]
        for part in override["properties"]
        if part["id"] == "color"
    ]


def test_a_meaning_has_the_same_color_everywhere() -> None:
    colors: dict[str, str] = {}
    for dashboard in DASHBOARDS.values():
        for panel in panels(dashboard):
            for name, color in _series_colors(panel):
                assert colors.setdefault(name, color) == color, name
    assert len(colors) > 15


@EVERY_DASHBOARD
def test_data_links_open_explore_on_tempo(
    dashboard: dict[str, Any], subtests: pytest.Subtests
) -> None:
    """Links have a TraceQL query and the dashboard's time range."""
    for panel in panels(dashboard):
        links = list(panel["fieldConfig"]["defaults"].get("links", []))
        for override in panel["fieldConfig"]["overrides"]:
            links += [
                link
                for part in override["properties"]
                if part["id"] == "links"
                for link in part["value"]
            ]
        for link in links:
            with subtests.test(panel["title"], link=link["title"]):
                assert link["title"]
                assert link["url"].startswith("/explore?schemaVersion=1&panes=%7B")
                assert "${tempo}" in link["url"]
                assert "${__from}" in link["url"]
                assert "%24" not in link["url"], "Grafana does not fill in a quoted variable"


def test_calls_link_to_explain_and_to_exemplars() -> None:
    text = json.dumps(list(DASHBOARDS.values()))
    assert "otel-kvpolicy explain ${__value.text}" in text
    assert "otel-kvpolicy explain TRACE_ID" in text
    assert '"exemplar": true' in text


def test_the_commands_that_panels_show_exist() -> None:
    accepted = {option for parameter in explain.params for option in parameter.opts}
    shown = re.findall(
        r"otel-kvpolicy explain [^\s`]+ (--\w+) http", json.dumps(list(DASHBOARDS.values()))
    )
    assert len(shown) >= 2
    assert set(shown) <= accepted


def test_panels_and_alerts_share_their_limits() -> None:
    """A change in limits.py moves the line of the panel and the condition of the alert."""
    alerts = {rule["alert"]: rule["expr"] for rule in ALL_RULES if "alert" in rule}
    lines = [
        step["value"]
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    ]
    assert f"< {limits.MEMORY_LOW_BYTES}" in alerts["GB10MemoryLow"]
    assert lines.count(limits.MEMORY_LOW_BYTES) == 2


def test_every_state_of_the_lmcache_metrics_panel_has_a_text() -> None:
    (panel,) = [
        panel
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        if panel["title"] == "LMCache metrics"
    ]
    asked = {int(state) for state in re.findall(r"(\d) \* group", panel["targets"][0]["expr"])}
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    assert asked == set(NAMES_STATES) == {int(value) for value in mapping["options"]}


def test_alerts_say_what_is_wrong_and_what_to_do(subtests: pytest.Subtests) -> None:
    for rule in ALL_RULES:
        if "alert" not in rule:
            continue
        with subtests.test(rule["alert"]):
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert set(rule["annotations"]) == {"summary", "description", "runbook"}
            assert all(len(words) > 20 for words in rule["annotations"].values())
            assert re.match(r"(KVPolicy|LMCache|GB10)", rule["alert"]), (
                "the dashboards' annotation selects alerts by these prefixes"
            )

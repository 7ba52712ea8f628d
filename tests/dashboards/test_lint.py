"""The dashboards keep the rules of good dashboards, and Grafana's own schema."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dashboards.source import limits
from dashboards.source import panels as generator
from dashboards.source.queries import NAMES_STATES
from otel_kvpolicy.cli.explain.command import command as explain

from .built import DASHBOARDS, RULES, is_prometheus, panels

SCHEMA = Path(__file__).parents[3] / "shared" / "data" / "grafana_dashboard.jsonschema.json"
EVERY = pytest.mark.parametrize(
    "dashboard", DASHBOARDS.values(), ids=[d["uid"] for d in DASHBOARDS.values()]
)
PANELS = pytest.mark.parametrize(
    "panel",
    [panel for dashboard in DASHBOARDS.values() for panel in panels(dashboard)],
    ids=[f"{d['uid']}: {panel['title']}" for d in DASHBOARDS.values() for panel in panels(d)],
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


def schema() -> jsonschema.Draft7Validator:
    """Grafana's schema, set right in three places where it takes what Grafana's TypeScript calls unknown for an object."""
    if not SCHEMA.exists():
        pytest.skip(f"Grafana's JSON schema is not at {SCHEMA}")
    found = json.loads(SCHEMA.read_text())
    parts = found["definitions"]
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
    return jsonschema.Draft7Validator(found)


@EVERY
def test_schema(dashboard: dict[str, Any]) -> None:
    schema().validate(dashboard)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("titel",), "KV policy"),
        (("panels", 1, "gridPos", "w"), "12"),
        (("templating", "list", 0, "refresh"), 7),
        (("links", 0, "typ"), 1),
    ],
)
def test_the_schema_would_catch_a_fault(path: tuple[Any, ...], value: Any) -> None:
    wrong = json.loads(json.dumps(next(iter(DASHBOARDS.values()))))
    part = wrong
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        schema().validate(wrong)


@EVERY
def test_dashboard(dashboard: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z0-9-]{1,40}", dashboard["uid"])
    assert dashboard["title"]
    assert len(dashboard["description"]) > 40
    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] == 39
    assert "id" not in dashboard, "an id would clash with a dashboard that is there"
    assert dashboard["tags"] == [generator.TAG]
    assert dashboard["graphTooltip"] == 1
    assert dashboard["refresh"]
    (link,) = dashboard["links"]
    assert (link["tags"], link["includeVars"], link["keepTime"]) == ([generator.TAG], True, True)


def test_uids_and_titles_are_unique() -> None:
    for key in ("uid", "title"):
        assert len({d[key] for d in DASHBOARDS.values()}) == len(DASHBOARDS)


@EVERY
def test_no_datasource_is_hard_coded(dashboard: dict[str, Any]) -> None:
    found = re.findall(r'"uid": "([^"]+)"', json.dumps({**dashboard, "uid": ""}))
    assert set(found) <= {"${datasource}", "${tempo}"}
    variables = {v["name"] for v in dashboard["templating"]["list"]}
    assert {name.strip("${}") for name in found} <= variables


@EVERY
def test_variables(dashboard: dict[str, Any]) -> None:
    variables = dashboard["templating"]["list"]
    assert variables[0]["type"] == "datasource"
    assert variables[0]["query"] == "prometheus"
    names = [v["name"] for v in variables]
    assert len(set(names)) == len(names)
    text = json.dumps(dashboard["panels"])
    for variable in variables:
        assert variable["label"]
        if variable["type"] == "query":
            assert variable["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert variable["refresh"] == 2, "on every change of the time range"
            assert variable["multi"]
            assert variable["includeAll"]
            assert variable["allValue"] == ".*"
            assert variable["description"]
        assert f"${variable['name']}" in text or f"${{{variable['name']}}}" in text, (
            f"{variable['name']} selects nothing"
        )
    used = set(re.findall(r"\$\{?([a-z]\w*)\b(?!\.)", text)) - {"labels", "value"}
    assert used <= set(names), "a variable that is not there"


@EVERY
def test_places(dashboard: dict[str, Any]) -> None:
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


@EVERY
def test_lines_are_full(dashboard: dict[str, Any]) -> None:
    """No ragged edge: panels of a line fill it."""
    lines: dict[int, int] = {}
    for panel in panels(dashboard):
        place = panel["gridPos"]
        lines[place["y"]] = lines.get(place["y"], 0) + place["w"]
    assert set(lines.values()) == {24}, lines


@PANELS
def test_panel_says_what_it_is(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert len(panel["title"]) <= 60
    assert panel["description"]
    if panel["type"] == "text":
        assert panel["options"]["content"]
        return
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    assert defaults["noValue"], "what no data means"
    assert "No data: " in panel["description"]
    if (
        defaults["unit"] == "percentunit"
        and panel["type"] in ("timeseries", "xychart")
        and panel["title"] != "Do LMCache's stores react?"
    ):
        assert (defaults["min"], defaults["max"]) == (0, 1)
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["showLegend"]
        assert panel["options"]["tooltip"]["mode"] == "multi"
        if panel["datasource"]["type"] == "prometheus":
            assert all(target["legendFormat"] for target in panel["targets"])


@PANELS
def test_targets(panel: dict[str, Any]) -> None:
    if panel["type"] == "text":
        return
    assert panel["targets"]
    assert panel["datasource"]["uid"] in ("${datasource}", "${tempo}")
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        if panel["datasource"]["type"] == "prometheus":
            assert target["instant"] != target["range"]
            assert panel["type"] not in ("timeseries", "xychart", "heatmap") or target["range"]
            assert (target["format"] == "heatmap") == (panel["type"] == "heatmap")


@PANELS
def test_series_of_a_panel_are_told_apart(panel: dict[str, Any]) -> None:
    if is_prometheus(panel):
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends)


@PANELS
def test_thresholds_and_colours_suit_both_themes(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    steps = defaults.get("thresholds", {}).get("steps", [])
    if steps:
        assert steps[0]["value"] is None, "Grafana's types insist on the first step's null"
        assert [s["value"] for s in steps[1:]] == sorted(s["value"] for s in steps[1:])
    used = [step["color"] for step in steps]
    used += [
        state["color"]
        for mapping in defaults.get("mappings", [])
        for state in mapping["options"].values()
    ]
    for override in panel["fieldConfig"]["overrides"]:
        used += [p["value"]["fixedColor"] for p in override["properties"] if p["id"] == "color"]
    for colour in used:
        assert PALETTE.fullmatch(colour), (
            f"{colour} is not a colour of Grafana's palette, which both themes can show"
        )


def test_a_meaning_has_one_colour_everywhere() -> None:
    seen: dict[str, str] = {}
    for dashboard in DASHBOARDS.values():
        for panel in panels(dashboard):
            for override in panel["fieldConfig"]["overrides"]:
                for part in override["properties"]:
                    if part["id"] == "color":
                        name = override["matcher"]["options"]
                        assert (
                            seen.setdefault(name, part["value"]["fixedColor"])
                            == part["value"]["fixedColor"]
                        ), name


@PANELS
def test_links_lead_somewhere(panel: dict[str, Any]) -> None:
    """Data links open Explore on Tempo with a TraceQL query, over the dashboard's time range."""
    links = list(panel["fieldConfig"]["defaults"].get("links", []))
    for override in panel["fieldConfig"]["overrides"]:
        links += [
            link
            for part in override["properties"]
            if part["id"] == "links"
            for link in part["value"]
        ]
    for link in links:
        assert link["title"]
        assert link["url"].startswith("/explore?schemaVersion=1&panes=%7B")
        assert "${tempo}" in link["url"]
        assert "${__from}" in link["url"]
        assert "%24" not in link["url"], "a variable was quoted, so Grafana would not fill it in"


def test_what_the_issue_asks_for_is_linked() -> None:
    text = json.dumps(list(DASHBOARDS.values()))
    assert "otel-kvpolicy explain ${__value.text}" in text
    assert "otel-kvpolicy explain TRACE_ID" in text
    assert '"exemplar": true' in text


def test_the_command_line_that_is_shown_exists() -> None:
    accepted = {option for parameter in explain.params for option in parameter.opts}
    shown = re.findall(
        r"otel-kvpolicy explain [^\s`]+ (--\w+) http", json.dumps(list(DASHBOARDS.values()))
    )
    assert len(shown) >= 2
    assert set(shown) <= accepted


def test_the_limits_of_panels_are_those_of_alerts() -> None:
    """Shared numbers: changing one in limits.py moves the panel's line and the alert's condition together."""
    alerts = {rule["alert"]: rule["expr"] for rule in RULES if "alert" in rule}
    lines = [
        step["value"]
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    ]
    assert f"< {limits.MEMORY_LOW_BYTES}" in alerts["GB10MemoryLow"]
    assert lines.count(limits.MEMORY_LOW_BYTES) == 2


def test_every_state_of_the_names_panel_is_told_in_words() -> None:
    (panel,) = [p for d in DASHBOARDS.values() for p in panels(d) if p["title"] == "LMCache speaks"]
    asked = {int(found) for found in re.findall(r"(\d) \* group", panel["targets"][0]["expr"])}
    assert (
        asked
        == set(NAMES_STATES)
        == {int(value) for value in panel["fieldConfig"]["defaults"]["mappings"][0]["options"]}
    )


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: rule["alert"]
)
def test_alerts_say_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert all(len(words) > 20 for words in rule["annotations"].values())
    assert re.match(r"(KVPolicy|LMCache|GB10)", rule["alert"]), (
        "the dashboards' annotation shows alerts by these names"
    )

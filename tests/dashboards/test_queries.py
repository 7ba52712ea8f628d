"""Every query parses, and asks only for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from otel_kvpolicy import series as servers
from otel_kvpolicy.series import Series
from otel_kvpolicy.telemetry import names

from .built import ALL_QUERIES, DASHBOARDS, RULES, Asked, fill, panels

PAGES = Path(__file__).parent / "pages"
EVERY = pytest.mark.parametrize("asked", ALL_QUERIES, ids=str)
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
TARGET = {"job", "instance"}


def selectors(node: Any) -> list[Any]:
    """All vector selectors of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        return [node]
    children: list[Any] = []
    for part in ("lhs", "rhs", "expr", "vector_selector", "param"):
        child = getattr(node, part, None)
        if child is not None:
            children += selectors(child)
    for argument in getattr(node, "args", None) or []:
        children += selectors(argument)
    return children


def _known() -> dict[str, set[str]]:
    known: dict[str, set[str]] = {name: set() for name in RECORDED}
    known["ALERTS"] = {"alertname", "alertstate"}

    def add(name: str, labels: set[str], *, histogram: bool) -> None:
        if histogram:
            known[f"{name}_bucket"] = labels | {"le"} | TARGET
            known[f"{name}_sum"] = known[f"{name}_count"] = labels | TARGET
        else:
            known[name] = labels | TARGET

    for metric in names.METRICS:
        add(
            metric.prometheus,
            {name.replace(".", "_") for name in metric.attributes},
            histogram=metric.kind == "histogram",
        )
    for series in servers.SERVERS:
        add(series.name, set(series.labels), histogram=series.kind == "histogram")
    return known


KNOWN = _known()


def test_the_walk_sees_every_selector() -> None:
    parsed = promql_parser.parse(
        'sum by (a) (rate(x{l="1"}[5m])) / on() (clamp_min(y, 0) or topk(3, z offset 5m)) > bool 1'
    )
    assert [s.name for s in selectors(parsed)] == ["x", "y", "z"]


@EVERY
def test_parses(asked: Asked) -> None:
    promql_parser.parse(fill(asked.expr))


@EVERY
def test_metrics_and_labels_exist(asked: Asked) -> None:
    found = selectors(promql_parser.parse(fill(asked.expr)))
    assert found
    for selector in found:
        if selector.name is None:  # {__name__=~"a|b"}
            (wanted,) = [m.value for m in selector.matchers.matchers if m.name == "__name__"]
            assert set(wanted.split("|")) <= set(KNOWN)
            continue
        assert selector.name in KNOWN, f"no such metric: {selector.name}"
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= KNOWN[selector.name] | TARGET, (
            f"{selector.name} has no label {labels - KNOWN[selector.name]}"
        )


@EVERY
def test_grouping_labels_exist(asked: Asked) -> None:
    """``by`` a label that is not there makes one group with an empty name."""
    expr = fill(asked.expr)
    labels = {
        name
        for listed in re.findall(r"by \(([^)]*)\)", expr)
        for name in listed.split(", ")
        if name
    }
    available = (
        set().union(*(KNOWN[s.name] for s in selectors(promql_parser.parse(expr)) if s.name))
        | TARGET
    )
    assert labels <= available


@EVERY
def test_counters_are_asked_for_growth_only(asked: Asked) -> None:
    counters = {s.name for s in servers.SERVERS if s.kind == "counter"} | {
        m.prometheus for m in names.METRICS if m.kind == "counter"
    }
    if asked.where.rsplit(" / ", 1)[-1].startswith("variable"):
        return
    for name in counters:
        for found in re.finditer(rf"(?<![\w:]){re.escape(name)}(?![\w:])", asked.expr):
            before = asked.expr[: found.start()]
            presence = re.search(
                r"(group by \(instance\) \(|\bor |unless on \(instance\) |unless )$", before
            )
            assert presence or re.search(r"(rate|increase|last_over_time)\($", before), (
                f"bare counter {name} after {before[-30:]!r}"
            )


def test_rates_use_grafanas_interval() -> None:
    for dashboard in DASHBOARDS.values():
        for panel in panels(dashboard):
            for target in panel.get("targets", []):
                for window in re.findall(r"rate\([^[]*\[([^\]]+)\]", target.get("expr", "")):
                    assert window == "$__rate_interval", f"{panel['title']}: {window}"


@EVERY
def test_queries_do_not_depend_on_the_path(asked: Asked) -> None:
    """Labels that only one way into Prometheus sets may not be used."""
    assert not re.search(r"otel_scope|service_instance_id|exported_|DCGM_FI_DEV_FB", asked.expr)


@EVERY
def test_dashboards_select_by_their_variables(asked: Asked) -> None:
    if " / " not in asked.where or "variable" in asked.where or "annotation" in asked.where:
        return
    for found in re.finditer(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", asked.expr):
        name, inside = found.groups()
        if name.startswith(("kvpolicy_", "traces_span")):
            assert 'job=~"$service"' in inside
        else:
            assert 'instance=~"$host(:.*)?"' in inside
    bare = [
        s.name for s in selectors(promql_parser.parse(fill(asked.expr))) if not s.matchers.matchers
    ]
    assert set(bare) <= RECORDED


def _on_page(file: str) -> dict[str, set[str]]:
    families = text_string_to_metric_families((PAGES / file).read_text())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize(
    ("file", "expected", "absent"),
    [
        # What had not happened when the page was saved: lazily created.
        (
            "lmcache_mp_0.5.6_metrics.prom",
            servers.LMCACHE_MP,
            {servers.L1_ALLOCATION_FAILURES, servers.L2_EVICTED},
        ),
        ("vllm_0.32.0_metrics.prom", servers.VLLM, set()),
    ],
)
def test_server_names_are_on_real_pages(
    file: str, expected: tuple[Series, ...], absent: set[Series]
) -> None:
    page = _on_page(file)
    for series in expected:
        name = f"{series.name}_bucket" if series.kind == "histogram" else series.name
        if series in absent:
            assert series.lazy
            assert name not in page
        else:
            assert name in page
            assert set(series.labels) <= page[name]


def test_counters_are_named_alike_on_every_path() -> None:
    """Prometheus' OTLP receiver adds _total to a counter that lacks it, so only names that end in it are the same scraped and sent."""
    assert all(
        series.name.endswith("_total") for series in servers.SERVERS if series.kind == "counter"
    )


def test_server_names_are_spelled_once() -> None:
    for one in servers.SERVERS:
        assert [other.name for other in servers.SERVERS].count(one.name) == 1
    source = Path(servers.__file__).parent
    for path in source.glob("*.py"):
        if path.name != "series.py":
            text = path.read_text()
            assert not [s.name for s in servers.SERVERS if s.name != "up" and s.name in text], (
                path.name
            )
            assert not [m.prometheus for m in names.METRICS if f'"{m.prometheus}' in text], (
                path.name
            )


def test_traceql_names_attributes_that_are_written() -> None:
    ours = {attribute.name for attribute in names.ATTRIBUTES}
    text = json.dumps(list(DASHBOARDS.values()))
    used = set(re.findall(r"span\.(kvpolicy\.[a-z_.]+[a-z])", text))
    assert names.DECISION in used
    assert names.EXPLANATION in used
    assert used <= ours

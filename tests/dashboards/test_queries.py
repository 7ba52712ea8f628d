"""Every query parses, and asks only for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dashboards.source
import otel_kvpolicy
from otel_kvpolicy import series
from otel_kvpolicy.record import OUTCOMES
from otel_kvpolicy.series import Series
from otel_kvpolicy.telemetry import names

from .built import ALL_RULES, DASHBOARDS, FILES, QUERIES, fill, panels

PAGES = Path(__file__).parent / "pages"
EVERY_FILE = pytest.mark.parametrize("file", QUERIES)
RECORDED = {rule["record"] for rule in ALL_RULES if "record" in rule}
TARGET = {"job", "instance"}


def selectors(node: Any) -> list[Any]:
    """Return all vector selectors of a parsed expression."""
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


def _labels_by_series() -> dict[str, set[str]]:
    """Return the labels of every series that a query may select."""
    labels_of: dict[str, set[str]] = {name: set() for name in RECORDED}
    labels_of["ALERTS"] = {"alertname", "alertstate"}

    def add(name: str, labels: set[str], *, histogram: bool) -> None:
        if histogram:
            labels_of[f"{name}_bucket"] = labels | {"le"} | TARGET
            labels_of[f"{name}_sum"] = labels_of[f"{name}_count"] = labels | TARGET
        else:
            labels_of[name] = labels | TARGET

    for metric in names.METRICS:
        add(
            metric.prometheus,
            {name.replace(".", "_") for name in metric.attributes},
            histogram=metric.kind == "histogram",
        )
    for one in series.SERVERS:
        add(one.name, set(one.labels), histogram=one.kind == "histogram")
    return labels_of


LABELS = _labels_by_series()


def test_the_walk_sees_every_selector() -> None:
    parsed = promql_parser.parse(
        'sum by (a) (rate(x{l="1"}[5m])) / on() (clamp_min(y, 0) or topk(3, z offset 5m)) > bool 1'
    )
    assert [selector.name for selector in selectors(parsed)] == ["x", "y", "z"]


@EVERY_FILE
def test_queries_parse(file: str, subtests: pytest.Subtests) -> None:
    for asked in QUERIES[file]:
        with subtests.test(str(asked)):
            promql_parser.parse(fill(asked.expr))


@EVERY_FILE
def test_metrics_and_labels_exist(file: str, subtests: pytest.Subtests) -> None:
    for asked in QUERIES[file]:
        with subtests.test(str(asked)):
            found = selectors(promql_parser.parse(fill(asked.expr)))
            assert found
            for selector in found:
                _check_selector(selector)


def _check_selector(selector: Any) -> None:
    matchers = selector.matchers.matchers
    if selector.name is None:  # {__name__=~"a|b"}
        (wanted,) = [matcher.value for matcher in matchers if matcher.name == "__name__"]
        assert set(wanted.split("|")) <= set(LABELS)
        return
    assert selector.name in LABELS, f"no such metric: {selector.name}"
    unknown = {matcher.name for matcher in matchers} - LABELS[selector.name] - TARGET
    assert not unknown, f"{selector.name} has no label {unknown}"


@EVERY_FILE
def test_grouping_labels_exist(file: str, subtests: pytest.Subtests) -> None:
    """Grouping ``by`` a label that does not exist makes one group with an empty name."""
    for asked in QUERIES[file]:
        with subtests.test(str(asked)):
            expr = fill(asked.expr)
            grouped = {
                name
                for listed in re.findall(r"by \(([^)]*)\)", expr)
                for name in listed.split(", ")
                if name
            }
            selected = [one.name for one in selectors(promql_parser.parse(expr)) if one.name]
            assert grouped <= set().union(*(LABELS[name] for name in selected)) | TARGET


@EVERY_FILE
def test_only_the_growth_of_a_counter_is_used(file: str, subtests: pytest.Subtests) -> None:
    counters = {one.name for one in series.SERVERS if one.kind == "counter"} | {
        metric.prometheus for metric in names.METRICS if metric.kind == "counter"
    }
    for asked in QUERIES[file]:
        if asked.kind == "variable":
            continue
        with subtests.test(str(asked)):
            for name in counters:
                for match in re.finditer(rf"(?<![\w:]){re.escape(name)}(?![\w:])", asked.expr):
                    _check_counter(name, asked.expr[: match.start()])


def _check_counter(name: str, before: str) -> None:
    growth = re.search(r"(rate|increase|last_over_time)\($", before)
    presence = re.search(
        r"(group by \(instance\) \(|\bor |unless on \(instance\) |unless )$", before
    )
    assert growth or presence, f"bare counter {name} after {before[-30:]!r}"


@EVERY_FILE
def test_no_label_depends_on_the_path_into_prometheus(file: str, subtests: pytest.Subtests) -> None:
    """Labels that only one way into Prometheus sets may not be used."""
    for asked in QUERIES[file]:
        with subtests.test(str(asked)):
            assert not re.search(
                r"otel_scope|service_instance_id|exported_|DCGM_FI_DEV_FB", asked.expr
            )


@pytest.mark.parametrize("file", DASHBOARDS)
def test_rates_use_grafanas_interval(file: str, subtests: pytest.Subtests) -> None:
    for panel in panels(DASHBOARDS[file]):
        with subtests.test(panel["title"]):
            for target in panel.get("targets", []):
                for window in re.findall(r"rate\([^[]*\[([^\]]+)\]", target.get("expr", "")):
                    assert window == "$__rate_interval"


@pytest.mark.parametrize("file", DASHBOARDS)
def test_panels_select_by_the_dashboards_variables(file: str, subtests: pytest.Subtests) -> None:
    for asked in QUERIES[file]:
        if asked.kind != "panel":
            continue
        with subtests.test(str(asked)):
            for match in re.finditer(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", asked.expr):
                name, inside = match.groups()
                if name.startswith(("kvpolicy_", "traces_span")):
                    assert 'job=~"$service"' in inside
                else:
                    assert 'instance=~"$host(:.*)?"' in inside
            bare = [
                one.name
                for one in selectors(promql_parser.parse(fill(asked.expr)))
                if not one.matchers.matchers
            ]
            assert set(bare) <= RECORDED


def _labels_on_page(file: str) -> dict[str, set[str]]:
    families = text_string_to_metric_families((PAGES / file).read_text())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize(
    ("file", "expected", "absent"),
    [
        # Absent: created on first use, and not used before the page was saved.
        (
            "lmcache_mp_0.5.6_metrics.prom",
            series.LMCACHE_MP,
            {series.L1_ALLOCATION_FAILURES, series.L2_EVICTED},
        ),
        ("vllm_0.32.0_metrics.prom", series.VLLM, set()),
    ],
    ids=["LMCache", "vLLM"],
)
def test_server_names_are_on_real_pages(
    file: str, expected: tuple[Series, ...], absent: set[Series], subtests: pytest.Subtests
) -> None:
    page = _labels_on_page(file)
    for one in expected:
        with subtests.test(one.name):
            name = f"{one.name}_bucket" if one.kind == "histogram" else one.name
            if one in absent:
                assert one.lazy
                assert name not in page
            else:
                assert name in page
                assert set(one.labels) <= page[name]


def test_counters_have_the_same_name_on_every_path() -> None:
    """Prometheus' OTLP receiver adds ``_total`` to a counter whose name does not end in it."""
    assert all(one.name.endswith("_total") for one in series.SERVERS if one.kind == "counter")


def test_metric_names_are_spelled_once() -> None:
    spelled = [one.name for one in series.SERVERS]
    assert len(set(spelled)) == len(spelled)
    own = {Path(series.__file__), Path(names.__file__)}
    folders = (*dashboards.source.__path__, *otel_kvpolicy.__path__)
    sources = {path for folder in folders for path in Path(folder).rglob("*.py")} - own
    assert len(sources) > 100
    for path in sources:
        text = path.read_text()
        assert not [name for name in spelled if name != "up" and name in text], path
        assert not [m.prometheus for m in names.METRICS if f'"{m.prometheus}' in text], path


def test_queries_select_only_hint_outcomes_that_exist() -> None:
    everything = "\n".join(FILES.values()).replace('\\"', '"')
    outcome = re.escape(names.HINT_OUTCOME).replace(r"\.", "[._]")
    selected = {
        value
        for values in re.findall(rf'{outcome} ?(?:=~|!=|=) ?"([^"]+)"', everything)
        for value in values.split("|")
    }
    assert {"applied", "caller", "excluded_target", "rejected", "error"} <= selected
    assert selected <= set(OUTCOMES)


def test_traceql_uses_only_attributes_that_are_written() -> None:
    written = {attribute.name for attribute in names.ATTRIBUTES}
    text = json.dumps(list(DASHBOARDS.values()))
    used = set(re.findall(r"span\.(kvpolicy\.[a-z_.]+[a-z])", text))
    assert names.DECISION in used
    assert names.EXPLANATION in used
    assert used <= written

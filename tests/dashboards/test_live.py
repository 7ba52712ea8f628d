"""Every query of every panel, variable, annotation and rule, run by a real Prometheus over real pages and the real instrumentation.

One run serves all tests: an instrumented application talks to stand-ins (LMCache as a server and in-process, and a vendor that refuses
the hint), Prometheus scrapes them, a node_exporter and saved pages of the real servers. Expected values come from what the client saw
and what the servers counted themselves, not from any metric.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import correlation
from typing import Any

import httpx2
import pytest

from dashboards.source.queries import DASHBOARD, NAMES_STATES
from dashboards.source.rules import CORRELATIONS
from otel_kvpolicy import series as servers
from otel_kvpolicy.standin import CHUNK_TOKENS, StandIn
from otel_kvpolicy.telemetry import names

from .built import ALL_QUERIES, DASHBOARDS, Asked, fill, panel_queries, panels, variable_queries
from .live import (
    App,
    Growing,
    Pages,
    Prometheus,
    alertmanager,
    free_port,
    node_exporter,
    target,
    until,
)

PAGES = Path(__file__).parent / "pages"
MIB = 1 << 20
CHUNK_MIB = 32  # of the stand-in's KV, 128 KiB a token
TURNS = (
    ("store", "store", "store", "skip"),
    ("store", "skip", "skip", "caller"),
    ("skip", "skip", "caller", "skip"),
    ("store", "store", "skip", "store"),
)

EMPTY = {
    # Nothing of that has happened, and it is not a zero to be shown: see the panels' own words.
    "Do LMCache's stores react?": "needs half an hour of recorded ratios where rates are steady",
}


@dataclass
class Run:
    """A finished run, its pages still served."""

    prometheus: Prometheus
    app: App
    mp: StandIn
    in_process: StandIn
    pages: dict[str, Growing]
    served: Pages
    alerts: int
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    warm: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    elsewhere: int = 0
    started: float = 0
    at: float = 0

    @property
    def window(self) -> str:
        """From between the warm-up and the run proper to its end."""
        return f"{math.floor((self.at - self.started) * 1000)}ms"

    def fill(self, expr: str, **variables: str) -> str:
        return fill(expr, window=self.window, span="30m", **variables)

    def number(self, expr: str, **variables: str) -> float | None:
        return self.prometheus.number(self.fill(expr, **variables), self.at)

    def grown(self, *counts: str) -> float:
        return sum(self.after[name] - self.before[name] for name in counts)

    def tokens(self, *kinds: str) -> int:
        return sum(call["prompt"] for call in self.seen if not kinds or call["kind"] in kinds)


def counts(server: StandIn) -> dict[str, float]:
    return {name: float(server.engine.counts.total(name)) for name in server.engine.counts.values}


def without(text: str, pattern: str) -> str:
    return "\n".join(line for line in text.splitlines() if not re.search(pattern, line)) + "\n"


def span_metrics() -> str:
    """A page as the Collector's span_metrics connector is documented to write it."""
    calls, duration = servers.SPAN_CALLS.name, servers.SPAN_DURATION.name
    counted, timed = [f"# TYPE {calls} counter"], [f"# TYPE {duration} histogram"]
    for decision, reason in (("skip", "one_off_short_prompt"), ("store", "long_shared_prefix")):
        labels = (
            'service_name="app",span_name="chat stand-in",span_kind="SPAN_KIND_CLIENT",status_code="STATUS_CODE_UNSET",'
            f'kvpolicy_decision="{decision}",kvpolicy_hint_outcome="applied",kvpolicy_reasons="{reason}",'
            'gen_ai_request_model="stand-in",gen_ai_agent_name="planner"'
        )
        counted.append(f"{calls}{{{labels}}} 4")
        timed += [
            f'{duration}_bucket{{{labels},le="{le}"}} {value}'
            for le, value in (("0.5", 3), ("1", 4), ("+Inf", 4))
        ]
        timed += [f"{duration}_sum{{{labels}}} 1.5", f"{duration}_count{{{labels}}} 4"]
    return "\n".join([*counted, *timed]) + "\n"


def saved() -> dict[str, Growing]:
    real = (PAGES / "lmcache_mp_0.5.6_metrics.prom").read_text()
    return {
        "/real-lmcache": Growing(real),
        "/real-vllm": Growing((PAGES / "vllm_0.32.0_metrics.prom").read_text()),
        "/dcgm": Growing((PAGES / "dcgm.prom").read_text()),
        "/spans": Growing(span_metrics()),
        # What older servers wrote, by LMCache's history of names.
        "/lmcache-0.5.4": Growing(without(real, r"lookup_hit_l[12]_|lookups_requests|early_exit")),
        "/lmcache-0.4.4": Growing(
            "# TYPE lmcache_mp_l1_write_keys_total counter\nlmcache_mp_l1_write_keys_total 3\n"
        ),
        # lmcache server --otlp-endpoint: only Python's own metrics are left on the page.
        "/lmcache-pushed": Growing(without(real, "lmcache_mp|target_info")),
        "/lmcache-idle": Growing(
            "\n".join(line for line in real.splitlines() if "event_bus" in line or "usage" in line)
            + "\n"
        ),
        "/lmcache-reset": Growing(real),
        "/lmcache-silent": Growing(real),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with ExitStack() as stack:
        # Small tiers, so that there is something to evict, and hits in both.
        mp = stack.enter_context(
            StandIn(l1_bytes=12 * CHUNK_MIB * MIB, l2_bytes=40 * CHUNK_MIB * MIB, gpu_tokens=1024)
        )
        in_process = stack.enter_context(StandIn(mode="in_process", gpu_tokens=1024))
        vendor = stack.enter_context(StandIn(strict="openai"))
        app = stack.enter_context(App(KV_CACHE_SHADOW="true"))
        pages = stack.enter_context(Pages())
        node = stack.enter_context(node_exporter())
        living = saved()
        pages.pages.update(living)
        assert mp.lmcache_url
        targets = [
            target("app", "app:9464", app.port),
            target("vllm", "gb10:8000", _port(mp.url)),
            target("lmcache", "gb10:8080", _port(mp.lmcache_url)),
            target("vllm", "inproc:8000", _port(in_process.url)),
            target("node", "gb10:9100", node),
            target("gpu", "gb10:9400", pages.port, "/dcgm"),
            target("app", "collector:1", pages.port, "/spans"),
            target("vllm", "real:8000", pages.port, "/real-vllm"),
            target("lmcache", "real:8080", pages.port, "/real-lmcache"),
            target("lmcache", "down:8080", free_port()),
            *(
                target("lmcache", f"{path[9:]}:8080", pages.port, path)
                for path in living
                if path.startswith("/lmcache-")
            ),
        ]
        folder = tmp_path_factory.mktemp("prometheus")
        alerts = stack.enter_context(alertmanager(folder))
        prometheus = stack.enter_context(Prometheus(folder, targets, alerts))
        done = Run(prometheus, app, mp, in_process, living, pages, alerts)
        until(
            lambda: prometheus.number("count(up == 1)") == len(targets) - 1,
            "all targets but one are scraped",
        )
        _drive(done, vendor)
        yield done


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def _drive(run: Run, vendor: StandIn) -> None:
    prometheus, app = run.prometheus, run.app
    # Every series is born and scraped before the window that is measured, so that rates miss nothing.
    run.warm = app.calls(
        run.mp.base_url, *("store", "store", "skip", "store", "caller") * 6, "fault"
    )
    run.elsewhere = len(app.calls(run.in_process.base_url, *["store"] * 6, "skip")) + len(
        app.calls(vendor.base_url, "rejected", "rejected")
    )
    calls = f"sum({names.DECISIONS.prometheus})"
    until(
        lambda: prometheus.number(calls) == len(run.warm) + run.elsewhere, "the warm-up is scraped"
    )
    run.before = counts(run.mp)
    run.started = time.time()
    _scraped(run)
    for turn in range(20):
        run.seen += app.calls(run.mp.base_url, *TURNS[turn % 16 // 4])
        run.mp.reset_prefix_cache()  # so that LMCache is asked, as vLLM's own cache would be full in earnest
        _scraped(run)
    _scraped(run)
    enough = f"{CORRELATIONS[0][2]} >= 32"
    until(lambda: prometheus.number(enough), "the correlation has its samples")
    run.after = counts(run.mp)
    run.at = time.time()


def _scraped(run: Run) -> None:
    """Waits until the pages of the run have been scraped anew."""
    now = time.time()
    oldest = 'min(timestamp(up{instance=~"app:9464|gb10:80[08]0"}))'
    until(lambda: (run.prometheus.number(oldest) or 0) > now, "the next scrape")


@pytest.mark.parametrize("asked", ALL_QUERIES, ids=str)
def test_every_query_answers(run: Run, asked: Asked) -> None:
    expr = run.fill(asked.expr)
    if "variable" in asked.where:
        assert run.prometheus.api("series", **{"match[]": expr})
        return
    found = run.prometheus.vector(expr, run.at)
    panel = asked.where.split(" / ")[1] if " / " in asked.where else ""
    if (
        asked.where.startswith(("rule KVPolicy", "rule LMCache", "rule GB10"))
        or "annotation" in asked.where
    ):
        assert all(math.isfinite(value) for _, value in found)
        return
    assert found, f"no data for {expr}"
    for labels, value in found:
        assert math.isfinite(value), (labels, value)
        if asked.unit == "percentunit" and panel not in EMPTY:
            assert -1e-9 <= value <= 1 + 1e-9, (labels, value)
        assert value >= -1 - 1e-9


@pytest.mark.parametrize(
    "asked", [asked for asked in panel_queries() if not asked.instant], ids=str
)
def test_every_graph_has_points(run: Run, asked: Asked) -> None:
    expr = fill(asked.expr, window="10s", span="30m")
    series = run.prometheus.matrix(expr, run.started, run.at, 1)
    assert series
    assert all(math.isfinite(value) for _, points in series for _, value in points)


def test_variables_offer_what_there_is(run: Run) -> None:
    offered: dict[str, set[str]] = {}
    patterns = {
        v["name"]: v["regex"]
        for d in DASHBOARDS.values()
        for v in d["templating"]["list"]
        if v["type"] == "query"
    }
    for asked in variable_queries():
        name, label = re.fullmatch(r".*variable (\w+) of (\w+)", asked.where).groups()  # type: ignore[union-attr]
        values = {
            series[label]
            for series in run.prometheus.api("series", **{"match[]": run.fill(asked.expr)})
            if label in series
        }
        pattern = patterns[name].strip("/")
        offered[name] = {re.fullmatch(pattern, value)[1] for value in values} if pattern else values  # type: ignore[index]
    assert offered["service"] == {"app"}
    assert offered["model"] == {"stand-in"}
    assert offered["agent"] == {"planner"}
    assert offered["host"] >= {"gb10", "real", "inproc"}


def panel_expr(title: str, legend: str = "") -> str:
    """The query of a panel, by the panel's title and the query's legend."""
    found = [
        target["expr"]
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
        if panel["title"] == title and legend in ("", target.get("legendFormat"))
    ]
    assert len(found) == 1, (title, legend, found)
    return str(found[0])


def test_calls_of_the_time_range_are_exact(run: Run) -> None:
    """Also those that brought their series into being, which a plain increase() loses."""
    kinds = Counter(call["kind"] for call in (*run.warm, *run.seen))
    made = len(run.warm) + len(run.seen) + run.elsewhere
    skipped = kinds["skip"] + kinds["caller"] + kinds["fault"] + 1
    assert run.number(panel_expr("Calls")) == made
    assert run.number(panel_expr("Skipped calls")) == pytest.approx(skipped / made, abs=1e-12)
    assert run.number(panel_expr("Hints rejected")) == 2
    assert run.number(panel_expr("Policy faults")) == 1
    assert run.number(panel_expr("Mode")) == 0


def test_skip_ratio(run: Run) -> None:
    kinds = Counter(call["kind"] for call in run.seen)
    calls = run.number(panel_expr("Skip ratio", "skip ratio, calls"))
    tokens = run.number(panel_expr("Skip ratio", "skip ratio, tokens"))
    assert calls == pytest.approx((kinds["skip"] + kinds["caller"]) / len(run.seen), rel=1e-9)
    assert tokens == pytest.approx(run.tokens("skip", "caller") / run.tokens(), rel=1e-9)
    assert tokens is not None
    assert calls is not None
    assert tokens < calls, "one-off prompts are shorter"
    assert run.number(panel_expr("Told to skip")) == pytest.approx(tokens, rel=1e-9), (
        "all servers here take the hint"
    )


def test_skip_ratio_of_another_service_or_agent(run: Run) -> None:
    ratio = panel_expr("Skip ratio", "skip ratio, calls")
    assert run.number(ratio, service="other") is None
    assert run.number(ratio, agent="planner") == 0, "it only stores: zero, not no data"


def test_hit_rates(run: Run) -> None:
    """Of the server of this run; the share of a tier is of all tokens looked up."""
    looked_up = run.grown("lookup_requested_tokens")
    for title, part in (
        ("L1 hit rate", "lookup_hit_l1_tokens"),
        ("L2 hit rate", "lookup_hit_l2_tokens"),
        ("L1 + L2 hit rate", "lookup_hit_tokens"),
    ):
        found = run.number(panel_expr("Skip ratio and hit rates", title), host="gb10")
        assert found == pytest.approx(run.grown(part) / looked_up, rel=1e-6), title
        assert found, "a run without such hits proves nothing"


def test_looked_up_tokens_by_tier(run: Run) -> None:
    title = "Looked-up tokens: L1, L2, miss"
    split = {
        legend: run.number(panel_expr(title, legend), host="gb10") or 0
        for legend in ("L1", "L2", "miss")
    }
    looked_up = run.grown("lookup_requested_tokens")
    whole = sum(split.values())
    assert split["L1"] / whole == pytest.approx(
        run.grown("lookup_hit_l1_tokens") / looked_up, rel=1e-6
    )
    assert split["miss"] / whole == pytest.approx(
        1 - run.grown("lookup_hit_tokens") / looked_up, rel=1e-6
    )


def test_stored_avoided_and_evicted_chunks(run: Run) -> None:
    """Rates are extrapolated to the window's edges, by half a scrape interval at most: a few per cent."""
    seconds = run.at - run.started
    title = "Chunks: stored, avoided, evicted"
    stored = run.grown("l1_write_chunks") - run.grown("l2_prefetch_load_completed_chunks")
    expected = {
        "stored": stored,
        "avoided (estimate)": run.tokens("skip", "caller") / CHUNK_TOKENS,
        "evicted from L1": run.grown("l1_evicted_chunks"),
        "evicted from L2": run.grown("l2_evicted_objects_chunks"),
    }
    for legend, chunks in expected.items():
        assert chunks > 0, f"a run without any ({legend}) proves nothing"
        found = run.number(panel_expr(title, legend), host="gb10")
        assert found is not None
        assert found * seconds == pytest.approx(chunks, rel=0.08), legend


def test_cached_share_by_decision(run: Run) -> None:
    found = {
        labels["kvpolicy_decision"]: value
        for labels, value in run.prometheus.vector(run.fill(DASHBOARD.cached_share()), run.at)
    }
    for decision, kinds in (("store", ("store",)), ("skip", ("skip", "caller"))):
        calls = [call for call in run.seen if call["kind"] in kinds]
        assert found[decision] == pytest.approx(
            sum(c["cached"] for c in calls) / sum(c["prompt"] for c in calls), rel=1e-9, abs=1e-12
        )
    assert found["store"] > found["skip"] == 0


def test_correlation(run: Run) -> None:
    """The recorded correlation is that of the recorded pairs, computed here from their raw samples."""
    for legend, recorded, samples in CORRELATIONS:
        tier = re.search(r":(\w+)_1h", recorded)[1]  # type: ignore[index]
        # Rules of one moment share its timestamp, so the newest evaluation is asked for by it.
        at = run.prometheus.number(f"timestamp({samples})", run.at)
        assert at is not None
        (_, xs), (_, ys) = (
            run.prometheus.samples(f"kvpolicy:correlation_{part}:{tier}[1h]", at)[0]
            for part in ("skip", "hit")
        )
        assert [moment for moment, _ in xs] == [moment for moment, _ in ys], "pairs line up"
        assert run.prometheus.number(samples, at) == len(xs) >= 30
        assert run.prometheus.number(recorded, at) == pytest.approx(
            correlation([x for _, x in xs], [y for _, y in ys]), abs=1e-6
        ), legend


def test_real_pages(run: Run) -> None:
    """Against the saved pages of the real servers every panel about them has data, and the ratios that the pages' own counters give."""
    ratios = {
        ("Skip ratio and hit rates", "L1 hit rate"): 6144 / 21504,
        ("Skip ratio and hit rates", "L2 hit rate"): 6144 / 21504,
        ("Skip ratio and hit rates", "L1 + L2 hit rate"): 12288 / 21504,
        ("vLLM's own prefix cache", "vLLM prefix cache"): 256 / 6988,
        ("vLLM's own prefix cache", "external (LMCache)"): 2816 / 6732,
    }
    for (title, legend), value in ratios.items():
        assert run.number(panel_expr(title, legend), host="real") == pytest.approx(
            value, rel=1e-9
        ), legend
    capacity = 2.097152e7 / 0.01953125
    assert run.number(panel_expr("L1 headroom"), host="real") == pytest.approx(
        capacity - 2.097152e7
    )
    assert run.number(panel_expr("L2 usage"), host="real") == 67108864
    assert run.number(panel_expr("Stores lost for want of L1 memory"), host="real") == 0, (
        "absent counter, present server: zero"
    )
    assert (
        run.number(panel_expr("Chunks: stored, avoided, evicted", "evicted from L2"), host="real")
        == 0
    )


def test_in_process_names(run: Run) -> None:
    """The same hit rate panel serves the in-process connector, which does not tell its tiers apart."""
    server = counts(run.in_process)
    assert server["lookup_hit_tokens"] > 0
    everything = fill(
        panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"), window="5m", host="inproc"
    )
    assert run.prometheus.number(everything, run.at) is not None
    assert run.number(panel_expr("Skip ratio and hit rates", "L1 hit rate"), host="inproc") is None


def test_lmcache_says_which_names_it_speaks(run: Run) -> None:
    """Told, not blank: old releases, pages sent elsewhere, silent servers."""
    found = run.prometheus.vector(run.fill(panel_expr("LMCache speaks")), run.at)
    state = {labels["instance"]: NAMES_STATES[int(value)][0] for labels, value in found}
    assert state["gb10:8080"] == state["real:8080"] == NAMES_STATES[1][0]
    assert state["0.5.4:8080"] == NAMES_STATES[2][0]
    assert state["0.4.4:8080"] == NAMES_STATES[3][0]
    assert state["inproc:8000"] == NAMES_STATES[4][0]
    assert state["idle:8080"] == NAMES_STATES[5][0]
    assert state["pushed:8080"] == NAMES_STATES[6][0]
    assert state["down:8080"] == NAMES_STATES[0][0]


def test_older_server_has_hits_but_no_tiers(run: Run) -> None:
    assert run.number(
        panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"), host="0\\\\.5\\\\.4"
    ) == pytest.approx(12288 / 21504)
    assert (
        run.number(panel_expr("Skip ratio and hit rates", "L1 hit rate"), host="0\\\\.5\\\\.4")
        is None
    )


def test_idle_server_reads_zero_where_that_is_meant(run: Run) -> None:
    """A server that is there and has counted nothing: zero chunks, but no hit rate, which would be a ratio of nothing."""
    title = "Chunks: stored, avoided, evicted"
    assert run.number(panel_expr(title, "stored"), host="idle") == 0
    assert run.number(panel_expr(title, "evicted from L1"), host="idle") == 0
    assert (
        run.number(panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"), host="idle") is None
    )


def test_alerts_reach_the_alertmanager_with_their_words(run: Run) -> None:
    """One rejected server and one fault of the policy: both alert at once, and say whom and what to do."""

    def alerts() -> dict[str, dict[str, str]]:
        found = httpx2.get(f"http://127.0.0.1:{run.alerts}/api/v2/alerts", trust_env=False).json()
        return {alert["labels"]["alertname"]: alert["annotations"] for alert in found}

    until(lambda: {"KVPolicyHintRejected", "KVPolicyErrors"} <= set(alerts()), "the alerts arrive")
    assert alerts()["KVPolicyHintRejected"]["summary"] == "127.0.0.1 refuses the hint."
    assert (
        alerts()["KVPolicyErrors"]["summary"]
        == "The KV policy failed in app: LookupError at decision_hook."
    )
    assert "exclude it" in alerts()["KVPolicyHintRejected"]["runbook"]


def test_previews_can_be_drawn(run: Run, tmp_path: Path) -> None:
    """The pictures of the README, from this run."""
    pytest.importorskip("matplotlib")
    script = Path(__file__).parents[2] / "dashboards" / "preview" / "render.py"
    address = f"http://127.0.0.1:{run.prometheus.port}"
    subprocess.run(
        [sys.executable, str(script), address, "--minutes=0.5", f"--to={tmp_path}"],
        check=True,
        timeout=120,
    )
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.png")}
    assert set(drawn) == {
        f"{Path(name).stem}-{theme}.png" for name in DASHBOARDS for theme in ("light", "dark")
    }
    assert all(
        picture.startswith(b"\x89PNG") and len(picture) < 300_000 for picture in drawn.values()
    )


def test_restarted_server_gives_no_nonsense(run: Run) -> None:
    """Counters that start again are a restart, not a loss."""
    page = run.pages["/lmcache-reset"]
    page.turn = 0
    until(lambda: page.turn >= 4, "the restarted page is scraped")
    expr = fill(
        panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"), window="10s", host="reset"
    )
    assert run.prometheus.number(expr) == pytest.approx(12288 / 21504, rel=1e-9)
    stored = fill(
        panel_expr("Chunks: stored, avoided, evicted", "stored"), window="10s", host="reset"
    )
    assert (run.prometheus.number(stored) or -1) >= 0


def test_silent_server_is_no_zero(run: Run) -> None:
    """A page that is gone: no data after the window, and the state panel says so."""
    expr = fill(
        panel_expr("Chunks: stored, avoided, evicted", "stored"), window="3s", host="silent"
    )
    until(lambda: run.prometheus.number(expr), "data")
    del run.served.pages["/lmcache-silent"]
    until(lambda: run.prometheus.number('up{instance="silent:8080"}') == 0, "the scrape fails")
    until(lambda: run.prometheus.number(expr) is None, "no data", within=10)
    state = {
        labels["instance"]: value
        for labels, value in run.prometheus.vector(fill(panel_expr("LMCache speaks")))
    }
    assert state["silent:8080"] == 0


def test_idle_application_gives_neither_nan_nor_infinity(run: Run) -> None:
    """Nothing is called any more: ratios have no data, and nothing is NaN."""
    for page in run.pages.values():
        page.frozen = True
    calls = fill(panel_expr("Skip ratio", "skip ratio, calls"), window="3s")
    until(
        lambda: run.prometheus.number(calls) is None, "the ratio of no calls is no data", within=15
    )
    for asked in panel_queries():
        for labels, value in run.prometheus.vector(fill(asked.expr, window="3s", span="3s")):
            assert math.isfinite(value), (asked.where, labels, value)


def test_what_happens_while_prometheus_is_down_is_counted(run: Run) -> None:
    """Scraped counters carry on, so the gap's calls are in the total when it is back."""
    before = run.prometheus.number(fill(panel_expr("Calls"), span="30m"))
    assert before is not None
    run.prometheus.stop()
    run.app.calls(run.mp.base_url, "store", "skip", "skip")
    run.prometheus.start()
    expected = round(before) + 3
    until(
        lambda: (
            round(run.prometheus.number(fill(panel_expr("Calls"), span="30m")) or 0) == expected
        ),
        "all calls are counted",
    )

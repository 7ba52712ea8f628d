"""A real Prometheus runs every query of every panel, variable, annotation and rule.

One run serves all tests. An instrumented application calls stand-ins: LMCache as a server and in
process, and a vendor that rejects the hint. Prometheus scrapes them, a node_exporter, and saved
pages of real servers. Expected values come from what the client saw and from what the servers
counted themselves, never from a metric.
"""

from __future__ import annotations

import itertools
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

from dashboards.source.queries import NAMES_STATES, SELECTED
from dashboards.source.rules import CORRELATIONS
from otel_kvpolicy import series
from otel_kvpolicy.standin import CHUNK_TOKENS, StandIn
from otel_kvpolicy.telemetry import names
from tests import needs

from .built import (
    DASHBOARDS,
    QUERIES,
    Asked,
    fill,
    panel_expr,
    panel_queries,
    variable_queries,
)
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

pytestmark = pytest.mark.live

PAGES = Path(__file__).parent / "pages"
MIB = 1 << 20
CHUNK_MIB = 32  # of the stand-in's KV cache: 256 tokens of 128 KiB
TURNS = (
    ("store", "store", "store", "skip"),
    ("store", "skip", "skip", "caller"),
    ("skip", "skip", "caller", "skip"),
    ("store", "store", "skip", "store"),
)

UNBOUNDED = {"Does LMCache honor the hint?"}
"""Panels whose ratio can exceed 1 here: it needs half an hour of steady rates."""


@dataclass
class Run:
    """A finished run, whose pages are still served.

    Attributes:
        before: what the LMCache stand-in had counted before the measured window.
        after: what it had counted after the window.
        warm: what the client saw of the calls before the window.
        seen: what the client saw of the calls within the window.
        elsewhere: number of calls to other servers.
        started: start of the window, in seconds since the epoch.
        at: end of the window.
    """

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
        """The measured window as a PromQL duration: from the end of the warm-up to the end."""
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
    """Return a page in the format that the Collector documents for its span_metrics connector."""
    calls, duration = series.SPAN_CALLS.name, series.SPAN_DURATION.name
    counted, timed = [f"# TYPE {calls} counter"], [f"# TYPE {duration} histogram"]
    for decision, reason in (("skip", "one_off_short_prompt"), ("store", "long_shared_prefix")):
        labels = (
            'service_name="app",span_name="chat stand-in",span_kind="SPAN_KIND_CLIENT",'
            f'status_code="STATUS_CODE_UNSET",kvpolicy_decision="{decision}",'
            f'kvpolicy_hint_outcome="applied",kvpolicy_reasons="{reason}",'
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
        # Pages of older servers, by the history of LMCache's metric names.
        "/lmcache-0.5.4": Growing(without(real, r"lookup_hit_l[12]_|lookups_requests|early_exit")),
        "/lmcache-0.4.4": Growing(
            "# TYPE lmcache_mp_l1_write_keys_total counter\nlmcache_mp_l1_write_keys_total 3\n"
        ),
        # With lmcache server --otlp-endpoint, only Python's own metrics stay on the page.
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
        # Small tiers, so that both of them evict and have hits.
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
    # Every series is created and scraped before the measured window, so that rates miss nothing.
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
        # So that vLLM asks LMCache, as it would with a full cache of its own.
        run.mp.reset_prefix_cache()
        _scraped(run)
    _scraped(run)
    enough = f"{CORRELATIONS[0][2]} >= 32"
    until(lambda: prometheus.number(enough), "the correlation has its samples")
    run.after = counts(run.mp)
    run.at = time.time()


def _scraped(run: Run) -> None:
    """Wait until Prometheus has scraped the pages of the run once more."""
    now = time.time()
    oldest = 'min(timestamp(up{instance=~"app:9464|gb10:80[08]0"}))'
    until(lambda: (run.prometheus.number(oldest) or 0) > now, "the next scrape")


@pytest.mark.parametrize("file", QUERIES)
def test_every_query_returns_plausible_values(
    run: Run, file: str, subtests: pytest.Subtests
) -> None:
    for asked in QUERIES[file]:
        with subtests.test(str(asked)):
            _check_values(run, asked)


def _check_values(run: Run, asked: Asked) -> None:
    expr = run.fill(asked.expr)
    if asked.kind == "variable":
        assert run.prometheus.api("series", **{"match[]": expr})
        return
    found = run.prometheus.vector(expr, run.at)
    for labels, value in found:
        assert math.isfinite(value), (labels, value)
    is_alert = asked.kind == "rule" and asked.name.startswith(("KVPolicy", "LMCache", "GB10"))
    if is_alert or asked.kind == "annotation":
        return  # alerts need not fire
    assert found, f"no data for {expr}"
    for labels, value in found:
        if asked.unit == "percentunit" and asked.name not in UNBOUNDED:
            assert -1e-9 <= value <= 1 + 1e-9, (labels, value)
        assert value >= -1 - 1e-9


@pytest.mark.parametrize("file", DASHBOARDS)
def test_every_graph_has_points(run: Run, file: str, subtests: pytest.Subtests) -> None:
    for asked in panel_queries(DASHBOARDS[file]):
        if asked.instant:
            continue
        with subtests.test(str(asked)):
            expr = fill(asked.expr, window="10s", span="30m")
            matrix = run.prometheus.matrix(expr, run.started, run.at, 1)
            assert matrix
            assert all(math.isfinite(value) for _, points in matrix for _, value in points)


def test_variables_offer_what_there_is(run: Run) -> None:
    offered: dict[str, set[str]] = {}
    patterns = {
        v["name"]: v["regex"]
        for d in DASHBOARDS.values()
        for v in d["templating"]["list"]
        if v["type"] == "query"
    }
    for asked in itertools.chain.from_iterable(map(variable_queries, DASHBOARDS.values())):
        values = {
            labels[asked.label]
            for labels in run.prometheus.api("series", **{"match[]": run.fill(asked.expr)})
            if asked.label in labels
        }
        pattern = patterns[asked.name].strip("/") or "(.*)"
        matches = [re.fullmatch(pattern, value) for value in values]
        offered[asked.name] = {match[1] for match in matches if match}
        assert all(matches)
    assert offered["service"] == {"app"}
    assert offered["model"] == {"stand-in"}
    assert offered["agent"] == {"planner"}
    assert offered["host"] >= {"gb10", "real", "inproc"}


def test_calls_of_the_time_range_are_exact(run: Run) -> None:
    """Calls that created their series count too; a plain ``increase`` would miss them."""
    kinds = Counter(call["kind"] for call in (*run.warm, *run.seen))
    made = len(run.warm) + len(run.seen) + run.elsewhere
    skipped = kinds["skip"] + kinds["caller"] + kinds["fault"] + 1
    assert run.number(panel_expr("Calls")) == made
    assert run.number(panel_expr("Skipped calls")) == pytest.approx(skipped / made, abs=1e-12)
    assert run.number(panel_expr("Hints rejected")) == 2
    assert run.number(panel_expr("Policy errors")) == 1
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
    assert run.number(panel_expr("Skip hints sent")) == pytest.approx(tokens, rel=1e-9), (
        "all servers of these calls accept the hint"
    )


def test_skip_ratio_of_another_service_or_agent(run: Run) -> None:
    ratio = panel_expr("Skip ratio", "skip ratio, calls")
    assert run.number(ratio, service="other") is None
    assert run.number(ratio, agent="planner") == 0, (
        "this agent's calls are all stored, so the ratio is zero"
    )


def test_hit_rates(run: Run) -> None:
    """A tier's hit rate is its share of all tokens looked up on this run's server."""
    looked_up = run.grown("lookup_requested_tokens")
    for title, part in (
        ("L1 hit rate", "lookup_hit_l1_tokens"),
        ("L2 hit rate", "lookup_hit_l2_tokens"),
        ("L1 + L2 hit rate", "lookup_hit_tokens"),
    ):
        found = run.number(panel_expr("Skip ratio and hit rates", title), host="gb10")
        assert found == pytest.approx(run.grown(part) / looked_up, rel=1e-6), title
        assert found, "without such hits the run proves nothing"


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
    """Prometheus extrapolates rates to the window's edges, by half a scrape interval at most."""
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
        assert chunks > 0, f"without any ({legend}) the run proves nothing"
        found = run.number(panel_expr(title, legend), host="gb10")
        assert found is not None
        assert found * seconds == pytest.approx(chunks, rel=0.08), legend


def test_cached_share_by_decision(run: Run) -> None:
    found = {
        labels["kvpolicy_decision"]: value
        for labels, value in run.prometheus.vector(run.fill(SELECTED.cached_share()), run.at)
    }
    for decision, kinds in (("store", ("store",)), ("skip", ("skip", "caller"))):
        calls = [call for call in run.seen if call["kind"] in kinds]
        assert found[decision] == pytest.approx(
            sum(c["cached"] for c in calls) / sum(c["prompt"] for c in calls), rel=1e-9, abs=1e-12
        )
    assert found["store"] > found["skip"] == 0


def test_correlation(run: Run) -> None:
    """The recorded correlation equals the one computed here from the recorded pairs."""
    for legend, recorded, samples in CORRELATIONS:
        tier = re.search(r":(\w+)_1h", recorded)[1]  # type: ignore[index]
        # Rules that are evaluated together share a timestamp, so ask for the newest one.
        at = run.prometheus.number(f"timestamp({samples})", run.at)
        assert at is not None
        (_, xs), (_, ys) = (
            run.prometheus.samples(f"kvpolicy:correlation_{part}:{tier}[1h]", at)[0]
            for part in ("skip", "hit")
        )
        assert [moment for moment, _ in xs] == [moment for moment, _ in ys], "the pairs line up"
        assert run.prometheus.number(samples, at) == len(xs) >= 30
        assert run.prometheus.number(recorded, at) == pytest.approx(
            correlation([x for _, x in xs], [y for _, y in ys]), abs=1e-6
        ), legend


def test_real_pages(run: Run) -> None:
    """The panels show the ratios that the counters on the real servers' saved pages give."""
    ratios = {
        ("Skip ratio and hit rates", "L1 hit rate"): 6144 / 21504,
        ("Skip ratio and hit rates", "L2 hit rate"): 6144 / 21504,
        ("Skip ratio and hit rates", "L1 + L2 hit rate"): 12288 / 21504,
        ("vLLM's prefix cache", "vLLM prefix cache"): 256 / 6988,
        ("vLLM's prefix cache", "external (LMCache)"): 2816 / 6732,
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
    assert run.number(panel_expr("Stores dropped, L1 full"), host="real") == 0, (
        "a counter that does not exist yet is zero while its server is up"
    )
    assert (
        run.number(panel_expr("Chunks: stored, avoided, evicted", "evicted from L2"), host="real")
        == 0
    )


def test_in_process_names(run: Run) -> None:
    """The hit rate panel also covers the in-process connector, which has no rate per tier."""
    server = counts(run.in_process)
    assert server["lookup_hit_tokens"] > 0
    everything = fill(
        panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"), window="5m", host="inproc"
    )
    assert run.prometheus.number(everything, run.at) is not None
    assert run.number(panel_expr("Skip ratio and hit rates", "L1 hit rate"), host="inproc") is None


def test_a_panel_shows_which_metric_names_lmcache_exposes(run: Run) -> None:
    """Old releases, metrics sent elsewhere and failing scrapes have a state instead of no data."""
    found = run.prometheus.vector(run.fill(panel_expr("LMCache metrics")), run.at)
    state = {labels["instance"]: NAMES_STATES[int(value)][0] for labels, value in found}
    assert state["gb10:8080"] == state["real:8080"] == NAMES_STATES[1][0]
    assert state["0.5.4:8080"] == NAMES_STATES[2][0]
    assert state["0.4.4:8080"] == NAMES_STATES[3][0]
    assert state["inproc:8000"] == NAMES_STATES[4][0]
    assert state["idle:8080"] == NAMES_STATES[5][0]
    assert state["pushed:8080"] == NAMES_STATES[6][0]
    assert state["down:8080"] == NAMES_STATES[0][0]


def test_an_older_server_has_a_hit_rate_but_none_per_tier(run: Run) -> None:
    assert run.number(
        panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"), host="0\\\\.5\\\\.4"
    ) == pytest.approx(12288 / 21504)
    assert (
        run.number(panel_expr("Skip ratio and hit rates", "L1 hit rate"), host="0\\\\.5\\\\.4")
        is None
    )


def test_an_idle_server_has_zero_chunks_and_no_hit_rate(run: Run) -> None:
    """A server that has counted nothing stored zero chunks, but a ratio of nothing has no data."""
    title = "Chunks: stored, avoided, evicted"
    assert run.number(panel_expr(title, "stored"), host="idle") == 0
    assert run.number(panel_expr(title, "evicted from L1"), host="idle") == 0
    assert (
        run.number(panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"), host="idle") is None
    )


def test_alerts_reach_the_alertmanager_with_their_annotations(run: Run) -> None:
    """A rejected hint and an error of the policy fire at once and name what they concern."""

    def alerts() -> dict[str, dict[str, str]]:
        url = f"http://127.0.0.1:{run.alerts}/api/v2/alerts"
        found = httpx2.get(url, trust_env=False).json()
        return {alert["labels"]["alertname"]: alert["annotations"] for alert in found}

    until(lambda: {"KVPolicyHintRejected", "KVPolicyErrors"} <= set(alerts()), "the alerts arrive")
    summary = {name: words["summary"] for name, words in alerts().items()}
    assert "127.0.0.1" in summary["KVPolicyHintRejected"]
    assert all(
        part in summary["KVPolicyErrors"] for part in ("app", "LookupError", "decision_hook")
    )
    for words in alerts().values():
        assert set(words) == {"summary", "description", "runbook"}
        assert not [text for text in words.values() if "{{" in text or "no value" in text]


def test_previews_can_be_drawn(run: Run, tmp_path: Path) -> None:
    """The README's pictures can be drawn from this run."""
    needs.module("matplotlib", install="otel-kvpolicy[replay]")
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


def test_a_restarted_server_keeps_the_ratios_right(run: Run) -> None:
    """Counters that start at zero again mean a restart, not a loss."""
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


def test_a_server_that_is_down_has_no_data_instead_of_zero(run: Run) -> None:
    """After the window a missing page means no data, and the state panel shows it."""
    expr = fill(
        panel_expr("Chunks: stored, avoided, evicted", "stored"), window="3s", host="silent"
    )
    until(lambda: run.prometheus.number(expr), "data")
    del run.served.pages["/lmcache-silent"]
    until(lambda: run.prometheus.number('up{instance="silent:8080"}') == 0, "the scrape fails")
    until(lambda: run.prometheus.number(expr) is None, "no data", within=10)
    state = {
        labels["instance"]: value
        for labels, value in run.prometheus.vector(fill(panel_expr("LMCache metrics")))
    }
    assert state["silent:8080"] == 0


def test_an_idle_application_has_neither_nan_nor_infinity(run: Run) -> None:
    """Without calls, ratios have no data, and no value is NaN."""
    for page in run.pages.values():
        page.frozen = True
    calls = fill(panel_expr("Skip ratio", "skip ratio, calls"), window="3s")
    until(
        lambda: run.prometheus.number(calls) is None, "the ratio of no calls is no data", within=15
    )
    for asked in itertools.chain.from_iterable(map(panel_queries, DASHBOARDS.values())):
        for labels, value in run.prometheus.vector(fill(asked.expr, window="3s", span="3s")):
            assert math.isfinite(value), (str(asked), labels, value)


def test_calls_made_while_prometheus_is_down_are_counted(run: Run) -> None:
    """The application's counters keep growing, so the total has those calls after a restart."""
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

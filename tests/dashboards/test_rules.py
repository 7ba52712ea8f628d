"""promtool checks the rules and runs them over made-up series.

Each alert has a case that fires it and cases that do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from dashboards.source import limits
from otel_kvpolicy import series
from otel_kvpolicy.telemetry import names

from ..needs import program
from .built import ALL_RULES, FILES
from .tools import run

ALERTS = {rule["alert"] for rule in ALL_RULES if "alert" in rule}
CALLS = names.DECISIONS.prometheus
TOKENS = names.PROMPT_TOKENS.prometheus

Segment = tuple[int, float]
"""Minutes, and the growth of a counter per minute.

Multiples of 60 give whole rates per second, so that ratios are exact.
"""


@dataclass
class Case:
    """Input series, and what the rules make of them.

    Attributes:
        name: what happens in this case.
        series: values by series, in promtool's notation, one per minute.
        firing: names of the alerts that fire, by minute.
        values: results of further queries, by PromQL.
        minute: when those queries are evaluated.
    """

    name: str
    series: dict[str, str]
    firing: dict[int, set[str]]
    values: dict[str, float] = field(default_factory=dict)
    minute: int = 0

    def __str__(self) -> str:
        return self.name


def counter(*segments: Segment, start: float = 0) -> str:
    """Return the values of a counter, one per minute."""
    values, value = [start], start
    for growth in minutes(segments):
        value += growth
        values.append(value)
    return " ".join(str(value) for value in values)


def minutes(segments: Iterable[Segment]) -> list[float]:
    """Return the growth in each minute."""
    return [growth for length, growth in segments for _ in range(length)]


def gauge(length: int, value: float) -> str:
    """Return the same value for each minute."""
    return f"{value}x{length}"


def decisions(
    outcome: str, skip: Iterable[Segment], store: Iterable[Segment], tokens: int = 256
) -> dict[str, str]:
    """Return the policy's counters of calls and prompt tokens, by decision."""
    made = {}
    for decision, segments in (("skip", list(skip)), ("store", list(store))):
        labels = (
            f'kvpolicy_decision="{decision}",kvpolicy_hint_outcome="{outcome}",'
            'job="app",server_address="gb10"'
        )
        made[f"{CALLS}{{{labels}}}"] = counter(*segments)
        made[f"{TOKENS}{{{labels}}}"] = counter(
            *((length, growth * tokens) for length, growth in segments)
        )
    return made


def lmcache(
    requested: Iterable[Segment],
    l1: Iterable[Segment],
    l2: Iterable[Segment],
    written: Iterable[Segment] = ((0, 0),),
    *,
    keys: bool = True,
) -> dict[str, str]:
    """Return the counters of a multi-process server that stores 256 tokens per object."""
    both = [(1, one + two) for one, two in zip(minutes(l1), minutes(l2), strict=True)]
    made = {
        series.LOOKUP_REQUESTED.name: counter(*requested),
        series.LOOKUP_HIT.name: counter(*both),
        series.LOOKUP_HIT_L1.name: counter(*l1),
        series.LOOKUP_HIT_L2.name: counter(*l2),
        series.L1_WRITE.name: counter(*written),
    }
    if keys:
        made[series.LOOKUP_HIT_L1_KEYS.name] = counter(
            *((length, growth / 256) for length, growth in l1)
        )
        made[series.LOOKUP_HIT_L2_KEYS.name] = counter(
            *((length, growth / 256) for length, growth in l2)
        )
    return {f'{name}{{instance="gb10:8080"}}': values for name, values in made.items()}


STEADY = decisions("applied", [(90, 180)], [(90, 60)])
HONOURED = lmcache([(90, 245760)], [(90, 61440)], [(90, 61440)], [(90, 240)])
"""Tokens of 960 chunks are looked up per minute, and half of them are found.

Three quarters of the traffic carry a skip hint, so half of the 480 missed chunks are stored.
"""


def swing(length: int, first: float, second: float) -> list[Segment]:
    """Alternate between two growths every ten minutes."""
    return [(10, second if turn % 2 else first) for turn in range(length // 10)]


CASES = [
    Case(
        "steady traffic fires nothing, and the ratios are right",
        STEADY | HONOURED,
        {10: set(), 60: set(), 90: set()},
        {
            "kvpolicy:decisions:rate5m": 4,
            "kvpolicy:decisions_skip:ratio_rate5m": 0.75,
            "kvpolicy:prompt_tokens_skip:ratio_rate5m": 0.75,
            "kvpolicy:prompt_tokens_skip_sent:ratio_rate5m": 0.75,
            "kvpolicy:lmcache_hit:ratio_rate5m": 0.5,
            "kvpolicy:lmcache_hit_l1:ratio_rate5m": 0.25,
            "kvpolicy:lmcache_hit_l2:ratio_rate5m": 0.25,
            "round(kvpolicy:lmcache_stored_of_missed:ratio_rate30m, 0.001)": 0.5,
            "kvpolicy:skip_hit_correlation_samples:l1_1h": 61,
            # Without variation there is no correlation.
            "count(kvpolicy:skip_hit_correlation:l1_1h) or vector(0)": 0,
        },
        minute=90,
    ),
    Case(
        "no traffic fires nothing",
        {'up{job="app",instance="a:1"}': gauge(60, 1)},
        {30: set(), 60: set()},
        {"count(kvpolicy:decisions_skip:ratio_rate5m) or vector(0)": 0},
        minute=30,
    ),
    Case(
        "skips in observe mode are decided but not sent",
        decisions("observed", [(30, 180)], [(30, 60)]),
        {30: set()},
        {
            "kvpolicy:decisions_skip:ratio_rate5m": 0.75,
            "kvpolicy:prompt_tokens_skip_sent:ratio_rate5m": 0,
        },
        minute=30,
    ),
    Case(
        "hits fall as skips rise: correlation -1 in L1, +1 in L2",
        decisions("applied", swing(80, 60, 180), swing(80, 180, 60))
        | lmcache([(80, 245760)], swing(80, 184320, 61440), swing(80, 30720, 61440)),
        {},
        {
            "round(kvpolicy:skip_hit_correlation:l1_1h, 0.001)": -1,
            "round(kvpolicy:skip_hit_correlation:l2_1h, 0.001)": 1,
            "kvpolicy:skip_hit_correlation_samples:all_1h": 61,
        },
        minute=80,
    ),
    Case(
        "skip ratio jumps from a quarter to three quarters",
        decisions("applied", [(90, 60), (40, 180)], [(90, 180), (40, 60)]),
        {90: set(), 95: set(), 110: {"KVPolicySkipRatioJumped"}},
    ),
    Case(
        "a jump in little traffic is noise",
        decisions("applied", [(90, 0.25), (40, 0.75)], [(90, 0.75), (40, 0.25)]),
        {110: set()},
    ),
    Case(
        "hit rate falls while skips rise",
        decisions("applied", [(60, 60), (40, 120)], [(60, 180), (40, 120)])
        | lmcache([(100, 245760)], [(60, 122880), (40, 61440)], [(100, 0)], [(100, 360)]),
        {60: set(), 85: {"KVPolicyHitRateFellWhileSkipRose"}},
    ),
    Case(
        "hit rate falls, skip ratio does not rise",
        decisions("applied", [(100, 60)], [(100, 180)])
        | lmcache([(100, 245760)], [(60, 122880), (40, 61440)], [(100, 0)], [(100, 360)]),
        {85: set()},
    ),
    Case(
        "a single hint is rejected",
        {
            f'{CALLS}{{kvpolicy_decision="store",kvpolicy_hint_outcome="rejected",job="app",'
            'server_address="api.example.com"}': "_x20 1x60"
        },
        {19: set(), 25: {"KVPolicyHintRejected"}, 60: set()},
    ),
    Case(
        "hints are sent, and LMCache stores all that it misses",
        STEADY | lmcache([(90, 245760)], [(90, 61440)], [(90, 61440)], [(90, 480)]),
        {90: {"KVPolicyHintIgnored"}},
    ),
    Case(
        "no hints are sent, so stores are expected",
        decisions("observed", [(90, 180)], [(90, 60)])
        | lmcache([(90, 245760)], [(90, 61440)], [(90, 61440)], [(90, 480)]),
        {90: set()},
    ),
    Case(
        "in-process connector: hints are sent, and all misses are stored",
        STEADY
        | {
            f'{one.name}{{instance="gb10:8000"}}': counter((90, growth))
            for one, growth in (
                (series.IN_LOOKUP_TOKENS, 245760),
                (series.IN_LOOKUP_HITS, 122880),
                (series.IN_STORED_TOKENS, 122880),
            )
        },
        {90: {"KVPolicyHintIgnored"}},
    ),
    Case(
        "hints are sent to an LMCache before 0.5.6",
        decisions("applied", [(60, 180)], [(60, 60)])
        | lmcache([(60, 245760)], [(60, 61440)], [(60, 61440)], [(60, 480)], keys=False),
        {60: {"KVPolicyLMCacheTooOld"}},
    ),
    Case(
        "no hints are sent to an LMCache before 0.5.6",
        decisions("observed", [(60, 180)], [(60, 60)])
        | lmcache([(60, 245760)], [(60, 61440)], [(60, 61440)], [(60, 480)], keys=False),
        {60: set()},
    ),
    Case(
        "the policy fails once",
        {
            f'{names.ERRORS.prometheus}{{kvpolicy_seam="decide",error_type="TypeError",'
            'job="app"}': "_x20 1x60"
        },
        {19: set(), 25: {"KVPolicyErrors"}, 60: set()},
    ),
    Case(
        "L1 evicts chunks and loads them back",
        {
            f'{one.name}{{instance="gb10:8080"}}': counter((60, growth))
            for one, growth in (
                (series.L1_WRITE, 240),
                (series.L1_EVICTED, 240),
                (series.L2_LOADED, 120),
            )
        },
        {10: set(), 60: {"LMCacheL1Thrash"}},
    ),
    Case(
        "L1 evicts chunks that are not used again",
        {
            f'{one.name}{{instance="gb10:8080"}}': counter((60, 240))
            for one in (series.L1_WRITE, series.L1_EVICTED)
        },
        {60: set()},
    ),
    Case(
        "LMCache drops events",
        {
            f'{series.EVENTS_DROPPED.name}{{instance="gb10:8080"}}': counter(
                (20, 0), (5, 7), (35, 0)
            )
        },
        {20: set(), 26: {"LMCacheEventsDropped"}, 60: set()},
    ),
    Case(
        "scrapes of LMCache and of another target fail",
        {
            'up{job="lmcache",instance="gb10:8080"}': "1x10 0x20",
            'up{job="app",instance="a:1"}': "1x10 0x20",
        },
        {10: set(), 13: set(), 20: {"LMCacheSilent"}},
    ),
    Case(
        "memory runs low",
        {
            f'{series.MEM_AVAILABLE.name}{{instance="gb10:9100"}}': (
                f"{gauge(10, limits.MEMORY_LOW_BYTES)} {gauge(20, limits.MEMORY_LOW_BYTES - 1)}"
            ),
            f'{series.MEM_AVAILABLE.name}{{instance="other:9100"}}': gauge(
                30, limits.MEMORY_LOW_BYTES
            ),
        },
        {10: set(), 13: set(), 20: {"GB10MemoryLow"}},
    ),
    Case(
        "LMCache restarts, and its counters start at zero",
        STEADY | {name: f"{values} {values}" for name, values in HONOURED.items()},
        {95: set(), 100: set(), 130: set()},
    ),
]


def test_every_alert_has_a_case_that_fires_it() -> None:
    assert set().union(*(firing for case in CASES for firing in case.firing.values())) == ALERTS


def test_every_alert_has_a_moment_at_which_it_does_not_fire() -> None:
    for alert in ALERTS:
        assert any(alert not in firing for case in CASES for firing in case.firing.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    for name, text in FILES.items():
        if name.startswith("rules/"):
            (folder / Path(name).name).write_text(text)
    return folder


def test_promtool_accepts_the_rules(folder: Path) -> None:
    output = run(
        program("promtool", package="prometheus"), "check", "rules", *sorted(folder.glob("*.yaml"))
    )
    assert output.count("SUCCESS") == 2


@pytest.mark.slow
def test_alerts_and_recorded_values(
    folder: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """One run of promtool takes half the time of a run per case, which shows the failing case."""
    try:
        run_cases(CASES, folder, tmp_path)
    except AssertionError:
        for case in CASES:
            with subtests.test(case.name):
                run_cases([case], folder, tmp_path)
        raise


def test_a_wrong_expectation_fails(folder: Path, tmp_path: Path) -> None:
    wrong = Case("wrong", STEADY, {60: {"KVPolicyErrors"}})
    with pytest.raises(AssertionError, match="KVPolicyErrors"):
        run_cases([CASES[0], wrong], folder, tmp_path)


def run_cases(cases: Iterable[Case], folder: Path, tmp_path: Path) -> None:
    """Let promtool evaluate the rules in ``folder`` over the series of each case."""
    tests = {
        "rule_files": [str(path) for path in sorted(folder.glob("*.yaml"))],
        "evaluation_interval": "1m",
        # Recorded series come first, because alerts read them at the same moment.
        "group_eval_order": ["kvpolicy-ratios", "kvpolicy-alerts"],
        "tests": [
            {
                "name": case.name,
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in case.series.items()
                ],
                "promql_expr_test": [*_alert_tests(case), *_value_tests(case)],
            }
            for case in cases
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(tests, width=1000))
    run(program("promtool", package="prometheus"), "test", "rules", path)


def _alert_tests(case: Case) -> Iterable[dict[str, object]]:
    for minute, firing in case.firing.items():
        yield {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)
            ],
        }


def _value_tests(case: Case) -> Iterable[dict[str, object]]:
    for expr, value in case.values.items():
        recorded = expr.split("(")[0] if expr.startswith("kvpolicy:") else ""
        yield {
            "expr": expr,
            "eval_time": f"{case.minute}m",
            "exp_samples": [{"labels": recorded or "{}", "value": value}],
        }

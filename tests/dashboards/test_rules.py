"""Recording and alert rules, checked and tried by promtool: each alert with a case that fires it and cases that do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from dashboards.source import limits
from otel_kvpolicy import series as servers
from otel_kvpolicy.telemetry import names

from .built import FILES, RULES
from .tools import run, tool

ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
CALLS = names.DECISIONS.prometheus
TOKENS = names.PROMPT_TOKENS.prometheus

# A segment is so many minutes at so much a minute. Multiples of 60 give whole rates per second, so that ratios come out exact.
Segment = tuple[int, float]


@dataclass
class Case:
    """Series, and which alerts fire at which minute."""

    name: str
    series: dict[str, str]
    fires: dict[int, set[str]]
    values: dict[str, float] = field(default_factory=dict)
    at: int = 0

    def __str__(self) -> str:
        return self.name


def counter(*segments: Segment, start: float = 0) -> str:
    values, value = [start], start
    for growth in minutes(segments):
        value += growth
        values.append(value)
    return " ".join(str(value) for value in values)


def minutes(segments: Iterable[Segment]) -> list[float]:
    """The growth of each minute."""
    return [growth for length, growth in segments for _ in range(length)]


def gauge(length: int, value: float) -> str:
    return f"{value}x{length}"


def decisions(
    outcome: str, skip: Iterable[Segment], store: Iterable[Segment], tokens: int = 256
) -> dict[str, str]:
    """Calls and prompt tokens by decision."""
    made = {}
    for decision, segments in (("skip", list(skip)), ("store", list(store))):
        labels = f'kvpolicy_decision="{decision}",kvpolicy_hint_outcome="{outcome}",job="app",server_address="gb10"'
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
    """A multi-process server; its tokens per object are 256."""
    both = [(1, one + two) for one, two in zip(minutes(l1), minutes(l2), strict=True)]
    made = {
        servers.LOOKUP_REQUESTED.name: counter(*requested),
        servers.LOOKUP_HIT.name: counter(*both),
        servers.LOOKUP_HIT_L1.name: counter(*l1),
        servers.LOOKUP_HIT_L2.name: counter(*l2),
        servers.L1_WRITE.name: counter(*written),
    }
    if keys:
        made[servers.LOOKUP_HIT_L1_KEYS.name] = counter(
            *((length, growth / 256) for length, growth in l1)
        )
        made[servers.LOOKUP_HIT_L2_KEYS.name] = counter(
            *((length, growth / 256) for length, growth in l2)
        )
    return {f'{name}{{instance="gb10:8080"}}': values for name, values in made.items()}


STEADY = decisions("applied", [(90, 180)], [(90, 60)])
HONOURED = lmcache([(90, 245760)], [(90, 61440)], [(90, 61440)], [(90, 240)])
"""960 chunks' worth of tokens looked up a minute, half found; of the 480 missed half stored, as three quarters were skipped."""


def swing(length: int, first: float, second: float) -> list[Segment]:
    """Two growths in turn, ten minutes each."""
    return [(10, second if turn % 2 else first) for turn in range(length // 10)]


CASES = [
    Case(
        "steady traffic is quiet, and ratios are right",
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
            # Nothing varies, so there is no correlation.
            "count(kvpolicy:skip_hit_correlation:l1_1h) or vector(0)": 0,
        },
        at=90,
    ),
    Case(
        "nothing at all is quiet",
        {'up{job="app",instance="a:1"}': gauge(60, 1)},
        {30: set(), 60: set()},
        {"count(kvpolicy:decisions_skip:ratio_rate5m) or vector(0)": 0},
        at=30,
    ),
    Case(
        "observed skips are decided but not sent",
        decisions("observed", [(30, 180)], [(30, 60)]),
        {30: set()},
        {
            "kvpolicy:decisions_skip:ratio_rate5m": 0.75,
            "kvpolicy:prompt_tokens_skip_sent:ratio_rate5m": 0,
        },
        at=30,
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
        at=80,
    ),
    Case(
        "skip ratio jumps from a quarter to three quarters",
        decisions("applied", [(90, 60), (40, 180)], [(90, 180), (40, 60)]),
        {90: set(), 95: set(), 110: {"KVPolicySkipRatioJumped"}},
    ),
    Case(
        "a jump in hardly any traffic is noise",
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
        "hit rate falls by itself",
        decisions("applied", [(100, 60)], [(100, 180)])
        | lmcache([(100, 245760)], [(60, 122880), (40, 61440)], [(100, 0)], [(100, 360)]),
        {85: set()},
    ),
    Case(
        "one single hint is rejected",
        {
            f'{CALLS}{{kvpolicy_decision="store",kvpolicy_hint_outcome="rejected",job="app",server_address="api.example.com"}}': "_x20 1x60"
        },
        {19: set(), 25: {"KVPolicyHintRejected"}, 60: set()},
    ),
    Case(
        "hints are applied and LMCache stores all it misses",
        STEADY | lmcache([(90, 245760)], [(90, 61440)], [(90, 61440)], [(90, 480)]),
        {90: {"KVPolicyHintIgnored"}},
    ),
    Case(
        "hints are observed only, so stores are no surprise",
        decisions("observed", [(90, 180)], [(90, 60)])
        | lmcache([(90, 245760)], [(90, 61440)], [(90, 61440)], [(90, 480)]),
        {90: set()},
    ),
    Case(
        "in-process: hints are applied and all misses are stored",
        STEADY
        | {
            f'{series.name}{{instance="gb10:8000"}}': counter((90, growth))
            for series, growth in (
                (servers.IN_LOOKUP_TOKENS, 245760),
                (servers.IN_LOOKUP_HITS, 122880),
                (servers.IN_STORED_TOKENS, 122880),
            )
        },
        {90: {"KVPolicyHintIgnored"}},
    ),
    Case(
        "hints go to an LMCache before 0.5.6",
        decisions("applied", [(60, 180)], [(60, 60)])
        | lmcache([(60, 245760)], [(60, 61440)], [(60, 61440)], [(60, 480)], keys=False),
        {60: {"KVPolicyLMCacheTooOld"}},
    ),
    Case(
        "no hints go to an LMCache before 0.5.6",
        decisions("observed", [(60, 180)], [(60, 60)])
        | lmcache([(60, 245760)], [(60, 61440)], [(60, 61440)], [(60, 480)], keys=False),
        {60: set()},
    ),
    Case(
        "the policy fails once",
        {
            f'{names.ERRORS.prometheus}{{kvpolicy_seam="decide",error_type="TypeError",job="app"}}': "_x20 1x60"
        },
        {19: set(), 25: {"KVPolicyErrors"}, 60: set()},
    ),
    Case(
        "L1 evicts what it takes in and loads it back",
        {
            f'{series.name}{{instance="gb10:8080"}}': counter((60, growth))
            for series, growth in (
                (servers.L1_WRITE, 240),
                (servers.L1_EVICTED, 240),
                (servers.L2_LOADED, 120),
            )
        },
        {10: set(), 60: {"LMCacheL1Thrash"}},
    ),
    Case(
        "L1 evicts what nobody asks for again",
        {
            f'{series.name}{{instance="gb10:8080"}}': counter((60, 240))
            for series in (servers.L1_WRITE, servers.L1_EVICTED)
        },
        {60: set()},
    ),
    Case(
        "LMCache drops events",
        {
            f'{servers.EVENTS_DROPPED.name}{{instance="gb10:8080"}}': counter(
                (20, 0), (5, 7), (35, 0)
            )
        },
        {20: set(), 26: {"LMCacheEventsDropped"}, 60: set()},
    ),
    Case(
        "LMCache falls silent, and another target too",
        {
            'up{job="lmcache",instance="gb10:8080"}': "1x10 0x20",
            'up{job="app",instance="a:1"}': "1x10 0x20",
        },
        {10: set(), 13: set(), 20: {"LMCacheSilent"}},
    ),
    Case(
        "memory runs low",
        {
            f'{servers.MEM_AVAILABLE.name}{{instance="gb10:9100"}}': f"{limits.MEMORY_LOW_BYTES}x10 {limits.MEMORY_LOW_BYTES - 1}x20",
            f'{servers.MEM_AVAILABLE.name}{{instance="other:9100"}}': gauge(
                30, limits.MEMORY_LOW_BYTES
            ),
        },
        {10: set(), 13: set(), 20: {"GB10MemoryLow"}},
    ),
    Case(
        "LMCache restarts: its counters start again",
        STEADY | {name: f"{values} {values}" for name, values in HONOURED.items()},
        {95: set(), 100: set(), 130: set()},
    ),
]


def test_every_alert_has_a_case_that_fires_it() -> None:
    assert set().union(*(names for case in CASES for names in case.fires.values())) == ALERTS


def test_every_alert_has_a_moment_without_it() -> None:
    for alert in ALERTS:
        assert any(alert not in firing for case in CASES for firing in case.fires.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    for name, text in FILES.items():
        if name.startswith("rules/"):
            (folder / Path(name).name).write_text(text)
    return folder


def test_check(folder: Path) -> None:
    said = run(
        tool("promtool", package="prometheus"), "check", "rules", *sorted(folder.glob("*.yaml"))
    )
    assert said.count("SUCCESS") == 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, folder: Path, tmp_path: Path) -> None:
    promtool = tool("promtool", package="prometheus")
    tests = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)
            ],
        }
        for minute, firing in case.fires.items()
    ]
    for expr, value in case.values.items():
        bare = expr.split("(")[0] if expr.startswith("kvpolicy:") else ""
        tests.append(
            {
                "expr": expr,
                "eval_time": f"{case.at}m",
                "exp_samples": [{"labels": bare or "{}", "value": value}],
            }
        )
    given = {
        "rule_files": [str(path) for path in sorted(folder.glob("*.yaml"))],
        "evaluation_interval": "1m",
        # Recorded series first: alerts read them at the same moment.
        "group_eval_order": ["kvpolicy-ratios", "kvpolicy-alerts"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in case.series.items()
                ],
                "promql_expr_test": tests,
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(given, width=1000))
    run(promtool, "test", "rules", path)


def test_a_wrong_expectation_fails(folder: Path, tmp_path: Path) -> None:
    wrong = Case("wrong", STEADY, {60: {"KVPolicyErrors"}})
    with pytest.raises(AssertionError, match="KVPolicyErrors"):
        test_case(wrong, folder, tmp_path)

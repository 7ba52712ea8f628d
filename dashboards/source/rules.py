"""Recording and alert rules, as code: the same queries and limits as the panels.

Recorded series are fleet-wide: they pair what all applications decided with what all LMCache servers found, at the same moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_kvpolicy import series as servers
from otel_kvpolicy.telemetry import names

from . import limits
from .queries import LMCACHE_JOB, SKIP_SENT, Scope, equals, label
from .queries import RULES as ALL

STORED_WINDOW: Final = "30m"
CORRELATION_WINDOW: Final = "1h"

SKIP_CALLS: Final = "kvpolicy:decisions_skip:ratio_rate5m"
SKIP_TOKENS: Final = "kvpolicy:prompt_tokens_skip:ratio_rate5m"
SKIP_SENT_TOKENS: Final = "kvpolicy:prompt_tokens_skip_sent:ratio_rate5m"
CALL_RATE: Final = "kvpolicy:decisions:rate5m"
HIT: Final = "kvpolicy:lmcache_hit:ratio_rate5m"
HIT_L1: Final = "kvpolicy:lmcache_hit_l1:ratio_rate5m"
HIT_L2: Final = "kvpolicy:lmcache_hit_l2:ratio_rate5m"
STORED_OF_MISSED: Final = "kvpolicy:lmcache_stored_of_missed:ratio_rate30m"
SKIP_SENT_TOKENS_LONG: Final = "kvpolicy:prompt_tokens_skip_sent:ratio_rate30m"

_TIERS: Final = (
    ("L1 hit rate", HIT_L1, "l1"),
    ("L2 hit rate", HIT_L2, "l2"),
    ("L1 + L2 hit rate", HIT, "all"),
)


@dataclass(frozen=True)
class Rule:
    """A recording rule, or with ``summary`` an alert.

    Attributes:
        name: recorded series, or name of the alert.
        expr: what is evaluated.
        wait: how long an alert's condition must hold.
        severity: an alert's label.
        summary: what is wrong, in a line.
        detail: what it means.
        runbook: what to do.
    """

    name: str
    expr: str
    wait: str = ""
    severity: str = ""
    summary: str = ""
    detail: str = ""
    runbook: str = ""


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated one after the other, at one moment."""

    name: str
    rules: Sequence[Rule] = field(default_factory=tuple)


def _correlation(hit: str, tier: str) -> Iterable[Rule]:
    # Pearson's r over the samples at which both ratios exist: (mean(xy) - mean(x) mean(y)) / (sd(x) sd(y)). A group is evaluated at one
    # moment, so the recorded pairs line up. A ratio that does not vary has no correlation; its computed deviation is tiny, not always 0.
    x, y, xy = (f"kvpolicy:correlation_{part}:{tier}" for part in ("skip", "hit", "product"))
    over = f"[{CORRELATION_WINDOW}]"
    yield Rule(x, f"{SKIP_SENT_TOKENS} and {hit}")
    yield Rule(y, f"{hit} and {SKIP_SENT_TOKENS}")
    yield Rule(xy, f"{x} * {y}")
    yield Rule(
        _pearson(tier),
        f"clamp((avg_over_time({xy}{over}) - avg_over_time({x}{over}) * avg_over_time({y}{over}))"
        f" / ((stddev_over_time({x}{over}) > 1e-6) * (stddev_over_time({y}{over}) > 1e-6)), -1, 1)",
    )
    yield Rule(_samples(tier), f"count_over_time({xy}{over})")


def _pearson(tier: str) -> str:
    return f"kvpolicy:skip_hit_correlation:{tier}_1h"


def _samples(tier: str) -> str:
    return f"kvpolicy:skip_hit_correlation_samples:{tier}_1h"


CORRELATIONS: Final = tuple((legend, _pearson(tier), _samples(tier)) for legend, _, tier in _TIERS)
"""Legend, recorded correlation and recorded number of its samples, for each tier."""

SAMPLES: Final = _samples("all")

_LONG: Final = Scope(window=STORED_WINDOW)
_SLOW: Final = Scope(window="15m")

RECORDING: Final = (
    Group(
        "kvpolicy-ratios",
        (
            Rule(CALL_RATE, ALL.rate(names.DECISIONS)),
            Rule(SKIP_CALLS, ALL.skip_ratio_calls()),
            Rule(SKIP_TOKENS, ALL.skip_ratio_tokens()),
            Rule(SKIP_SENT_TOKENS, ALL.skip_ratio_sent()),
            Rule(SKIP_SENT_TOKENS_LONG, _LONG.skip_ratio_sent()),
            Rule(HIT, ALL.hit_rate()),
            Rule(HIT_L1, ALL.tier_hit_rate(servers.LOOKUP_HIT_L1)),
            Rule(HIT_L2, ALL.tier_hit_rate(servers.LOOKUP_HIT_L2)),
            Rule(STORED_OF_MISSED, ALL.stored_of_missed(STORED_WINDOW)),
            *(rule for _, hit, tier in _TIERS for rule in _correlation(hit, tier)),
        ),
    ),
)

_BY_TARGET: Final = ("job", label(names.SERVER_ADDRESS))
_CALLS_NOW: Final = f"{CALL_RATE} > {limits.MIN_CALLS_PER_SECOND}"
_WRITES: Final = _SLOW.rate(servers.L1_WRITE, by=("instance",))
_TOLD_TO_SKIP: Final = ALL.counted(names.DECISIONS, *SKIP_SENT, window="30m")

ALERTS: Final = (
    Group(
        "kvpolicy-alerts",
        (
            Rule(
                "KVPolicySkipRatioJumped",
                f"abs({SKIP_CALLS} - avg_over_time({SKIP_CALLS}[1h] offset 10m)) > {limits.SKIP_JUMP} and {_CALLS_NOW}",
                "10m",
                "warning",
                'Share of skipped calls changed by {{ printf "%.2f" $value }} against the hour before.',
                "Traffic, a setting or a prompt changed.",
                "Look at Reasons and Skip ratio by service, model and agent on the KV policy dashboard; compare the thresholds on "
                "the spans "
                "(kvpolicy.thresholds.*) before and after.",
            ),
            Rule(
                "KVPolicyHitRateFellWhileSkipRose",
                f"(avg_over_time({HIT}[10m] offset 30m) - avg_over_time({HIT}[10m]) > {limits.HIT_FELL}) "
                f"and (avg_over_time({SKIP_SENT_TOKENS}[10m]) - avg_over_time({SKIP_SENT_TOKENS}[10m] offset 30m) > {limits.SKIP_ROSE})",
                "5m",
                "warning",
                'LMCache\'s hit rate fell by {{ printf "%.2f" $value }} in half an hour while more was skipped.',
                "The policy may be skipping prompts that come back. It can also be new traffic that moves both.",
                "Look at Cached share of prompt tokens by decision: skipped calls with a large share were wanted. Lower "
                "KV_CACHE_MIN_PREFIX_TOKENS or switch to observe mode and compare.",
            ),
            Rule(
                "KVPolicyHintRejected",
                f"{ALL.counted(names.DECISIONS, equals(names.HINT_OUTCOME, 'rejected'), window='15m', by=_BY_TARGET)} > 0",
                "",
                "warning",
                "{{ $labels.server_address }} refuses the hint.",
                "The server answered that it does not know kv_transfer_params; the call was repeated without it.",
                "If the server is a hosted API, exclude it. If it is a vLLM behind a gateway, let the gateway pass the field on.",
            ),
            Rule(
                "KVPolicyHintIgnored",
                f"{STORED_OF_MISSED} > 1 - {limits.IGNORED_EFFECT} * ({SKIP_SENT_TOKENS_LONG} > {limits.IGNORED_MIN_SKIP})",
                "15m",
                "warning",
                'Hints are applied, but LMCache stores {{ printf "%.2f" $value }} of the tokens it misses.',
                "The silent no-op: the server takes the hint and stores all the same, or clients without this package store.",
                "Run otel-kvpolicy doctor against the server. LMCache's multi-process server needs 0.5.6 or later, and vLLM must "
                "load LMCache's "
                "own connector (log line: Using external LMCacheMPConnector).",
            ),
            Rule(
                "KVPolicyLMCacheTooOld",
                f"group by (instance) ({servers.LOOKUP_REQUESTED.name} unless on (instance) {servers.LOOKUP_HIT_L1_KEYS.name}) "
                f"and on () ({_TOLD_TO_SKIP} > 0)",
                "10m",
                "warning",
                "LMCache on {{ $labels.instance }} is older than 0.5.6 and honours no hint.",
                "Calls are told to skip, but this multi-process server has no per-request control of stores.",
                "Update LMCache, or set the policy to observe mode.",
            ),
            Rule(
                "KVPolicyErrors",
                f"{ALL.counted(names.ERRORS, window='15m', by=('job', label(names.SEAM), label(names.ERROR_TYPE)))} > 0",
                "",
                "warning",
                "The KV policy failed in {{ $labels.job }}: {{ $labels.error_type }} at {{ $labels.kvpolicy_seam }}.",
                "The calls went out untouched, so their KV is stored as without the policy.",
                "The application's log has the fault once, with its traceback. KV_CACHE_LAYERING=false switches the policy off "
                "without a restart.",
            ),
            Rule(
                "LMCacheL1Thrash",
                f"({_SLOW.rate(servers.L1_EVICTED, by=('instance',))} / ({_WRITES} > 0) > {limits.THRASH_EVICTED}) "
                f"and ({_SLOW.rate(servers.L2_LOADED, by=('instance',))} / ({_WRITES} > 0) > {limits.THRASH_RELOADED})",
                "15m",
                "warning",
                'L1 on {{ $labels.instance }} evicts {{ printf "%.2f" $value }} of what it takes in, and loads much of it back.',
                "The working set does not fit into L1.",
                "Skip more (raise KV_CACHE_MIN_PREFIX_TOKENS), or give L1 more memory (--l1-size-gb), if the host has any left.",
            ),
            Rule(
                "LMCacheEventsDropped",
                f"sum by (instance) (increase({servers.EVENTS_DROPPED.name}[10m])) > 0",
                "",
                "info",
                "LMCache on {{ $labels.instance }} dropped events: its counters undercount.",
                "Hit rates and chunk counts of this time are too low.",
                "Wait for the load to fall, or raise the event bus' queue size; do not judge the policy by these figures.",
            ),
            Rule(
                "LMCacheSilent",
                f"{ALL.select(servers.UP, LMCACHE_JOB)} == 0",
                "5m",
                "warning",
                "LMCache on {{ $labels.instance }} cannot be scraped.",
                "Its panels have no data, which is not zero.",
                "Check the server, and that it listens where the scrape goes: its HTTP port is on loopback unless started with "
                "--http-host.",
            ),
            Rule(
                "GB10MemoryLow",
                f"min by (instance) ({servers.MEM_AVAILABLE.name}) < {limits.MEMORY_LOW_BYTES}",
                "5m",
                "critical",
                "{{ $labels.instance }} has {{ $value | humanize1024 }}B of memory left.",
                "CPU and GPU share it; a GB10 that runs out tends to freeze.",
                "Lower LMCache's --l1-size-gb or vLLM's --gpu-memory-utilization, and restart the one that grew.",
            ),
        ),
    ),
)

GROUPS: Final[Mapping[str, Sequence[Group]]] = {"recording.yaml": RECORDING, "alerts.yaml": ALERTS}


def as_yaml(groups: Sequence[Group]) -> str:
    """The rules as Prometheus reads them. Written by hand, so that the package needs no YAML library."""
    lines = [
        "# Built by: otel-kvpolicy dashboards build. Edit otel_kvpolicy/dashboards/rules.py instead.",
        "groups:",
    ]
    for group in groups:
        lines += [f"  - name: {group.name}", "    rules:"]
        for rule in group.rules:
            lines += (
                _alert(rule)
                if rule.summary
                else [f"      - record: {rule.name}", *_block("expr", rule.expr)]
            )
    return "\n".join(lines) + "\n"


def _alert(rule: Rule) -> Iterable[str]:
    yield f"      - alert: {rule.name}"
    yield from _block("expr", rule.expr)
    if rule.wait:
        yield f"        for: {rule.wait}"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield "        annotations:"
    for key, words in (
        ("summary", rule.summary),
        ("description", rule.detail),
        ("runbook", rule.runbook),
    ):
        yield from _block(key, words, indent=10)


def _block(key: str, words: str, *, indent: int = 8) -> Iterable[str]:
    # A literal block: nothing in it needs quoting.
    yield f"{' ' * indent}{key}: |-"
    yield f"{' ' * indent}  {words}"

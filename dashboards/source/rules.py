"""Recording rules and alerts, from the same queries and limits as the panels.

Recorded series cover the whole fleet: they pair what all applications decided with what all LMCache
servers found, at the same moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_kvpolicy import series
from otel_kvpolicy.telemetry import names

from . import limits
from .queries import FLEET, LMCACHE_JOB, SKIP_SENT, Scope, equals, label, quotient

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
"""Legend, recorded hit rate, and the tier's part of a recorded name."""


@dataclass(frozen=True)
class Recording:
    """A recording rule.

    Attributes:
        name: name of the recorded series.
        expr: PromQL that is recorded.
    """

    name: str
    expr: str


@dataclass(frozen=True)
class Alert:
    """An alert rule.

    Attributes:
        name: name of the alert.
        expr: PromQL; the alert is active while it returns something.
        wait: how long the condition must hold before the alert fires; empty to fire at once.
        severity: value of the alert's ``severity`` label.
        summary: what is wrong, in one line.
        description: what it means.
        runbook: what to do.
    """

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    description: str
    runbook: str


@dataclass(frozen=True)
class Group:
    """Rules that Prometheus evaluates in order, at one moment."""

    name: str
    rules: Sequence[Recording | Alert]


def _correlation(hit: str, tier: str) -> Iterable[Recording]:
    # Pearson's r over the samples that have both ratios:
    # (mean(xy) - mean(x) mean(y)) / (sd(x) sd(y)). A group is evaluated at one moment, so the
    # recorded pairs line up. A ratio that does not vary has no correlation; its computed deviation
    # is tiny but not always 0.
    x, y, xy = (f"kvpolicy:correlation_{part}:{tier}" for part in ("skip", "hit", "product"))
    over = f"[{CORRELATION_WINDOW}]"
    covariance = (
        f"(avg_over_time({xy}{over}) - avg_over_time({x}{over}) * avg_over_time({y}{over}))"
    )
    deviations = f"((stddev_over_time({x}{over}) > 1e-6) * (stddev_over_time({y}{over}) > 1e-6))"
    yield Recording(x, f"{SKIP_SENT_TOKENS} and {hit}")
    yield Recording(y, f"{hit} and {SKIP_SENT_TOKENS}")
    yield Recording(xy, f"{x} * {y}")
    yield Recording(_pearson(tier), f"clamp({covariance} / {deviations}, -1, 1)")
    yield Recording(_samples(tier), f"count_over_time({xy}{over})")


def _pearson(tier: str) -> str:
    return f"kvpolicy:skip_hit_correlation:{tier}_1h"


def _samples(tier: str) -> str:
    return f"kvpolicy:skip_hit_correlation_samples:{tier}_1h"


CORRELATIONS: Final = tuple((legend, _pearson(tier), _samples(tier)) for legend, _, tier in _TIERS)
"""Legend, recorded correlation, and recorded number of its samples, for each tier."""

SAMPLES: Final = _samples("all")

_LONG: Final = Scope(window=STORED_WINDOW)
_SLOW: Final = Scope(window="15m")

RECORDING: Final = (
    Group(
        "kvpolicy-ratios",
        (
            Recording(CALL_RATE, FLEET.rate(names.DECISIONS)),
            Recording(SKIP_CALLS, FLEET.skip_ratio_calls()),
            Recording(SKIP_TOKENS, FLEET.skip_ratio_tokens()),
            Recording(SKIP_SENT_TOKENS, FLEET.skip_ratio_sent()),
            Recording(SKIP_SENT_TOKENS_LONG, _LONG.skip_ratio_sent()),
            Recording(HIT, FLEET.hit_rate()),
            Recording(HIT_L1, FLEET.tier_hit_rate(series.LOOKUP_HIT_L1)),
            Recording(HIT_L2, FLEET.tier_hit_rate(series.LOOKUP_HIT_L2)),
            Recording(STORED_OF_MISSED, FLEET.stored_of_missed(STORED_WINDOW)),
            *(rule for _, hit, tier in _TIERS for rule in _correlation(hit, tier)),
        ),
    ),
)

_BY_TARGET: Final = ("job", label(names.SERVER_ADDRESS))
_BY_ERROR: Final = ("job", label(names.SEAM), label(names.ERROR_TYPE))
_ENOUGH_CALLS: Final = f"{CALL_RATE} > {limits.MIN_CALLS_PER_SECOND}"
_REJECTED: Final = equals(names.HINT_OUTCOME, "rejected")
_SKIP_HINTS: Final = FLEET.growth(names.DECISIONS, *SKIP_SENT, window="30m")


def _fell(ratio: str) -> str:
    return f"avg_over_time({ratio}[10m] offset 30m) - avg_over_time({ratio}[10m])"


def _rose(ratio: str) -> str:
    return f"avg_over_time({ratio}[10m]) - avg_over_time({ratio}[10m] offset 30m)"


def _of_writes(counter: series.Series) -> str:
    by = ("instance",)
    return quotient(_SLOW.rate(counter, by=by), _SLOW.rate(series.L1_WRITE, by=by))


ALERTS: Final = (
    Group(
        "kvpolicy-alerts",
        (
            Alert(
                "KVPolicySkipRatioJumped",
                f"abs({SKIP_CALLS} - avg_over_time({SKIP_CALLS}[1h] offset 10m))"
                f" > {limits.SKIP_JUMP} and {_ENOUGH_CALLS}",
                "10m",
                "warning",
                'The share of skipped calls differs by {{ printf "%.2f" $value }} from the hour'
                " before.",
                "The traffic, a setting or a prompt changed.",
                "On the KV policy dashboard, look at Reasons and at Skip ratio by service, model"
                " and agent. Compare the thresholds on the spans (kvpolicy.thresholds.*) before"
                " and after the change.",
            ),
            Alert(
                "KVPolicyHitRateFellWhileSkipRose",
                f"({_fell(HIT)} > {limits.HIT_FELL})"
                f" and ({_rose(SKIP_SENT_TOKENS)} > {limits.SKIP_ROSE})",
                "5m",
                "warning",
                'LMCache\'s hit rate fell by {{ printf "%.2f" $value }} in half an hour while the'
                " skip ratio rose.",
                "The policy may be skipping prompts that come back. New traffic can also be the"
                " cause.",
                "Look at Cached share of prompt tokens, by decision. If the share of skipped calls"
                " is large, lower KV_CACHE_MIN_PREFIX_TOKENS, or switch to observe mode and"
                " compare.",
            ),
            Alert(
                "KVPolicyHintRejected",
                f"{FLEET.growth(names.DECISIONS, _REJECTED, window='15m', by=_BY_TARGET)} > 0",
                "",
                "warning",
                "{{ $labels.server_address }} rejects the hint.",
                "The server does not accept kv_transfer_params. Its first call was repeated without"
                " it, and later ones are sent without it.",
                "If the server is a hosted API, exclude it. If it is a vLLM behind a gateway,"
                " configure the gateway to pass the field on.",
            ),
            Alert(
                "KVPolicyHintIgnored",
                f"{STORED_OF_MISSED} > 1 - {limits.IGNORED_EFFECT} *"
                f" ({SKIP_SENT_TOKENS_LONG} > {limits.IGNORED_MIN_SKIP})",
                "15m",
                "warning",
                'Skip hints are sent, but LMCache stores {{ printf "%.2f" $value }} of the tokens'
                " that it misses.",
                "Either the server accepts the hint and stores anyway, or clients without this"
                " package store.",
                "Run otel-kvpolicy doctor against the server. LMCache's multi-process server must"
                " be 0.5.6 or later, and vLLM must load LMCache's own connector (log line: Using"
                " external LMCacheMPConnector).",
            ),
            Alert(
                "KVPolicyLMCacheTooOld",
                f"group by (instance) ({series.LOOKUP_REQUESTED.name}"
                f" unless on (instance) {series.LOOKUP_HIT_L1_KEYS.name})"
                f" and on () ({_SKIP_HINTS} > 0)",
                "10m",
                "warning",
                "LMCache on {{ $labels.instance }} is older than 0.5.6 and ignores the hint.",
                "Calls carry a skip hint, but this multi-process server cannot control stores per"
                " request.",
                "Update LMCache, or set the policy to observe mode.",
            ),
            Alert(
                "KVPolicyErrors",
                f"{FLEET.growth(names.ERRORS, window='15m', by=_BY_ERROR)} > 0",
                "",
                "warning",
                "The KV policy failed in {{ $labels.job }}: {{ $labels.error_type }} at"
                " {{ $labels.kvpolicy_seam }}.",
                "The affected calls went out unchanged, so their KV cache is stored as it would be"
                " without the policy.",
                "The application's log has the error once, with its traceback."
                " KV_CACHE_LAYERING=false switches the policy off without a restart.",
            ),
            Alert(
                "LMCacheL1Thrash",
                f"({_of_writes(series.L1_EVICTED)} > {limits.THRASH_EVICTED})"
                f" and ({_of_writes(series.L2_LOADED)} > {limits.THRASH_RELOADED})",
                "15m",
                "warning",
                'L1 on {{ $labels.instance }} evicts {{ printf "%.2f" $value }} of what is written'
                " to it, and loads much of it back.",
                "The working set does not fit into L1.",
                "Skip more calls (raise KV_CACHE_MIN_PREFIX_TOKENS), or give L1 more memory"
                " (--l1-size-gb) if the host has memory to spare.",
            ),
            Alert(
                "LMCacheEventsDropped",
                f"sum by (instance) (increase({series.EVENTS_DROPPED.name}[10m])) > 0",
                "",
                "info",
                "LMCache on {{ $labels.instance }} dropped events, so its counters are too low.",
                "Hit rates and chunk counts of this period are too low.",
                "Wait for the load to fall, or raise the size of the event bus's queue. Do not"
                " judge the policy by the figures of this period.",
            ),
            Alert(
                "LMCacheSilent",
                f"{FLEET.select(series.UP, LMCACHE_JOB)} == 0",
                "5m",
                "warning",
                "LMCache on {{ $labels.instance }} cannot be scraped.",
                "Its panels have no data, which does not mean zero.",
                "Check that the server runs and that it listens on the scraped address. Its HTTP"
                " port is bound to loopback unless the server is started with --http-host.",
            ),
            Alert(
                "GB10MemoryLow",
                f"min by (instance) ({series.MEM_AVAILABLE.name}) < {limits.MEMORY_LOW_BYTES}",
                "5m",
                "critical",
                "{{ $labels.instance }} has {{ $value | humanize1024 }}B of memory available.",
                "The CPU and the GPU share this memory. A GB10 that runs out tends to freeze.",
                "Lower LMCache's --l1-size-gb or vLLM's --gpu-memory-utilization, and restart the"
                " process that grew.",
            ),
        ),
    ),
)

GROUPS: Final[Mapping[str, Sequence[Group]]] = {"recording.yaml": RECORDING, "alerts.yaml": ALERTS}
"""Groups of rules by file name."""


def as_yaml(groups: Sequence[Group]) -> str:
    """Return rules in Prometheus' format.

    The YAML is put together here, so that the generator needs no YAML library.
    """
    lines = [
        "# Built by: python -m dashboards.source.build. Edit dashboards/source/rules.py instead.",
        "groups:",
    ]
    for group in groups:
        lines += [f"  - name: {group.name}", "    rules:"]
        for rule in group.rules:
            lines += _recording(rule) if isinstance(rule, Recording) else _alert(rule)
    return "\n".join(lines) + "\n"


def _recording(rule: Recording) -> Iterable[str]:
    yield f"      - record: {rule.name}"
    yield from _block("expr", rule.expr)


def _alert(rule: Alert) -> Iterable[str]:
    yield f"      - alert: {rule.name}"
    yield from _block("expr", rule.expr)
    if rule.wait:
        yield f"        for: {rule.wait}"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield "        annotations:"
    for key, words in (
        ("summary", rule.summary),
        ("description", rule.description),
        ("runbook", rule.runbook),
    ):
        yield from _block(key, words, indent=10)


def _block(key: str, words: str, *, indent: int = 8) -> Iterable[str]:
    # Nothing in a literal block needs quoting.
    yield f"{' ' * indent}{key}: |-"
    yield f"{' ' * indent}  {words}"

"""Dashboard "KV policy": what was decided, why, and what it cost."""

from __future__ import annotations

from typing import Final

from otel_kvpolicy.telemetry import names

from .common import AGENT, ALERTS, MODEL, SERVICE, TO_REJECTED, TO_SKIPPED, TO_TRACES, UID_POLICY
from .panels import (
    JSON,
    Panel,
    Query,
    Row,
    Threshold,
    dashboard,
    heatmap,
    stat,
    table,
    text,
    timeseries,
)
from .queries import DASHBOARD as ALL
from .queries import SHADOW_SKIPPED, SHADOWED, SKIPPED, equals, label

IDLE: Final = "no calls"
NO_SHADOW: Final = "KV_CACHE_SHADOW is off"
_RANGE: Final = "$__range"
_DECISION: Final = label(names.DECISION)
_OUTCOME: Final = label(names.HINT_OUTCOME)
_REASON: Final = label(names.REASON)


def build() -> JSON:
    """The dashboard."""
    return dashboard(
        UID_POLICY,
        "KV policy",
        "Which chat calls had their KV stored, which were skipped, and why. Written by otel-kvpolicy.",
        [
            Row("Now", _now()),
            Row("Decisions", _decisions()),
            Row("Who decides what", _who()),
            Row("The rule in force, and the other", _rules()),
            Row("Cost and faults", _cost()),
        ],
        [SERVICE, MODEL, AGENT],
        tempo=True,
        annotations=ALERTS,
    )


def _now() -> list[Panel]:
    observe = ALL.share(names.DECISIONS, equals(names.MODE, "observe"))
    calls = ALL.counted(names.DECISIONS, window=_RANGE)
    skipped = ALL.counted(names.DECISIONS, SKIPPED, window=_RANGE)
    tokens = ALL.counted(names.PROMPT_TOKENS, window=_RANGE)
    skipped_tokens = ALL.counted(names.PROMPT_TOKENS, SKIPPED, window=_RANGE)
    return [
        stat(
            "Mode",
            "Share of calls in observe mode, where decisions are recorded and no hint is sent.",
            "percentunit",
            [Query(observe, "observed")],
            IDLE,
            low=0,
            high=1,
            base="green",
            thresholds=[Threshold(0.001, "orange")],
            states={
                0: ("ENFORCE: hints are sent", "green"),
                1: ("OBSERVE: nothing is sent", "orange"),
            },
            width=6,
            background=True,
        ),
        stat(
            "Calls",
            "Chat calls decided in the time range.",
            "short",
            [Query(calls, "calls")],
            IDLE,
            width=3,
            decimals=0,
        ),
        stat(
            "Skipped calls",
            "Share of the calls of the time range decided to be skipped.",
            "percentunit",
            [Query(f"({skipped} or 0 * {calls}) / ({calls} > 0)", "skip ratio")],
            IDLE,
            low=0,
            high=1,
            width=4,
        ),
        stat(
            "Skipped tokens",
            "Share of the prompt tokens of the time range in skipped calls: what the cache was spared, if the hint was sent and honoured.",
            "percentunit",
            [Query(f"({skipped_tokens} or 0 * {tokens}) / ({tokens} > 0)", "skip ratio")],
            IDLE,
            low=0,
            high=1,
            width=4,
        ),
        stat(
            "Hints rejected",
            "Calls whose server refused the extra field and that were repeated without it. Counts the first such call too.",
            "short",
            [
                Query(
                    f"{ALL.counted(names.DECISIONS, equals(names.HINT_OUTCOME, 'rejected'), window=_RANGE)} or 0 * {calls}",
                    "rejected",
                )
            ],
            IDLE,
            width=4,
            decimals=0,
            base="green",
            thresholds=[Threshold(1, "red")],
        ),
        stat(
            "Policy faults",
            "Faults of this package; each such call went out untouched.",
            "short",
            [Query(f"{ALL.counted(names.ERRORS, window=_RANGE)} or 0 * {calls}", "faults")],
            IDLE,
            width=3,
            decimals=0,
            base="green",
            thresholds=[Threshold(1, "red")],
        ),
        text(
            "How to read",
            "**Skip** means: this prompt is not expected back, so its KV is not worth writing. Reading the cache is not affected.  \n"
            "The dashboard *KV policy x LMCache* shows whether that pays; *Why skipped* lists the calls.",
        ),
    ]


def _decisions() -> list[Panel]:
    by = (_DECISION,)
    legend = f"{{{{{_DECISION}}}}}"
    return [
        timeseries(
            "Calls by decision",
            "Chat calls per second. Click a point for its traces.",
            "reqps",
            [Query(ALL.rate(names.DECISIONS, by=by), legend, exemplar=True)],
            IDLE,
            stack=True,
            links=[TO_SKIPPED, TO_TRACES],
        ),
        timeseries(
            "Prompt tokens by decision",
            "Prompt tokens per second: as the server counted them where it said so, else estimated.",
            "short",
            [Query(ALL.rate(names.PROMPT_TOKENS, by=by), legend, exemplar=True)],
            IDLE,
            stack=True,
            links=[TO_SKIPPED, TO_TRACES],
        ),
        timeseries(
            "Skip ratio",
            "Share of calls, and of prompt tokens, decided to be skipped. Tokens weigh what the cache is spared; one-off prompts "
            "are short, "
            "so their line is usually the lower one.",
            "percentunit",
            [
                Query(ALL.skip_ratio_calls(), "skip ratio, calls"),
                Query(ALL.skip_ratio_tokens(), "skip ratio, tokens"),
            ],
            IDLE,
            high=1,
            links=[TO_SKIPPED],
        ),
        timeseries(
            "Reasons",
            "Calls per second by the strongest reason of the decision.",
            "reqps",
            [
                Query(
                    ALL.rate(names.DECISIONS, by=(_REASON, _DECISION)),
                    f"{{{{{_DECISION}}}}}: {{{{{_REASON}}}}}",
                )
            ],
            IDLE,
            stack=True,
            links=[TO_TRACES],
        ),
        heatmap(
            "Score",
            "How the scores of the decided calls are distributed (0 to 1). A band near the middle is traffic the thresholds cut through. "
            "Not by agent: the metric has none.",
            "none",
            Query(
                f"sum by (le) (increase({ALL.select(names.SCORE_METRIC, suffix='_bucket')}[$__rate_interval]))",
                "{{le}}",
                heat=True,
            ),
            IDLE,
        ),
        timeseries(
            "Hint outcomes",
            "What became of the hint: applied; observed (observe mode); caller (the caller had set it); excluded_target (a hosted "
            "API that would "
            "refuse it); rejected (the server refused, the call was repeated without); disabled; error.",
            "reqps",
            [Query(ALL.rate(names.DECISIONS, by=(_OUTCOME,)), f"{{{{{_OUTCOME}}}}}")],
            IDLE,
            stack=True,
            links=[TO_REJECTED],
        ),
    ]


def _who() -> list[Panel]:
    def ratio(attribute: str) -> str:
        return ALL.share(names.PROMPT_TOKENS, SKIPPED, by=(attribute,))

    who = (
        "job",
        label(names.REQUEST_MODEL),
        label(names.AGENT_NAME),
        label(names.SERVER_ADDRESS),
        _DECISION,
        _REASON,
    )
    return [
        timeseries(
            "Skip ratio by service",
            "Share of prompt tokens skipped.",
            "percentunit",
            [Query(ratio("job"), "{{job}}")],
            IDLE,
            width=8,
            high=1,
        ),
        timeseries(
            "Skip ratio by model",
            "Share of prompt tokens skipped.",
            "percentunit",
            [Query(ratio(label(names.REQUEST_MODEL)), f"{{{{{label(names.REQUEST_MODEL)}}}}}")],
            IDLE,
            width=8,
            high=1,
        ),
        timeseries(
            "Skip ratio by agent",
            "Share of prompt tokens skipped; a line without a name is calls that named no agent.",
            "percentunit",
            [Query(ratio(label(names.AGENT_NAME)), f"agent {{{{{label(names.AGENT_NAME)}}}}}")],
            IDLE,
            width=8,
            high=1,
        ),
        table(
            "Calls in the time range",
            "Calls by who made them, where they went, and what was decided.",
            "short",
            [Query(ALL.counted(names.DECISIONS, window=_RANGE, by=who), "calls")],
            IDLE,
            width=24,
            links=[TO_TRACES],
        ),
    ]


def _rules() -> list[Panel]:
    in_force, other = label(names.DECISION), label(names.SHADOW_DECISION)
    return [
        timeseries(
            "Skip ratio of both rules",
            "Share of prompt tokens skipped by the rule in force, and by the other one, which only watches (KV_CACHE_SHADOW=true).",
            "percentunit",
            [
                Query(ALL.share(names.PROMPT_TOKENS, SKIPPED, of=(SHADOWED,)), "in force"),
                Query(
                    ALL.share(names.PROMPT_TOKENS, SHADOW_SKIPPED, of=(SHADOWED,)), "in the shadow"
                ),
            ],
            NO_SHADOW,
            high=1,
        ),
        timeseries(
            "Where they differ",
            "Prompt tokens per second, by what the rule in force says and what the other one says.",
            "short",
            [
                Query(
                    ALL.rate(names.PROMPT_TOKENS, SHADOWED, by=(in_force, other)),
                    f"in force {{{{{in_force}}}}}, shadow {{{{{other}}}}}",
                )
            ],
            NO_SHADOW,
            stack=True,
        ),
    ]


def _cost() -> list[Panel]:
    duration = names.DECISION_DURATION
    mean = f"{ALL.rate(duration, suffix='_sum')} / ({ALL.rate(duration, suffix='_count')} > 0)"
    return [
        timeseries(
            "Cost of a decision",
            "Time that reading the request and deciding took, before the call went out. Not by model or agent: the metric has neither.",
            "s",
            [
                *(
                    Query(ALL.quantile(q, duration), f"p{q * 100:.0f}", exemplar=True)
                    for q in (0.5, 0.95, 0.99)
                ),
                Query(mean, "mean"),
            ],
            IDLE,
        ),
        timeseries(
            "Faults",
            "Faults of this package per second, by the seam they happened at and their type. The calls went out untouched. "
            "The metric exists from the first fault on.",
            "ops",
            [
                Query(
                    ALL.rate(names.ERRORS, by=(label(names.SEAM), label(names.ERROR_TYPE))),
                    f"{{{{{label(names.SEAM)}}}}}: {{{{{label(names.ERROR_TYPE)}}}}}",
                )
            ],
            "no fault so far",
        ),
    ]

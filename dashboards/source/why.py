"""Dashboard "Why skipped": single calls, each with the sentence that explains it."""

from __future__ import annotations

from typing import Final

from otel_kvpolicy import series
from otel_kvpolicy.telemetry import names

from .common import (
    AGENT,
    ALERTS,
    DECISION,
    EXPLAIN,
    MODEL,
    NO_CALLS,
    NO_SPANS,
    RANGE,
    SERVICE,
    UID_WHY,
)
from .layout import dashboard
from .model import JSON, Link, Panel, Query, Row, explore
from .panels import table, text, timeseries, traces
from .queries import SELECTED, label, legend, matches

_COLUMNS: Final = (
    names.EXPLANATION,
    names.REASONS,
    names.AGENT_NAME,
    names.REQUEST_MODEL,
    names.SIGNAL_TOTAL_TOKENS,
    names.SCORE,
    names.HINT_OUTCOME,
    names.USAGE_CACHE_READ_INPUT_TOKENS,
)
NO_TRACES: Final = "no such calls in the time range, or no Tempo"
_OPEN: Final = Link(EXPLAIN, explore("${__value.text}"))


def build() -> JSON:
    """Return the dashboard."""
    return dashboard(
        UID_WHY,
        "Why skipped",
        "Single calls with their explanation, from Tempo. Without Tempo, counts by reason from"
        " metrics.",
        [Row("Calls (requires Tempo)", _calls()), Row("From metrics", _metrics())],
        [SERVICE, MODEL, AGENT, DECISION],
        tempo=True,
        start="now-1h",
        annotations=ALERTS,
    )


def _select(condition: str) -> str:
    columns = ", ".join(f"span.{name}" for name in _COLUMNS)
    return f'{{ {condition} && span.{names.REQUEST_MODEL} =~ "$model" }} | select({columns})'


def _calls() -> list[Panel]:
    outcome = f"span.{names.HINT_OUTCOME}"
    return [
        text(
            "Find the reason for a call",
            "The column *kvpolicy.explanation* has the reason. To compare every signal with its"
            " threshold, and to see what would have changed the decision, run\n"
            "`otel-kvpolicy explain TRACE_ID --from http://127.0.0.1:3200` with the address of"
            " Tempo.  \n"
            "The Collector of `collector/app.yaml` keeps every skipped, rejected and failed call,"
            " and a sample of the others.",
        ),
        traces(
            "Calls by decision",
            "Spans with the decision selected above. The model variable selects spans. Service and"
            " agent do not, because spans without an agent would be lost.",
            _select(f'span.{names.DECISION} = "$decision"'),
            NO_TRACES,
            links=[_OPEN],
        ),
        traces(
            "Rejected hints and errors",
            "Calls to servers that reject the hint, and calls that went out unchanged because"
            " adding the hint failed. Other errors of the policy leave no decision on the span; see"
            " *Errors* on the dashboard *KV policy*.",
            _select(f'({outcome} = "rejected" || {outcome} = "error")'),
            NO_TRACES,
            height=7,
            links=[_OPEN],
        ),
    ]


def _metrics() -> list[Panel]:
    selected = matches(names.DECISION, "$decision")
    reason, reasons, agent = (
        label(name) for name in (names.REASON, names.REASONS, names.AGENT_NAME)
    )
    return [
        timeseries(
            "Strongest reason, from the policy's metrics",
            "Calls per second with the decision selected above, by their strongest reason.",
            "reqps",
            [
                Query(
                    SELECTED.rate(names.DECISIONS, selected, by=(reason,)),
                    legend(names.REASON),
                    exemplar=True,
                )
            ],
            NO_CALLS,
            stack=True,
        ),
        timeseries(
            "All reasons, from span metrics",
            "Calls per second with the decision selected above, by all of their reasons. The"
            " Collector counts every span before it samples.",
            "reqps",
            [
                Query(
                    SELECTED.rate(series.SPAN_CALLS, selected, by=(reasons,)),
                    legend(names.REASONS),
                )
            ],
            NO_SPANS,
            stack=True,
        ),
        table(
            "Calls by service, agent and reason",
            "Calls in the time range with the decision selected above.",
            "short",
            Query(
                SELECTED.growth(names.DECISIONS, selected, window=RANGE, by=("job", agent, reason)),
                "calls",
            ),
            NO_CALLS,
            width=24,
        ),
    ]

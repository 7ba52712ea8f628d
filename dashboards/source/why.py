"""Dashboard "Why skipped": the calls themselves, with the sentence that explains each."""

from __future__ import annotations

from typing import Final

from otel_kvpolicy import series as servers
from otel_kvpolicy.telemetry import names

from .common import AGENT, ALERTS, DECISION, EXPLAIN, MODEL, SERVICE, UID_WHY
from .panels import (
    JSON,
    Link,
    Panel,
    Query,
    Row,
    dashboard,
    explore,
    table,
    text,
    timeseries,
    traces,
)
from .queries import DASHBOARD as ALL
from .queries import label, matches

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
NO_TEMPO: Final = "no Tempo, or no such call in the time range"
NO_SPANS: Final = "no span metrics (the Collector of collector/app.yaml makes them) or no calls"
_OPEN: Final = Link(
    EXPLAIN,
    explore("${__value.text}"),
)


def _select(condition: str) -> str:
    columns = ", ".join(f"span.{name}" for name in _COLUMNS)
    return f'{{ {condition} && span.{names.REQUEST_MODEL} =~ "$model" }} | select({columns})'


def build() -> JSON:
    """The dashboard."""
    return dashboard(
        UID_WHY,
        "Why skipped",
        "Single calls with their explanation, from Tempo; counts by reason from span metrics where there is no Tempo.",
        [Row("Calls (requires Tempo)", _calls()), Row("From metrics alone", _metrics())],
        [SERVICE, MODEL, AGENT, DECISION],
        tempo=True,
        span="now-1h",
        annotations=ALERTS,
    )


def _calls() -> list[Panel]:
    return [
        text(
            "From a call to its reason",
            "The column *kvpolicy.explanation* says why. For every signal against its threshold, and what would have changed the "
            "decision, run\n"
            "`otel-kvpolicy explain TRACE_ID --from http://127.0.0.1:3200` with the address of Tempo.  \n"
            "The Collector of `collector/app.yaml` keeps every skipped, rejected and failed call, and a share of the rest.",
        ),
        traces(
            "Calls by decision",
            "Spans with the decision chosen above. Model selects; service and agent do not (a span without an agent would be lost).",
            _select(f'span.{names.DECISION} = "$decision"'),
            NO_TEMPO,
            links=[_OPEN],
        ),
        traces(
            "Rejected hints and faults",
            "Calls whose server refused the hint, and calls in which this package failed.",
            _select(
                f'(span.{names.HINT_OUTCOME} = "rejected" || span.{names.HINT_OUTCOME} = "error")'
            ),
            NO_TEMPO,
            height=7,
            links=[_OPEN],
        ),
    ]


def _metrics() -> list[Panel]:
    chosen = matches(names.DECISION, "$decision")
    reasons = label(names.REASONS)
    agent = label(names.AGENT_NAME)
    return [
        timeseries(
            "Reasons, from the policy's own metrics",
            "Calls per second with the decision chosen above, by their strongest reason.",
            "reqps",
            [
                Query(
                    ALL.rate(names.DECISIONS, chosen, by=(label(names.REASON),)),
                    f"{{{{{label(names.REASON)}}}}}",
                    exemplar=True,
                )
            ],
            "no calls",
            stack=True,
        ),
        timeseries(
            "All reasons, from span metrics",
            "Calls per second with the decision chosen above, by all their reasons together, made by the Collector from every span "
            "before sampling.",
            "reqps",
            [Query(ALL.rate(servers.SPAN_CALLS, chosen, by=(reasons,)), f"{{{{{reasons}}}}}")],
            NO_SPANS,
            stack=True,
        ),
        table(
            "Who, from the policy's own metrics",
            "Calls of the time range with the decision chosen above.",
            "short",
            [
                Query(
                    ALL.counted(
                        names.DECISIONS,
                        chosen,
                        window="$__range",
                        by=("job", agent, label(names.REASON)),
                    ),
                    "calls",
                )
            ],
            "no calls",
            width=24,
        ),
    ]

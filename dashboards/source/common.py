"""What the dashboards share: identifiers, variables, links, colors and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from otel_kvpolicy import series
from otel_kvpolicy.record import OUTCOMES
from otel_kvpolicy.telemetry import names

from .model import JSON, Annotation, Choice, Link, Query, Variable, explore
from .queries import label, legend

UID_POLICY: Final = "kvpolicy"
UID_TIERS: Final = "kvpolicy-lmcache"
UID_HOST: Final = "kvpolicy-gb10"
UID_WHY: Final = "kvpolicy-why"

TAG: Final = "kvpolicy"
"""Tag of every dashboard, by which the dashboards link to each other."""

RANGE: Final = "$__range"
"""The dashboard's time range, as a PromQL window."""

# --- what no data means -----------------------------------------------------------------------
NO_CALLS: Final = "no calls"
NO_SPANS: Final = "no calls, or no span metrics (the Collector of collector/app.yaml makes them)"

# --- variables --------------------------------------------------------------------------------
_CALLS: Final = names.DECISIONS.prometheus
_MODEL: Final = label(names.REQUEST_MODEL)

SERVICE: Final = Variable(
    "service",
    "Service",
    f"label_values({_CALLS}, job)",
    "Applications that use the policy: Prometheus' job label, which is service.name on the OTLP"
    " path.",
)
MODEL: Final = Variable(
    "model",
    "Model",
    f'label_values({_CALLS}{{job=~"$service"}}, {_MODEL})',
    "Model named in the request.",
)
AGENT: Final = Variable(
    "agent",
    "Agent",
    f'label_values({_CALLS}{{job=~"$service", {_MODEL}=~"$model"}}, {label(names.AGENT_NAME)})',
    "Agent that made the call, if the application names one. All includes calls without an agent.",
)
_ON_HOSTS: Final = "|".join(
    one.name for one in (series.RUNNING, series.EVENT_QUEUE, series.MEM_TOTAL)
)
HOST: Final = Variable(
    "host",
    "Host",
    f'label_values({{__name__=~"{_ON_HOSTS}"}}, instance)',
    "Host of vLLM, LMCache and the exporters: the instance label without its port.",
    regex=r"/^(.*?)(?::\d+)?$/",
)
CHUNK: Final = Choice(
    "chunk",
    "Chunk size",
    ("256", "512", "544", "784", "1568"),
    "Tokens per LMCache chunk: see --chunk-size or GET /status. Only the estimate of avoided chunks"
    " uses it.",
)
DECISION: Final = Choice("decision", "Decision", (names.SKIP, names.STORE), "Which calls to list.")

# --- links ------------------------------------------------------------------------------------
EXPLAIN: Final = "otel-kvpolicy explain ${__value.text} --from http://127.0.0.1:3200"
"""Command that explains a trace. It is the title of a data link, which cannot run a command."""

# The values are joined by a bar without the usual escaping for regular expressions, whose
# backslashes would break the JSON inside the link.
_MODELS: Final = f'span.{names.REQUEST_MODEL} =~ "${{model:pipe}}"'

TO_SKIPPED: Final = Link(
    "Traces of skipped calls", explore(f'{{ span.{names.DECISION} = "{names.SKIP}" && {_MODELS} }}')
)
TO_TRACES: Final = Link(
    "Traces of these calls", explore(f'{{ span.{names.DECISION} != "" && {_MODELS} }}')
)
TO_REJECTED: Final = Link(
    "Traces of rejected hints", explore(f'{{ span.{names.HINT_OUTCOME} = "rejected" }}')
)

ALERTS: Final = (
    Annotation(
        "KV policy alerts",
        'ALERTS{alertname=~"KVPolicy.*|LMCache.*|GB10.*", alertstate="firing"}',
        "red",
    ),
)

# --- colors -----------------------------------------------------------------------------------
COLORS: Final[Mapping[str, str]] = {
    names.STORE: "blue",
    names.SKIP: "orange",
    "skip ratio, calls": "dark-orange",
    "skip ratio, tokens": "orange",
    "skip sent, tokens": "orange",
    "L1": "green",
    "L2": "purple",
    "L1 hit rate": "green",
    "L2 hit rate": "purple",
    "L1 + L2 hit rate": "blue",
    "miss": "#808080",
    "evicted": "red",
    "evicted from L1": "red",
    "evicted from L2": "purple",
    "applied": "blue",
    "observed": "yellow",
    "caller": "purple",
    "excluded_target": "#808080",
    "rejected": "red",
    "error": "dark-red",
    "disabled": "semi-dark-yellow",
}
"""One color for each meaning on every dashboard.

Palette names and mid gray are readable on both light and dark backgrounds.
"""

_LEGEND_VALUES: Final[Mapping[str, Sequence[str]]] = {
    legend(names.DECISION): (names.STORE, names.SKIP),
    legend(names.HINT_OUTCOME): tuple(OUTCOMES),
}
"""The texts that a legend can show if it reads a label."""


def color_overrides(queries: Sequence[Query], colors: Mapping[str, str]) -> list[JSON]:
    """Return Grafana's field overrides that give each series of a panel its color.

    Args:
        queries: the panel's queries; their legends name the series.
        colors: colors by legend that only this panel uses, in addition to `COLORS`.
    """
    palette = {**COLORS, **colors}
    shown = list(dict.fromkeys([*(query.legend for query in queries), *colors]))
    shown += [value for text, values in _LEGEND_VALUES.items() if text in shown for value in values]
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [
                {"id": "color", "value": {"fixedColor": palette[name], "mode": "fixed"}}
            ],
        }
        for name in shown
        if name in palette
    ]

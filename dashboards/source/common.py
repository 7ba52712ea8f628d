"""What the dashboards share: variables, identifiers, links."""

from __future__ import annotations

from typing import Final

from otel_kvpolicy import series as servers
from otel_kvpolicy.telemetry import names

from .panels import Choice, Link, Variable, explore
from .queries import label

UID_POLICY: Final = "kvpolicy"
UID_TIERS: Final = "kvpolicy-lmcache"
UID_HOST: Final = "kvpolicy-gb10"
UID_WHY: Final = "kvpolicy-why"

_CALLS: Final = names.DECISIONS.prometheus
_MODEL: Final = label(names.REQUEST_MODEL)

SERVICE: Final = Variable(
    "service",
    "Service",
    f"label_values({_CALLS}, job)",
    "Applications that decide: Prometheus' job, which is service.name on the OTLP path.",
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
    "Agent that made the call, where the application says so; All includes calls without one.",
)
_HOSTED: Final = "|".join(
    series.name for series in (servers.RUNNING, servers.EVENT_QUEUE, servers.MEM_TOTAL)
)
HOST: Final = Variable(
    "host",
    "Host",
    f'label_values({{__name__=~"{_HOSTED}"}}, instance)',
    "Host of vLLM, LMCache and the exporters: the instance label without its port.",
    regex=r"/^(.*?)(?::\d+)?$/",
)
CHUNK: Final = Choice(
    "chunk",
    "Chunk size",
    ("256", "512", "544", "784", "1568"),
    "Tokens in a chunk of LMCache: --chunk-size, or GET /status. Only the estimate of avoided chunks uses it.",
)
DECISION: Final = Choice("decision", "Decision", (names.SKIP, names.STORE), "Which calls to list.")

EXPLAIN: Final = "otel-kvpolicy explain ${__value.text} --from http://127.0.0.1:3200"
"""What to run for a trace; shown as the title of a data link, since a link cannot start a command."""


# Values joined by a bar, not escaped as for a regular expression: a backslash would break the JSON that the link is made of.
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
    (
        "KV policy alerts",
        'ALERTS{alertname=~"KVPolicy.*|LMCache.*|GB10.*", alertstate="firing"}',
        "red",
    ),
)

"""Every span attribute and metric that this package writes: name, unit and meaning.

The tables in the documentation, the dashboards and ``explain`` read them from here. What a rule
records beside its decision is defined with the rule and listed here. GenAI names are those of the
OpenTelemetry semantic conventions (``opentelemetry.semconv._incubating``); a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .. import policy
from ..record import OUTCOMES

AttributeType = Literal["string", "string[]", "int", "double", "boolean"]
InstrumentKind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True)
class Attribute:
    """A span attribute of this package.

    Attributes:
        name: name on the span.
        type: OpenTelemetry attribute type.
        meaning: one sentence for people.
        always: True if every decided call carries it.
    """

    name: str
    type: AttributeType
    meaning: str
    always: bool = True


@dataclass(frozen=True)
class Metric:
    """A metric instrument of this package.

    Attributes:
        name: OpenTelemetry name.
        kind: instrument kind.
        unit: UCUM unit, or an annotation in braces.
        prometheus: name of the series in Prometheus. A histogram adds ``_bucket``, ``_sum`` and
            ``_count``.
        meaning: one sentence for people.
        attributes: names of the attributes on its points.
        buckets: explicit bucket boundaries advised to the SDK, for histograms.
    """

    name: str
    kind: InstrumentKind
    unit: str
    prometheus: str
    meaning: str
    attributes: tuple[str, ...]
    buckets: tuple[float, ...] = ()


SCOPE: Final = "otel_kvpolicy"
NAMESPACE: Final = "kvpolicy."
"""Precedes the names of what a rule records."""

SIGNALS: Final = "kvpolicy.signals."
"""Precedes the name of a signal."""

_registered: list[Attribute] = []


def _attribute(name: str, type: AttributeType, meaning: str, *, always: bool = True) -> str:  # noqa: A002
    """Register a span attribute and return its name."""
    _registered.append(Attribute(name, type, meaning, always))
    return name


# --- span attributes of this package
DECISION: Final = _attribute(
    "kvpolicy.decision",
    "string",
    'what was decided for the KV of the call, "store" or "skip"; the choice of the caller if the '
    "caller set the hint",
)
SKIP_SAVE: Final = _attribute(
    "kvpolicy.skip_save", "boolean", "true if the KV of the call should not be stored"
)
CACHE_WORTHY: Final = _attribute(
    "kvpolicy.cache_worthy",
    "boolean",
    "what the rule decided for the call, even if the caller decided otherwise",
)
SCORE: Final = _attribute(
    "kvpolicy.score",
    "double",
    "0 to 1. Thresholds rule: total tokens over the context threshold, plus 0.25 for multi-turn "
    "calls, capped. Adaptive rule: P(reuse)",
)
REASONS: Final = _attribute(
    "kvpolicy.reasons", "string[]", "reason codes, strongest first, without numbers"
)
EXPLANATION: Final = _attribute(
    "kvpolicy.explanation", "string", "one sentence with the numbers and the thresholds"
)
RULE: Final = _attribute("kvpolicy.rule", "string", 'rule that decided: "thresholds" or "adaptive"')
MODE: Final = _attribute(
    "kvpolicy.mode", "string", '"enforce" sends the hint, "observe" only records the decision'
)
HINT_OUTCOME: Final = _attribute(
    "kvpolicy.hint.outcome",
    "string",
    f"what happened to the hint: {', '.join(OUTCOMES)}",
)
SIGNAL_PREFIX_TOKENS: Final = _attribute(
    f"{SIGNALS}prefix_tokens",
    "int",
    "estimated tokens of the stable prefix: system prompt and tool definitions",
)
SIGNAL_TOOL_TOKENS: Final = _attribute(
    f"{SIGNALS}tool_tokens", "int", "estimated tokens of the tool definitions, part of the prefix"
)
SIGNAL_HISTORY_TOKENS: Final = _attribute(
    f"{SIGNALS}history_tokens", "int", "estimated tokens of the earlier messages"
)
SIGNAL_RAG_TOKENS: Final = _attribute(
    f"{SIGNALS}rag_tokens",
    "int",
    "estimated tokens of the retrieved context, if the caller names it",
)
SIGNAL_USER_TOKENS: Final = _attribute(
    f"{SIGNALS}user_tokens", "int", "estimated tokens of what follows the last model reply"
)
SIGNAL_TOTAL_TOKENS: Final = _attribute(
    f"{SIGNALS}total_tokens", "int", "sum of prefix, history, retrieved context and user tokens"
)
SIGNAL_HISTORY_TURNS: Final = _attribute(
    f"{SIGNALS}history_turns", "int", "model replies before this call"
)
_registered += [
    Attribute(f"{NAMESPACE}{each.name}", each.type, each.meaning, each.always)
    for each in policy.RULE_ATTRIBUTES
]
CHARS_PER_TOKEN: Final = f"{NAMESPACE}{policy.thresholds.CHARS_PER_TOKEN}"
SCRIPT: Final = f"{NAMESPACE}{policy.thresholds.SCRIPT}"
SHADOW_DECISION: Final = _attribute(
    "kvpolicy.shadow.decision",
    "string",
    'with KV_CACHE_SHADOW: what the other rule would have decided, "store" or "skip"',
    always=False,
)
SHADOW_EXPLANATION: Final = _attribute(
    "kvpolicy.shadow.explanation",
    "string",
    "with KV_CACHE_SHADOW: the explanation of the other rule",
    always=False,
)
KEEP_TOKENS: Final = _attribute(
    "kvpolicy.keep_tokens",
    "int",
    "with KV_CACHE_PARTIAL_STORE: leading tokens of a skipped call that are stored anyway",
    always=False,
)
CACHED_VLLM_TOKENS: Final = _attribute(
    "kvpolicy.cached.vllm_tokens",
    "int",
    "with KV_CACHE_CACHED_TOKEN_STATS: prompt tokens that vLLM's own cache had",
    always=False,
)
CACHED_LMCACHE_TOKENS: Final = _attribute(
    "kvpolicy.cached.lmcache_tokens",
    "int",
    "with KV_CACHE_CACHED_TOKEN_STATS: leading prompt tokens that LMCache had, including those "
    "that vLLM had too",
    always=False,
)
AGENT_CALLS: Final = _attribute(
    "kvpolicy.agent.calls",
    "int",
    "on pydantic-ai's agent span: chat calls decided in this run, without those of its sub-agents",
    always=False,
)
AGENT_SKIPPED: Final = _attribute(
    "kvpolicy.agent.skipped",
    "int",
    "on pydantic-ai's agent span: calls whose KV should not be stored",
    always=False,
)
AGENT_STORED: Final = _attribute(
    "kvpolicy.agent.stored",
    "int",
    "on pydantic-ai's agent span: calls whose KV should be stored",
    always=False,
)

ATTRIBUTES: Final = tuple(_registered)

# --- GenAI and general semantic conventions
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

# --- attributes that only metric points carry
REASON: Final = "kvpolicy.reason"
TOKEN_SOURCE: Final = "kvpolicy.token.source"
CACHE_SOURCE: Final = "kvpolicy.cache.source"
SEAM: Final = "kvpolicy.seam"

# --- values
STORE: Final = policy.STORE
SKIP: Final = policy.SKIP
FROM_USAGE: Final = "usage"
FROM_ESTIMATE: Final = "estimate"
FROM_VLLM: Final = "vllm"
FROM_LMCACHE: Final = "lmcache"
OTHER: Final = "_OTHER"

_CALL = (
    DECISION,
    REASON,
    HINT_OUTCOME,
    MODE,
    SHADOW_DECISION,
    REQUEST_MODEL,
    SERVER_ADDRESS,
    AGENT_NAME,
)

DECISIONS: Final = Metric(
    "kvpolicy.decisions",
    "counter",
    "{decision}",
    "kvpolicy_decisions_total",
    "Decisions, one for each chat call.",
    _CALL,
)
PROMPT_TOKENS: Final = Metric(
    "kvpolicy.prompt.tokens",
    "counter",
    "{token}",
    "kvpolicy_prompt_tokens_total",
    "Prompt tokens of the decided calls, as the server reports them, or estimated if it does not.",
    (*_CALL, TOKEN_SOURCE),
)
CACHED_TOKENS: Final = Metric(
    "kvpolicy.cached.tokens",
    "counter",
    "{token}",
    "kvpolicy_cached_tokens_total",
    "Prompt tokens that came from a cache, as the server reports them "
    "(usage.prompt_tokens_details.cached_tokens).",
    (*_CALL, CACHE_SOURCE),
)
SCORE_METRIC: Final = Metric(
    "kvpolicy.score",
    "histogram",
    "1",
    "kvpolicy_score",
    "Score of the decided calls, 0 to 1.",
    (DECISION, REQUEST_MODEL),
    (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0),
)
DECISION_DURATION: Final = Metric(
    "kvpolicy.decision.duration",
    "histogram",
    "s",
    "kvpolicy_decision_duration_seconds",
    "Time to read the request and decide.",
    (DECISION,),
    (2e-06, 5e-06, 1e-05, 2e-05, 5e-05, 1e-04, 2.5e-04, 5e-04, 1e-03, 2.5e-03, 5e-03, 1e-02, 5e-02),
)
ERRORS: Final = Metric(
    "kvpolicy.errors",
    "counter",
    "{error}",
    "kvpolicy_errors_total",
    "Internal errors of this package. The calls they happened in went out without the hint.",
    (SEAM, ERROR_TYPE),
)
CHARS_PER_TOKEN_RATIO: Final = Metric(
    "kvpolicy.chars_per_token.ratio",
    "gauge",
    "1",
    "kvpolicy_chars_per_token_ratio",
    "With KV_CACHE_CHARS_PER_TOKEN=auto: characters per token that were learned.",
    (REQUEST_MODEL, SERVER_ADDRESS, SCRIPT),
)

METRICS: Final = (
    DECISIONS,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    SCORE_METRIC,
    DECISION_DURATION,
    ERRORS,
    CHARS_PER_TOKEN_RATIO,
)

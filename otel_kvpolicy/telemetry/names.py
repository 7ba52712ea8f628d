"""Every span attribute and metric this package writes: name, unit and meaning.

This is the only place where they are spelled. The README tables, the dashboards and ``explain`` read them from here.
GenAI names are those of the OpenTelemetry semantic conventions (``opentelemetry.semconv._incubating``); a test holds them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

AttributeType = Literal["string", "string[]", "int", "double", "boolean"]
InstrumentKind = Literal["counter", "histogram"]


@dataclass(frozen=True)
class Attribute:
    """A span attribute of this package.

    Attributes:
        name: as it stands on the span.
        type: OpenTelemetry attribute type.
        meaning: one sentence for people.
        always: whether every decided call carries it.
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
        prometheus: series name as translated for Prometheus; a histogram's ``_bucket``, ``_sum``, ``_count`` follow it.
        meaning: one sentence for people.
        attributes: names of the attributes its points carry.
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

# --- span attributes of ours -------------------------------------------------------------------------------------------------------
DECISION: Final = "kvpolicy.decision"
SKIP_SAVE: Final = "kvpolicy.skip_save"
CACHE_WORTHY: Final = "kvpolicy.cache_worthy"
SCORE: Final = "kvpolicy.score"
REASONS: Final = "kvpolicy.reasons"
EXPLANATION: Final = "kvpolicy.explanation"
RULE: Final = "kvpolicy.rule"
MODE: Final = "kvpolicy.mode"
HINT_OUTCOME: Final = "kvpolicy.hint.outcome"
SIGNALS: Final = "kvpolicy.signals."
"""Before the name of what was counted."""

SIGNAL_PREFIX_TOKENS: Final = "kvpolicy.signals.prefix_tokens"
SIGNAL_TOOL_TOKENS: Final = "kvpolicy.signals.tool_tokens"
SIGNAL_HISTORY_TOKENS: Final = "kvpolicy.signals.history_tokens"
SIGNAL_RAG_TOKENS: Final = "kvpolicy.signals.rag_tokens"
SIGNAL_USER_TOKENS: Final = "kvpolicy.signals.user_tokens"
SIGNAL_TOTAL_TOKENS: Final = "kvpolicy.signals.total_tokens"
SIGNAL_HISTORY_TURNS: Final = "kvpolicy.signals.history_turns"
THRESHOLD_PREFIX_TOKENS: Final = "kvpolicy.thresholds.prefix_tokens"
THRESHOLD_CONTEXT_TOKENS: Final = "kvpolicy.thresholds.context_tokens"
THRESHOLD_HISTORY_TURNS: Final = "kvpolicy.thresholds.history_turns"
CHARS_PER_TOKEN: Final = "kvpolicy.chars_per_token"
SHADOW_DECISION: Final = "kvpolicy.shadow.decision"
SHADOW_EXPLANATION: Final = "kvpolicy.shadow.explanation"
KEEP_TOKENS: Final = "kvpolicy.keep_tokens"
ADAPTIVE_CLASS: Final = "kvpolicy.adaptive.class"
ADAPTIVE_REUSE: Final = "kvpolicy.adaptive.reuse"
ADAPTIVE_DOUBT: Final = "kvpolicy.adaptive.doubt"
ADAPTIVE_THETA: Final = "kvpolicy.adaptive.theta"
ADAPTIVE_SURVIVAL: Final = "kvpolicy.adaptive.survival"
ADAPTIVE_LIFETIME: Final = "kvpolicy.adaptive.lifetime_seconds"
ADAPTIVE_CALLS: Final = "kvpolicy.adaptive.calls"
CACHED_VLLM_TOKENS: Final = "kvpolicy.cached.vllm_tokens"
CACHED_LMCACHE_TOKENS: Final = "kvpolicy.cached.lmcache_tokens"
AGENT_CALLS: Final = "kvpolicy.agent.calls"
AGENT_SKIPPED: Final = "kvpolicy.agent.skipped"
AGENT_STORED: Final = "kvpolicy.agent.stored"

ATTRIBUTES: Final = (
    Attribute(
        DECISION,
        "string",
        'what was decided for the call\'s KV: "store" or "skip"; the caller\'s own choice where the caller made one',
    ),
    Attribute(SKIP_SAVE, "boolean", "true where the KV of the call is not to be stored"),
    Attribute(
        CACHE_WORTHY, "boolean", "what the rule thinks of the call, whoever decided in the end"
    ),
    Attribute(
        SCORE,
        "double",
        "0 to 1: total tokens over the context threshold, plus 0.25 for multi-turn calls, capped; of the learned rule, P(reuse)",
    ),
    Attribute(REASONS, "string[]", "reason codes, strongest first, without numbers"),
    Attribute(EXPLANATION, "string", "one sentence with the numbers and the thresholds"),
    Attribute(RULE, "string", 'the rule that decided: "thresholds" or "adaptive"'),
    Attribute(MODE, "string", '"enforce" sends the hint, "observe" only records'),
    Attribute(
        HINT_OUTCOME,
        "string",
        'what became of the hint: "applied", "observed", "caller", "excluded_target", "rejected", "disabled" or "error"',
    ),
    Attribute(
        SIGNAL_PREFIX_TOKENS,
        "int",
        "estimated tokens of the stable prefix: system prompt and tool definitions",
    ),
    Attribute(SIGNAL_TOOL_TOKENS, "int", "the part of the prefix that tool definitions make up"),
    Attribute(SIGNAL_HISTORY_TOKENS, "int", "estimated tokens of the earlier messages"),
    Attribute(
        SIGNAL_RAG_TOKENS,
        "int",
        "estimated tokens of the retrieved context, where the caller names it",
    ),
    Attribute(SIGNAL_USER_TOKENS, "int", "estimated tokens of what follows the last model reply"),
    Attribute(
        SIGNAL_TOTAL_TOKENS, "int", "prefix, history, retrieved context and user tokens together"
    ),
    Attribute(SIGNAL_HISTORY_TURNS, "int", "model replies before this call"),
    Attribute(
        THRESHOLD_PREFIX_TOKENS, "int", "KV_CACHE_MIN_PREFIX_TOKENS in force; of the fixed rule"
    ),
    Attribute(
        THRESHOLD_CONTEXT_TOKENS, "int", "KV_CACHE_MIN_CONTEXT_TOKENS in force; of the fixed rule"
    ),
    Attribute(
        THRESHOLD_HISTORY_TURNS, "int", "KV_CACHE_MIN_HISTORY_TURNS in force; of the fixed rule"
    ),
    Attribute(CHARS_PER_TOKEN, "double", "KV_CACHE_CHARS_PER_TOKEN in force"),
    Attribute(
        SHADOW_DECISION,
        "string",
        'with KV_CACHE_SHADOW: what the other rule would have decided, "store" or "skip"',
        always=False,
    ),
    Attribute(
        SHADOW_EXPLANATION,
        "string",
        "with KV_CACHE_SHADOW: why, in a sentence with the numbers",
        always=False,
    ),
    Attribute(
        KEEP_TOKENS,
        "int",
        "with KV_CACHE_PARTIAL_STORE: leading tokens of a skipped call that are stored all the same",
        always=False,
    ),
    Attribute(
        ADAPTIVE_CLASS,
        "string",
        "of the learned rule: the call's class: agent or role, turns, length, share seen",
        always=False,
    ),
    Attribute(
        ADAPTIVE_REUSE, "double", "of the learned rule: P(reuse) of the class, 0 to 1", always=False
    ),
    Attribute(
        ADAPTIVE_DOUBT,
        "double",
        "of the learned rule: what was added to it because little is known yet",
        always=False,
    ),
    Attribute(
        ADAPTIVE_THETA,
        "double",
        "of the learned rule: the price of a place in the cache: the lowest P(reuse) stored",
        always=False,
    ),
    Attribute(
        ADAPTIVE_CALLS,
        "double",
        "of the learned rule: calls of the class whose fate is known, older ones fading",
        always=False,
    ),
    Attribute(
        ADAPTIVE_SURVIVAL,
        "double",
        "of the learned rule: share of the returning prefixes that the cache still had, if known",
        always=False,
    ),
    Attribute(
        ADAPTIVE_LIFETIME,
        "double",
        "of the learned rule: seconds that the cache keeps a prefix, if known",
        always=False,
    ),
    Attribute(
        CACHED_VLLM_TOKENS,
        "int",
        "with KV_CACHE_CACHED_TOKEN_STATS: prompt tokens that vLLM's own cache had",
        always=False,
    ),
    Attribute(
        CACHED_LMCACHE_TOKENS,
        "int",
        "with KV_CACHE_CACHED_TOKEN_STATS: leading prompt tokens that LMCache had; those that vLLM had too are among them",
        always=False,
    ),
    Attribute(
        AGENT_CALLS,
        "int",
        "on pydantic-ai's agent span: chat calls decided in this run, without those of its sub-agents",
        always=False,
    ),
    Attribute(
        AGENT_SKIPPED,
        "int",
        "on pydantic-ai's agent span: those of them whose KV is not to be stored",
        always=False,
    ),
    Attribute(AGENT_STORED, "int", "on pydantic-ai's agent span: the rest of them", always=False),
)

# --- GenAI and general semantic conventions ----------------------------------------------------------------------------------------
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

# --- attributes that only metric points carry --------------------------------------------------------------------------------------
REASON: Final = "kvpolicy.reason"
TOKEN_SOURCE: Final = "kvpolicy.token.source"
CACHE_SOURCE: Final = "kvpolicy.cache.source"
SEAM: Final = "kvpolicy.seam"

# --- values ------------------------------------------------------------------------------------------------------------------------
STORE: Final = "store"
SKIP: Final = "skip"
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
    "Decisions taken, one for each chat call.",
    _CALL,
)
PROMPT_TOKENS: Final = Metric(
    "kvpolicy.prompt.tokens",
    "counter",
    "{token}",
    "kvpolicy_prompt_tokens_total",
    "Prompt tokens of the decided calls: as the server counted them where it said so, else estimated.",
    (*_CALL, TOKEN_SOURCE),
)
CACHED_TOKENS: Final = Metric(
    "kvpolicy.cached.tokens",
    "counter",
    "{token}",
    "kvpolicy_cached_tokens_total",
    "Prompt tokens that the server says it took from a cache (usage.prompt_tokens_details.cached_tokens).",
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
    "Time that reading the request and deciding took.",
    (DECISION,),
    (2e-06, 5e-06, 1e-05, 2e-05, 5e-05, 1e-04, 2.5e-04, 5e-04, 1e-03, 2.5e-03, 5e-03, 1e-02, 5e-02),
)
ERRORS: Final = Metric(
    "kvpolicy.errors",
    "counter",
    "{error}",
    "kvpolicy_errors_total",
    "Faults of this package; the call they happened in went out untouched.",
    (SEAM, ERROR_TYPE),
)

METRICS: Final = (DECISIONS, PROMPT_TOKENS, CACHED_TOKENS, SCORE_METRIC, DECISION_DURATION, ERRORS)

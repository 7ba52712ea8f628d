"""Decisions on spans: on the chat span that is current, else on one of ours that follows the GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from ..policy import KVCacheLayeringPolicy
from ..policy.adaptive.rule import Why
from ..record import CallRecord, explanation
from ..requests import Answer
from . import names

_CHAT_OPERATIONS: Final = frozenset({"chat", "text_completion", "generate_content", "completion"})


def current_chat_span() -> Span | None:
    """The current span, where it is a recording chat span of another instrumentation."""
    span = trace.get_current_span()
    return span if span.is_recording() and _is_chat(span) else None


def _is_chat(span: Span) -> bool:
    """How the known instrumentations mark a model call: GenAI conventions, OpenInference, OpenLLMetry, Logfire."""
    attributes = getattr(span, "attributes", None)
    if not isinstance(attributes, Mapping):
        return False
    operation = attributes.get(names.OPERATION_NAME)
    if operation is not None:
        return operation in _CHAT_OPERATIONS
    return (
        attributes.get("openinference.span.kind") == "LLM"
        or attributes.get("llm.request.type") in _CHAT_OPERATIONS
        or names.REQUEST_MODEL in attributes
    )


def is_agent_span(span: Span) -> bool:
    """Whether ``span`` is a recording span of an agent's run: GenAI conventions, and pydantic-ai's own older spelling."""
    attributes = getattr(span, "attributes", None)
    if not span.is_recording() or not isinstance(attributes, Mapping):
        return False
    return attributes.get(names.OPERATION_NAME) == "invoke_agent" or "agent_name" in attributes


def count_on_agent(span: Span, record: CallRecord) -> None:
    """Adds a decided call to the summary on the span of the agent's run."""
    attributes: Any = getattr(span, "attributes", None) or {}
    kinds = {
        names.AGENT_CALLS: 1,
        names.AGENT_SKIPPED: int(record.skip),
        names.AGENT_STORED: int(not record.skip),
    }
    span.set_attributes({name: attributes.get(name, 0) + one for name, one in kinds.items()})


def start_chat_span(tracer: Tracer, body: Mapping[Any, Any], record: CallRecord) -> Span:
    """Starts ``chat {model}`` with what the request says and the decision, which a sampler can then go by."""
    attributes: dict[str, Any] = {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "openai",  # the provider whose API it is, as the conventions ask for where the real one is not known
        names.REQUEST_MODEL: record.model,
        names.SERVER_ADDRESS: record.address,
        names.SERVER_PORT: record.port,
    }
    if record.agent:
        attributes[names.AGENT_NAME] = record.agent
    if body.get("stream") is True:
        attributes[names.REQUEST_STREAM] = True
    for name, fields in _NUMBERS.items():
        value = next((body[field] for field in fields if field in body), None)
        if isinstance(value, (int, float)):
            attributes[name] = value
    attributes |= decision_attributes(record)
    return tracer.start_span(
        f"chat {record.model}".rstrip(), kind=SpanKind.CLIENT, attributes=attributes
    )


_NUMBERS: Final = {
    names.REQUEST_MAX_TOKENS: ("max_completion_tokens", "max_output_tokens", "max_tokens"),
    names.REQUEST_TEMPERATURE: ("temperature",),
    names.REQUEST_TOP_P: ("top_p",),
}


def decision_attributes(record: CallRecord) -> dict[str, Any]:
    """The decision as attributes, on spans and in the decision log alike."""
    decision = record.decision
    attributes: dict[str, Any] = {
        names.DECISION: record.verdict,
        names.SKIP_SAVE: record.skip,
        names.CACHE_WORTHY: decision.cache_worthy,
        names.SCORE: decision.score,
        names.REASONS: decision.reason_codes,
        names.EXPLANATION: explanation(record),
        names.RULE: record.rule,
        names.MODE: record.mode,
        names.HINT_OUTCOME: record.outcome,
        names.CHARS_PER_TOKEN: record.policy.chars_per_token,
    }
    for name, value in decision.signals.items():
        attributes[names.SIGNALS + name] = value
    attributes |= _of_thresholds(record.policy) if record.why is None else _of_learning(record.why)
    if record.keep_tokens:
        attributes[names.KEEP_TOKENS] = record.keep_tokens
    if record.shadow is not None:
        attributes[names.SHADOW_DECISION] = record.shadow.verdict
        attributes[names.SHADOW_EXPLANATION] = record.shadow.explanation
    return attributes


def _of_thresholds(policy: KVCacheLayeringPolicy) -> dict[str, Any]:
    return {
        names.THRESHOLD_PREFIX_TOKENS: policy.min_prefix_tokens,
        names.THRESHOLD_CONTEXT_TOKENS: policy.min_context_tokens,
        names.THRESHOLD_HISTORY_TURNS: policy.min_history_turns,
    }


def _of_learning(why: Why) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        names.ADAPTIVE_CLASS: str(why.group),
        names.ADAPTIVE_REUSE: why.reuse,
        names.ADAPTIVE_DOUBT: why.doubt,
        names.ADAPTIVE_THETA: why.theta,
        names.ADAPTIVE_CALLS: why.calls,
    }
    if why.survival is not None:
        attributes[names.ADAPTIVE_SURVIVAL] = why.survival
    if why.keeps_seconds is not None:
        attributes[names.ADAPTIVE_LIFETIME] = why.keeps_seconds
    return attributes


def annotate(span: Span, record: CallRecord) -> None:
    """Writes the decision on a span that another instrumentation has started."""
    if not span.is_recording():
        return
    attributes = decision_attributes(record)
    if record.agent and names.AGENT_NAME not in (getattr(span, "attributes", None) or {}):
        attributes[names.AGENT_NAME] = record.agent
    span.set_attributes(attributes)


def update_outcome(span: Span, record: CallRecord) -> None:
    """Writes anew what depends on the outcome, once a server has refused the hint."""
    span.set_attributes(
        {names.HINT_OUTCOME: record.outcome, names.EXPLANATION: explanation(record)}
    )


def answer_attributes(answer: Answer) -> dict[str, Any]:
    """What the server said, as attributes; what it did not say is left out."""
    attributes: dict[str, Any] = {
        names.USAGE_CACHE_READ_INPUT_TOKENS: answer.cached_tokens,
        names.CACHED_VLLM_TOKENS: answer.vllm_tokens,
        names.CACHED_LMCACHE_TOKENS: answer.lmcache_tokens,
        names.USAGE_INPUT_TOKENS: answer.input_tokens,
        names.USAGE_OUTPUT_TOKENS: answer.output_tokens,
        names.RESPONSE_ID: answer.response_id,
        names.RESPONSE_MODEL: answer.model,
        names.RESPONSE_FINISH_REASONS: answer.finish_reasons or None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


_OF_THE_CACHE: Final = frozenset(
    {names.USAGE_CACHE_READ_INPUT_TOKENS, names.CACHED_VLLM_TOKENS, names.CACHED_LMCACHE_TOKENS}
)


def record_answer(span: Span, answer: Answer, *, ours: bool) -> None:
    """Writes what the server said: on a span of ours all of it, on another's the cached tokens that belong to the decision."""
    if span.is_recording():
        said = answer_attributes(answer)
        span.set_attributes(
            said if ours else {name: said[name] for name in said if name in _OF_THE_CACHE}
        )


def record_failure(span: Span, error: BaseException) -> None:
    """Marks a span of ours as failed. The type only: a server's message may quote the prompt."""
    kind = type(error)
    span.set_attribute(
        names.ERROR_TYPE,
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
    )
    span.set_status(Status(StatusCode.ERROR))

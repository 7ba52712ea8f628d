"""Records decisions on the current chat span, or on a new one that follows GenAI conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from ..record import CallRecord
from ..requests import Answer
from . import names

_CHAT_OPERATIONS: Final = frozenset({"chat", "text_completion", "generate_content", "completion"})


def current_chat_span() -> Span | None:
    """Return the current span if it is a recording chat span of another instrumentation."""
    span = trace.get_current_span()
    return span if span.is_recording() and _is_chat(span) else None


def _is_chat(span: Span) -> bool:
    """Recognize the model calls of GenAI conventions, OpenInference, OpenLLMetry and Logfire."""
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


def conversation_id(span: Span) -> str | None:
    """Return the conversation id that another instrumentation recorded on a span, if any."""
    attributes = getattr(span, "attributes", None) or {}
    value = attributes.get(names.CONVERSATION_ID)
    return value if isinstance(value, str) else None


def is_agent_span(span: Span) -> bool:
    """Return True if ``span`` is a recording span of an agent run.

    Recognizes the GenAI conventions and the older spelling of pydantic-ai.
    """
    attributes = getattr(span, "attributes", None)
    if not span.is_recording() or not isinstance(attributes, Mapping):
        return False
    return attributes.get(names.OPERATION_NAME) == "invoke_agent" or "agent_name" in attributes


def count_on_agent(span: Span, record: CallRecord) -> None:
    """Add a decided call to the summary on the span of the agent run."""
    attributes: Any = getattr(span, "attributes", None) or {}
    counts = {
        names.AGENT_CALLS: 1,
        names.AGENT_SKIPPED: int(record.skip),
        names.AGENT_STORED: int(not record.skip),
    }
    span.set_attributes({name: attributes.get(name, 0) + more for name, more in counts.items()})


def start_chat_span(tracer: Tracer, body: Mapping[Any, Any], record: CallRecord) -> Span:
    """Start ``chat {model}`` with the request and the decision, so that a sampler can use them."""
    attributes: dict[str, Any] = {
        names.OPERATION_NAME: "chat",
        # The conventions ask for the provider of the API if the real one is unknown.
        names.PROVIDER_NAME: "openai",
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
    """Return the decision as attributes, for spans and the decision log."""
    verdict, decision = record.verdict, record.decision
    attributes: dict[str, Any] = {
        names.DECISION: record.choice,
        names.SKIP_SAVE: record.skip,
        names.CACHE_WORTHY: decision.cache_worthy,
        names.SCORE: decision.score,
        names.REASONS: decision.reason_codes,
        names.EXPLANATION: record.explanation,
        names.RULE: verdict.rule,
        names.MODE: record.mode,
        names.HINT_OUTCOME: record.outcome,
    }
    for name, value in decision.signals.items():
        attributes[names.SIGNALS + name] = value
    for name, value in verdict.attributes.items():
        attributes[names.NAMESPACE + name] = value
    if record.keep_tokens:
        attributes[names.KEEP_TOKENS] = record.keep_tokens
    if record.shadow is not None:
        attributes[names.SHADOW_DECISION] = record.shadow.choice
        attributes[names.SHADOW_EXPLANATION] = record.shadow.sentence
    return attributes


def annotate(span: Span, record: CallRecord) -> None:
    """Record the decision on a span that another instrumentation started."""
    if not span.is_recording():
        return
    attributes = decision_attributes(record)
    if record.agent and names.AGENT_NAME not in (getattr(span, "attributes", None) or {}):
        attributes[names.AGENT_NAME] = record.agent
    span.set_attributes(attributes)


def update_outcome(span: Span, record: CallRecord) -> None:
    """Update the attributes that depend on the outcome, after the server rejected the hint."""
    span.set_attributes({names.HINT_OUTCOME: record.outcome, names.EXPLANATION: record.explanation})


def answer_attributes(answer: Answer) -> dict[str, Any]:
    """Return what the server reported as attributes. What it did not report is left out."""
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


_CACHE_ATTRIBUTES: Final = frozenset(
    {names.USAGE_CACHE_READ_INPUT_TOKENS, names.CACHED_VLLM_TOKENS, names.CACHED_LMCACHE_TOKENS}
)


def record_answer(span: Span, answer: Answer, *, ours: bool) -> None:
    """Record what the server reported.

    Args:
        span: the chat span.
        answer: what the server reported.
        ours: True if this package started the span. Other spans only get the cached tokens.
    """
    if span.is_recording():
        attributes = answer_attributes(answer)
        span.set_attributes(
            attributes
            if ours
            else {name: attributes[name] for name in attributes if name in _CACHE_ATTRIBUTES}
        )


def record_failure(span: Span, error: BaseException) -> None:
    """Mark a span of this package as failed.

    Only the type of the error is recorded, because its message may quote the prompt.
    """
    kind = type(error)
    span.set_attribute(
        names.ERROR_TYPE,
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
    )
    span.set_status(Status(StatusCode.ERROR))

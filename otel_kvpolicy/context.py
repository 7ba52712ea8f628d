"""Facts about a call that its request body lacks, carried in the OpenTelemetry context.

These are the role, the agent and the RAG block.

The OpenTelemetry context follows asyncio tasks. It follows threads if
opentelemetry-instrumentation-threading is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry.trace import Span

_KEY: Final = otel_context.create_key("otel_kvpolicy.call")


class CallContext(NamedTuple):
    """Facts about the calls made in the current context; None if unknown.

    Attributes:
        role: kind of caller.
        agent_name: name of the agent.
        rag_context: retrieved block that the prompt contains.
        agent_span: span of the agent's run.
        conversation_id: id of the conversation.
    """

    role: str | None = None
    agent_name: str | None = None
    rag_context: Any = None
    agent_span: Span | None = None
    conversation_id: str | None = None


_UNKNOWN: Final = CallContext()


def call_context() -> CallContext:
    """Return the facts about calls made here; all None outside any :func:`kv_context`."""
    context = otel_context.get_value(_KEY)
    return context if isinstance(context, CallContext) else _UNKNOWN


@contextmanager
def kv_context(
    *,
    role: str | None = None,
    agent_name: str | None = None,
    rag_context: Any = None,
    conversation_id: str | None = None,
) -> Iterator[None]:
    """Describe all chat calls made in the block. Inner blocks add to outer ones.

    Args:
        role: kind of caller, such as ``"planner"``. Reuse-heavy roles tip a borderline call toward
            storing.
        agent_name: recorded as ``gen_ai.agent.name``.
        rag_context: retrieved block that the prompt contains: a string, or a list of strings. It is
            then counted separately from the question.
        conversation_id: id of the conversation. Advisors get a hash of it, and all calls of a
            conversation get the same affinity header.
    """
    outer = call_context()
    inner = outer._replace(
        role=role or outer.role,
        agent_name=agent_name or outer.agent_name,
        rag_context=outer.rag_context if rag_context is None else rag_context,
        conversation_id=conversation_id or outer.conversation_id,
    )
    with within(inner):
        yield


@contextmanager
def within(context: CallContext) -> Iterator[None]:
    """Set the facts about all calls made in the block."""
    token = otel_context.attach(otel_context.set_value(_KEY, context))
    try:
        yield
    finally:
        otel_context.detach(token)

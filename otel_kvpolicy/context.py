"""What a caller knows of its calls and the request body does not say, carried in the OpenTelemetry context.

The OpenTelemetry context follows asyncio tasks, and threads where opentelemetry-instrumentation-threading is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry.trace import Span

_KEY: Final = otel_context.create_key("otel_kvpolicy.call")


class CallContext(NamedTuple):
    """What is known of the calls made in the current context."""

    role: str | None = None
    agent_name: str | None = None
    rag_context: Any = None
    agent_span: Span | None = None


_UNKNOWN: Final = CallContext()


def call_context() -> CallContext:
    """What is known of the calls made here; all ``None`` outside any :func:`kv_context`."""
    known = otel_context.get_value(_KEY)
    return known if isinstance(known, CallContext) else _UNKNOWN


@contextmanager
def kv_context(
    *, role: str | None = None, agent_name: str | None = None, rag_context: Any = None
) -> Iterator[None]:
    """Says for all chat calls made inside what their bodies cannot. Inner contexts add to outer ones.

    Args:
        role: what kind of caller this is, such as ``"planner"``; reuse-heavy roles tip a borderline call towards storing.
        agent_name: recorded as ``gen_ai.agent.name``.
        rag_context: the retrieved block that stands in the prompt, a string or several, so that it is counted apart from the question.
    """
    outer = call_context()
    inner = outer._replace(
        role=role or outer.role,
        agent_name=agent_name or outer.agent_name,
        rag_context=outer.rag_context if rag_context is None else rag_context,
    )
    with within(inner):
        yield


@contextmanager
def within(known: CallContext) -> Iterator[None]:
    """Makes ``known`` what is known of the calls made inside."""
    token = otel_context.attach(otel_context.set_value(_KEY, known))
    try:
        yield
    finally:
        otel_context.detach(token)

"""Wrapped, overridden, partly traced and concurrent agents: one decision for each request."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from pydantic_ai import Agent, InstrumentationSettings, ModelRetry
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import BinaryContent, ModelRequest
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import UsageLimits

from otel_kvpolicy import kv_context
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry, scope_name

from . import run_styles
from .conftest import Model, attributes
from .test_runs import SKIP, STORE, decisions, hints, summaries, with_tool


def names(telemetry: Telemetry) -> Counter[str]:
    """Return the number of decided spans of each agent."""
    return Counter(attributes(span)["gen_ai.agent.name"] for span in telemetry.decided)


def scopes(telemetry: Telemetry) -> list[str]:
    return [scope_name(span) for span in telemetry.decided]


@pytest.mark.slow
def test_five_hundred_concurrent_agents_keep_their_names_and_roles(
    model: Model, instrumented: Telemetry, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_MIN_CONTEXT_TOKENS", "100")
    shared_model = model()
    agents = [Agent(shared_model, name=f"agent-{number}") for number in range(500)]

    async def use(agent: Agent[Any, Any], number: int) -> None:
        with kv_context(role="planner" if number % 2 else None):
            await agent.run("fact " * 60)

    async def use_all() -> None:
        await asyncio.gather(*(use(agent, number) for number, agent in enumerate(agents)))

    loop.run_until_complete(use_all())
    assert names(instrumented) == {agent.name: 1 for agent in agents}
    for span in instrumented.decided:  # no agent got the role of another
        number = int(attributes(span)["gen_ai.agent.name"].removeprefix("agent-"))
        assert attributes(span)["kvpolicy.decision"] == ("store" if number % 2 else "skip")
    assert instrumented.total("kvpolicy.decisions") == 500
    assert instrumented.total("kvpolicy.errors") == 0


def test_agents_in_threads_are_decided_and_summarized(
    kind: str, traced: bool, model: Model, instrumented: Telemetry
) -> None:
    def use(number: int) -> None:
        asyncio.run(with_named_tool(model(kind), f"agent-{number}").run("please lookup"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(8)))
    assert names(instrumented) == {f"agent-{number}": 2 for number in range(8)}
    assert summaries(instrumented) == (
        {f"agent-{number}": (2, 1, 1) for number in range(8)} if traced else {}
    )


def with_named_tool(model: Any, name: str) -> Agent[Any, Any]:
    agent = with_tool(model)
    agent.name = name
    return agent


def test_only_the_traced_agent_has_a_summary(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    settings = InstrumentationSettings(tracer_provider=instrumented.tracer_provider)
    agent = Agent(model(kind), name="seen")
    agent.instrument = settings
    run_styles.run(loop, agent, "hi")
    run_styles.run(loop, Agent(model(kind), name="unseen"), "hi")
    assert scopes(instrumented) == ["pydantic-ai", "otel_kvpolicy"]
    assert names(instrumented) == {"seen": 1, "unseen": 1}
    assert summaries(instrumented) == {"seen": (1, 1, 0)}


def test_an_untraced_sub_agent_is_not_counted_on_the_span_of_its_caller(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    outer, inner = Agent(model(kind), name="outer"), Agent(model(kind), name="inner")
    outer.instrument = InstrumentationSettings(tracer_provider=instrumented.tracer_provider)

    @outer.tool_plain
    async def delegate() -> str:
        return str((await inner.run("hi")).output)

    run_styles.run(loop, outer, "please delegate")
    assert names(instrumented) == {"outer": 2, "inner": 1}
    assert summaries(instrumented) == {"outer": (2, 1, 1)}


def test_a_traced_request_without_an_agent_is_annotated(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    settings = InstrumentationSettings(tracer_provider=instrumented.tracer_provider)
    loop.run_until_complete(
        model_request(model(kind), [ModelRequest.user_text_prompt("hi")], instrument=settings)
    )
    assert scopes(instrumented) == ["pydantic-ai"]
    assert decisions(instrumented) == ["skip"]
    assert instrumented.total("kvpolicy.decisions") == 1


@pytest.mark.parametrize("wrapper", [WrapperModel, InstrumentedModel])
def test_a_wrapped_model_is_decided_once_per_request(
    wrapper: Any,
    kind: str,
    traced: bool,
    model: Model,
    server: StandIn,
    instrumented: Telemetry,
    loop: Any,
) -> None:
    run_styles.run(loop, with_tool(wrapper(model(kind))), "please lookup")
    assert hints(server) == [SKIP, STORE]
    assert names(instrumented) == {"scout": 2}
    assert instrumented.total("kvpolicy.decisions") == 2


def test_an_overriding_model_is_decided(
    kind: str, traced: bool, model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    agent = with_tool(TestModel())
    with agent.override(model=model(kind)):
        run_styles.run(loop, agent, "please lookup")
    run_styles.run(loop, agent, "please lookup")
    assert hints(server) == [SKIP, STORE]
    assert instrumented.total("kvpolicy.decisions") == 2


def test_each_retry_of_a_tool_is_decided(
    kind: str, traced: bool, model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model(kind), name="scout")
    asked = []

    @agent.tool_plain(retries=2)
    def lookup(key: str) -> str:
        asked.append(key)
        if len(asked) == 1:
            raise ModelRetry("another key, please")
        return "known"

    run_styles.run(loop, agent, "please lookup")
    assert hints(server) == [SKIP, *[STORE] * (len(server.requests) - 1)]
    assert len(server.requests) > 1
    assert instrumented.total("kvpolicy.decisions") == len(server.requests)


def test_an_image_returned_by_a_tool_does_not_count_as_text(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model(kind))

    @agent.tool_plain
    def photograph() -> list[Any]:
        return [
            "taken at noon",
            BinaryContent(data=b"\x89PNG" + b"\0" * 40_000, media_type="image/png"),
        ]

    # Chat sends the image as a user message, so the stand-in would call the tool again.
    with suppress(UsageLimitExceeded):
        run_styles.run(loop, agent, "please photograph", usage_limits=UsageLimits(request_limit=2))
    _, second = sorted(instrumented.decided, key=lambda span: span.start_time or 0)
    assert 3 <= attributes(second)["kvpolicy.signals.user_tokens"] <= 300  # as base64, 13,000

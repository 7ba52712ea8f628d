"""Every way to run an agent: one decision per model request, and a summary on the agent's span."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.direct import model_request, model_request_stream, model_request_sync
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.test import TestModel

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry, scope_name

from . import run_styles
from .conftest import Model, attributes

SKIP = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}
STORE = {"lmcache.skip_save": False}
SUMMARY = ("kvpolicy.agent.calls", "kvpolicy.agent.skipped", "kvpolicy.agent.stored")


def hints(server: StandIn) -> list[Any]:
    return [request.body.get("kv_transfer_params") for request in server.requests]


def decisions(telemetry: Telemetry) -> list[str]:
    ordered = sorted(telemetry.decided, key=lambda span: span.start_time or 0)
    return [attributes(span)["kvpolicy.decision"] for span in ordered]


def summaries(telemetry: Telemetry) -> dict[str, tuple[int, int, int]]:
    """Return the summary on each agent's span, by the name of the agent."""
    spans = [attributes(span) for span in telemetry.spans("pydantic-ai")]
    return {
        span["gen_ai.agent.name"]: tuple(span[name] for name in SUMMARY)
        for span in spans
        if SUMMARY[0] in span
    }


def with_tool(model: Any, **given: Any) -> Agent[Any, Any]:
    agent = Agent(model, name="scout", **given)

    @agent.tool_plain
    def lookup(key: str) -> str:
        return f"{key} is known"

    return agent


@pytest.mark.parametrize("style", run_styles.STYLES, ids=lambda style: style.__name__)
def test_each_step_of_a_tool_loop_is_decided(
    style: Callable[..., Any],
    kind: str,
    traced: bool,
    model: Model,
    server: StandIn,
    instrumented: Telemetry,
    loop: Any,
) -> None:
    style(loop, with_tool(model(kind)), "please lookup")
    assert hints(server) == [SKIP, STORE]
    if run_styles.PYDANTIC_AI_1 and style is run_styles.run_stream_sync:
        # Version 1 leaves the run and its last two spans open.
        assert decisions(instrumented) == (["skip"] if traced else ["skip", "store"])
        loop.run_until_complete(loop.shutdown_asyncgens())
    assert decisions(instrumented) == ["skip", "store"]
    assert instrumented.total("kvpolicy.decisions") == 2
    assert instrumented.total("kvpolicy.errors") == 0
    first, second = sorted(instrumented.decided, key=lambda span: span.start_time or 0)
    assert {scope_name(span) for span in (first, second)} == {
        "pydantic-ai" if traced else "otel_kvpolicy"
    }
    assert attributes(first)["kvpolicy.reasons"] == ("one_off_short_prompt",)
    assert attributes(second)["kvpolicy.reasons"] == ("multi_turn_conversation",)
    assert {attributes(span)["gen_ai.agent.name"] for span in (first, second)} == {"scout"}
    assert summaries(instrumented) == ({"scout": (2, 1, 1)} if traced else {})


async def _leave(early_exit: run_styles.EarlyExit, agent: Agent[Any, Any]) -> None:
    async def nothing() -> None:
        pass

    await early_exit(agent, "hello there", nothing)


async def _fail(early_exit: run_styles.EarlyExit, agent: Agent[Any, Any]) -> None:
    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await early_exit(agent, "hello there", fail)


async def _cancel(early_exit: run_styles.EarlyExit, agent: Agent[Any, Any]) -> None:
    reading = asyncio.Event()

    async def wait() -> None:
        reading.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(early_exit(agent, "hello there", wait))
    await asyncio.wait_for(reading.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


ENDS = [_leave, _fail, _cancel]


def _check_that_the_call_was_closed(telemetry: Telemetry, server: StandIn, traced: bool) -> None:
    assert hints(server) == [SKIP]
    assert decisions(telemetry) == ["skip"]  # only spans that have ended count
    assert telemetry.total("kvpolicy.decisions") == 1
    assert telemetry.total("kvpolicy.errors") == 0
    assert telemetry.total("kvpolicy.prompt.tokens") > 0
    assert summaries(telemetry) == ({"scout": (1, 1, 0)} if traced else {})


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
@pytest.mark.parametrize(
    "early_exit",
    run_styles.EARLY_EXITS,
    ids=lambda early_exit: early_exit.__name__.removeprefix("leave_"),
)
def test_a_stream_that_is_not_read_to_its_end_is_recorded(
    early_exit: run_styles.EarlyExit,
    end: Callable[..., Any],
    kind: str,
    traced: bool,
    model: Model,
    server: StandIn,
    instrumented: Telemetry,
    loop: Any,
) -> None:
    loop.run_until_complete(end(early_exit, Agent(model(kind), name="scout")))
    _check_that_the_call_was_closed(instrumented, server, traced)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
@pytest.mark.parametrize("stream", run_styles.STREAMS, ids=lambda stream: stream.__name__)
def test_a_generator_that_is_closed_early_ends_the_same_as_without_instrumentation(
    stream: run_styles.Stream,
    end: Callable[..., Any],
    kind: str,
    traced: bool,
    model: Model,
    server: StandIn,
    telemetry: Telemetry,
    loop: Any,
) -> None:
    """In pydantic-ai 1, both runs raise GeneratorExit, which its runs do not handle."""

    def ended() -> type[BaseException] | None:
        try:
            loop.run_until_complete(
                end(run_styles.closing(stream), Agent(model(kind), name="scout"))
            )
        except BaseException as error:
            return type(error)
        return None

    without = ended()
    assert without is (
        GeneratorExit if run_styles.PYDANTIC_AI_1 and stream is not run_styles.events else None
    )
    server.requests.clear()
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
    )
    try:
        assert ended() is without
    finally:
        instrumentor.uninstrument()
    _check_that_the_call_was_closed(telemetry, server, traced)


def test_a_canceled_run_is_recorded(
    kind: str, traced: bool, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    with StandIn(latency=30) as slow:

        async def use() -> None:
            task = asyncio.create_task(Agent(model(kind, base_url=slow.base_url)).run("hi"))
            while not slow.requests:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        loop.run_until_complete(use())
        assert hints(slow) == [SKIP]
    assert decisions(instrumented) == ["skip"]
    assert instrumented.total("kvpolicy.decisions") == 1
    # There is no answer, so it is unknown whether the prompt was processed.
    assert instrumented.total("kvpolicy.prompt.tokens") == 0


def test_an_output_retry_is_another_decision(
    kind: str, traced: bool, model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model(kind), name="scout")
    rejected: list[str] = []

    @agent.output_validator
    def once(output: str) -> str:
        if not rejected:
            rejected.append(output)
            raise ModelRetry("again")
        return output

    run_styles.run(loop, agent, "hi")
    assert hints(server) == [SKIP, STORE]
    assert decisions(instrumented) == ["skip", "store"]
    assert summaries(instrumented) == ({"scout": (2, 1, 1)} if traced else {})


def test_retries_of_the_client_are_one_decision(
    kind: str, traced: bool, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    with StandIn(fail_first=2) as flaky:
        run_styles.run(loop, Agent(model(kind, base_url=flaky.base_url, max_retries=2)), "hi")
        assert hints(flaky) == [SKIP] * 3
    assert decisions(instrumented) == ["skip"]
    assert instrumented.total("kvpolicy.decisions") == 1


def test_each_model_of_a_fallback_is_decided(
    kind: str, traced: bool, model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    with StandIn(fail_first=1) as down:
        agent = Agent(FallbackModel(model(kind, base_url=down.base_url), model(kind)), name="scout")
        run_styles.run(loop, agent, "hi")
        assert hints(down) == [SKIP]
    assert hints(server) == [SKIP]
    assert instrumented.total("kvpolicy.decisions") == 2
    assert summaries(instrumented) == ({"scout": (2, 2, 0)} if traced else {})


def test_a_sub_agent_has_its_own_summary(
    kind: str, traced: bool, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    shared_model = model(kind)
    inner = Agent(shared_model, name="inner")
    outer = Agent(shared_model, name="outer")

    @outer.tool_plain
    async def delegate() -> str:
        return str((await inner.run("hi")).output)

    run_styles.run(loop, outer, "please delegate")
    names = Counter(attributes(span)["gen_ai.agent.name"] for span in instrumented.decided)
    assert names == {"outer": 2, "inner": 1}
    assert summaries(instrumented) == ({"outer": (2, 1, 1), "inner": (1, 1, 0)} if traced else {})


def test_parallel_agents_do_not_mix(
    kind: str, traced: bool, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    shared_model = model(kind)
    agents = [
        Agent(shared_model, name=f"agent-{number}", metadata={"role": f"role-{number}"})
        for number in range(8)
    ]

    async def use() -> None:
        await asyncio.gather(*(agent.run("hi") for agent in agents for _ in range(2)))

    loop.run_until_complete(use())
    assert Counter(attributes(span)["gen_ai.agent.name"] for span in instrumented.decided) == {
        agent.name: 2 for agent in agents
    }
    counted = Counter[str]()
    for point, value in instrumented.points("kvpolicy.decisions"):
        counted[point["gen_ai.agent.name"]] += value
    assert counted == {agent.name: 2 for agent in agents}


def test_a_model_request_without_an_agent_is_decided(
    kind: str, model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    async def streamed() -> None:
        async with model_request_stream(model(kind), messages) as stream:
            async for _ in stream:
                pass

    messages = [ModelRequest.user_text_prompt("hi")]
    loop.run_until_complete(model_request(model(kind), messages))
    loop.run_until_complete(streamed())
    model_request_sync(model(kind), messages)
    assert hints(server) == [SKIP] * 3
    assert decisions(instrumented) == ["skip"] * 3
    assert all("gen_ai.agent.name" not in attributes(span) for span in instrumented.decided)


def test_a_model_without_the_openai_client_is_not_touched(
    traced: bool, instrumented: Telemetry, loop: Any
) -> None:
    result = run_styles.run(loop, with_tool(TestModel()), "please lookup")
    assert "known" in result.output
    assert instrumented.decided == []
    assert instrumented.points("kvpolicy.decisions") == []
    assert summaries(instrumented) == {}


def test_the_name_of_an_agent_is_inferred_from_its_variable(
    model: Model, instrumented: Telemetry, loop: Any
) -> None:
    cartographer = Agent(model())
    cartographer.run_sync("hi")
    assert cartographer.name == "cartographer"
    assert [attributes(span)["gen_ai.agent.name"] for span in instrumented.decided] == [
        "cartographer"
    ]

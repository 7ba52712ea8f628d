"""Name, role and retrieved block of an agent affect the decision; other settings do not change."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent

from otel_kvpolicy import kv_context
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

from . import run_styles
from .conftest import Model, attributes
from .test_runs import STORE, hints, with_tool

BORDERLINE = "fact " * 900
"""1125 tokens: more than half of the context threshold."""

CLEAR_ONE_OFF = "fact " * 100


def reasons(telemetry: Telemetry) -> list[tuple[str, ...]]:
    return [attributes(span)["kvpolicy.reasons"] for span in telemetry.decided]


def explained(telemetry: Telemetry) -> str:
    [span] = telemetry.decided
    return str(attributes(span)["kvpolicy.explanation"])


def test_an_agent_with_tools_is_a_reuse_heavy_role(
    kind: str, traced: bool, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    run_styles.run(loop, with_tool(model(kind)), BORDERLINE)
    assert reasons(instrumented) == [("reuse_heavy_role",)]
    assert "reuse_heavy_role(tool_agent)" in explained(instrumented)


def test_a_clear_one_off_of_an_agent_with_tools_is_skipped(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    run_styles.run(loop, with_tool(model(kind)), CLEAR_ONE_OFF)
    assert reasons(instrumented) == [("one_off_short_prompt",)]


def test_an_agent_without_tools_is_not_a_reuse_heavy_role(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    run_styles.run(loop, Agent(model(kind), name="scout"), BORDERLINE)
    assert reasons(instrumented) == [("one_off_short_prompt",)]


def test_an_output_tool_does_not_count_as_a_tool(
    model: Model, instrumented: Telemetry, loop: Any
) -> None:
    from pydantic_ai import ToolOutput

    agent = Agent(model(), output_type=ToolOutput(dict[str, int]))
    run_styles.run(loop, agent, BORDERLINE)
    assert reasons(instrumented)[0] == ("one_off_short_prompt",)


@pytest.mark.parametrize(
    ("agent_options", "run_options", "outside", "expected"),
    [
        ({"metadata": {"role": "planner"}}, {}, None, "planner"),
        ({}, {"metadata": {"role": "planner"}}, None, "planner"),
        ({"metadata": {"role": "summarizer"}}, {"metadata": {"role": "planner"}}, None, "planner"),
        ({}, {}, "planner", "planner"),
        (
            {"metadata": {"role": "planner"}},
            {},
            "summarizer",
            "planner",
        ),  # the agent's own role wins over that of the context
        ({"name": "router"}, {}, None, "router"),
        ({"name": "router"}, {}, "summarizer", None),  # an explicit role wins over an inferred one
        ({"name": "router", "metadata": {"role": "summarizer"}}, {}, None, None),
        ({"metadata": {"role": 7}}, {}, None, None),
        ({"name": "summarizer"}, {}, None, None),
    ],
)
def test_the_most_specific_role_wins(
    agent_options: dict[str, Any],
    run_options: dict[str, Any],
    outside: str | None,
    expected: str | None,
    model: Model,
    instrumented: Telemetry,
    loop: Any,
) -> None:
    with kv_context(role=outside):
        run_styles.run(loop, Agent(model(), **agent_options), BORDERLINE, **run_options)
    if expected is None:
        assert reasons(instrumented) == [("one_off_short_prompt",)]
    else:
        assert f"reuse_heavy_role({expected})" in explained(instrumented)


def test_a_stated_role_wins_over_the_tools(
    model: Model, instrumented: Telemetry, loop: Any
) -> None:
    run_styles.run(loop, with_tool(model(), metadata={"role": "summarizer"}), BORDERLINE)
    assert reasons(instrumented) == [("one_off_short_prompt",)]


def test_a_retrieved_block_is_counted_separately(
    kind: str, traced: bool, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    block = "fact " * 1000
    with kv_context(rag_context=block):
        run_styles.run(loop, Agent(model(kind)), f"{block}\n\nWhat follows?")
    [span] = instrumented.decided
    assert attributes(span)["kvpolicy.reasons"] == ("large_rag_context",)
    assert attributes(span)["kvpolicy.signals.rag_tokens"] == 1250


@pytest.mark.parametrize("how", ["task", "thread", "task-group", "sync-in-thread"])
def test_kv_context_follows_tasks_and_threads(
    how: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model())

    async def use() -> None:
        with kv_context(role="planner"):
            if how == "task":
                await asyncio.create_task(agent.run(BORDERLINE))
            elif how == "task-group":
                await asyncio.gather(agent.run(BORDERLINE))
            elif how == "thread":
                await asyncio.to_thread(lambda: asyncio.run(agent.run(BORDERLINE)))
            else:
                await asyncio.to_thread(agent.run_sync, BORDERLINE)

    loop.run_until_complete(use())
    assert "reuse_heavy_role(planner)" in explained(instrumented)


def test_the_context_of_a_run_does_not_leak(
    model: Model, instrumented: Telemetry, loop: Any
) -> None:
    from otel_kvpolicy.context import CallContext, call_context

    async def use() -> CallContext:
        await with_tool(model(), metadata={"role": "planner"}).run("please lookup")
        async with with_tool(model()).run_stream("please lookup") as stream:
            inside = call_context()
            await stream.get_output()
        assert call_context() == CallContext()
        return inside

    assert loop.run_until_complete(use()) == CallContext()
    assert len(instrumented.decided) == 4


def test_the_system_prompt_is_distinguished_from_the_user_prompt(
    kind: str, model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model(kind), system_prompt="a" * 4000, instructions="b" * 4000)

    @agent.instructions
    def more() -> str:
        return "c" * 400

    run_styles.run(loop, agent, "d" * 400)
    [span] = instrumented.decided
    signals = attributes(span)
    assert signals["kvpolicy.reasons"][0] == "long_shared_prefix"
    assert signals["kvpolicy.signals.user_tokens"] == 100
    assert 2100 <= signals["kvpolicy.signals.prefix_tokens"] <= 2105
    assert hints(server) == [STORE]


def test_earlier_messages_count_as_history(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model(kind), instructions="be brief")
    first = run_styles.run(loop, agent, "a" * 400)
    run_styles.run(loop, agent, "b" * 800, message_history=first.all_messages())
    _, second = instrumented.decided
    assert attributes(second)["kvpolicy.reasons"] == ("multi_turn_conversation",)
    assert attributes(second)["kvpolicy.signals.history_turns"] == 1
    assert attributes(second)["kvpolicy.signals.user_tokens"] == 200
    assert attributes(second)["kvpolicy.signals.history_tokens"] >= 100


EXTRAS: dict[str, Any] = {
    "agent": {"extra_body": {"top_k": 5, "kv_transfer_params": {"lmcache.tag.team": "a"}}},
    "run": {"extra_body": {"min_p": 0.1}},
}


@pytest.mark.parametrize("levels", [(), ("agent",), ("run",), ("agent", "run")], ids="+".join)
@pytest.mark.parametrize("as_callable", [False, True])
def test_model_settings_of_every_level_are_kept(
    levels: tuple[str, ...],
    as_callable: bool,
    kind: str,
    model: Model,
    server: StandIn,
    instrumented: Telemetry,
    loop: Any,
) -> None:
    settings: dict[str, Any] = {name: {**EXTRAS[name], "temperature": 0.5} for name in levels}
    before = json.dumps(settings)

    def given(level: str) -> dict[str, Any]:
        if level not in settings:
            return {}
        return {"model_settings": (lambda _: settings[level]) if as_callable else settings[level]}

    run_styles.run(loop, Agent(model(kind), **given("agent")), "hi", **given("run"))
    body = server.last.body
    expected: dict[str, Any] = EXTRAS[levels[-1]]["extra_body"] if levels else {}
    assert body["kv_transfer_params"] == {
        **expected.get("kv_transfer_params", {}),
        "lmcache.skip_save": True,
        "lmcache.max_offload_tokens": 0,
    }
    assert {key: body[key] for key in ("top_k", "min_p") if key in body} == {
        k: v for k, v in expected.items() if k != "kv_transfer_params"
    }
    assert body.get("temperature") == (0.5 if levels else None)
    assert json.dumps(settings) == before


def test_no_other_setting_changes(kind: str, model: Model, server: StandIn, loop: Any) -> None:
    from otel_kvpolicy import KVPolicyInstrumentor

    settings: Any = {
        "temperature": 0.3,
        "max_tokens": 50,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "extra_headers": {"x-team": "a"},
    }

    def send() -> tuple[dict[str, Any], str | None]:
        run_styles.run(
            loop, with_tool(model(kind), model_settings=settings, instructions="be brief"), "hi"
        )
        return server.last.body, server.last.headers.get("x-team")

    without = send()
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument()
    try:
        body, header = send()
    finally:
        instrumentor.uninstrument()
    assert body.pop("kv_transfer_params")
    assert (body, header) == without


def test_a_hint_of_the_caller_is_kept_and_recorded(
    kind: str, traced: bool, model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    given_hint: Any = {"extra_body": {"kv_transfer_params": {"lmcache.skip_save": False}}}
    run_styles.run(loop, with_tool(model(kind)), "please lookup", model_settings=given_hint)
    assert hints(server) == [STORE, STORE]
    assert [attributes(span)["kvpolicy.hint.outcome"] for span in instrumented.decided] == [
        "caller",
        "caller",
    ]
    assert [attributes(span)["kvpolicy.decision"] for span in instrumented.decided] == [
        "store",
        "store",
    ]


@pytest.fixture
def environment_restored() -> Iterator[None]:
    """Restore the environment.

    agent-utilities writes its configuration into it, including ``OTEL_SDK_DISABLED=true``.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment_restored")
def test_agent_utilities_keeps_its_own_hint(
    model: Model, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    profile = pytest.importorskip(
        "agent_utilities.agent.sampling_profile", reason="agent-utilities 1.x is not installed"
    )
    agent = Agent(model())
    profile.attach_profile_resolver(agent, {})
    run_styles.run(loop, agent, "hi")
    assert hints(server) == [{"lmcache.skip_save": True}]
    assert [attributes(span)["kvpolicy.hint.outcome"] for span in instrumented.decided] == [
        "caller"
    ]

"""Images, tool results, thinking and files: only text counts, in requests and in messages."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from otel_kvpolicy import decide
from tests.conftest import Telemetry

from . import run_styles
from .conftest import Model, attributes

PIXELS = BinaryContent(data=b"\x89PNG" + b"\0" * 40_000, media_type="image/png")
TEXT = "a" * 400


@pytest.mark.parametrize(
    "attachment",
    [
        PIXELS,
        ImageUrl(url="data:image/png;base64," + "A" * 40_000),
        ImageUrl(url="http://127.0.0.1/x.png?" + "q" * 4000),
    ],
    ids=["binary", "data-url", "url"],
)
def test_an_image_does_not_count_as_text(
    attachment: Any, kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    run_styles.run(loop, Agent(model(kind)), [TEXT, attachment])
    [span] = instrumented.decided
    assert attributes(span)["kvpolicy.signals.user_tokens"] == 100
    assert attributes(span)["kvpolicy.decision"] == "skip"


NESTED = {"rows": [{"name": "b" * 100, "tags": ["c" * 100, "d" * 100]}], "total": 3, "none": None}


@pytest.mark.parametrize(
    "returned", ["x" * 400, NESTED, [NESTED, NESTED]], ids=["text", "nested", "list"]
)
def test_the_result_of_a_tool_counts(
    returned: Any, kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model(kind))

    @agent.tool_plain
    def lookup() -> Any:
        return returned

    run_styles.run(loop, agent, "please lookup")
    _, second = sorted(instrumented.decided, key=lambda span: span.start_time or 0)
    # The result of the tool follows the last reply.
    counted = attributes(second)["kvpolicy.signals.user_tokens"]
    chars = (
        len(returned)
        if isinstance(returned, str)
        else 300 * (len(returned) if isinstance(returned, list) else 1)
    )
    assert chars / 4 <= counted <= chars / 4 + 40


def test_a_conversation_with_every_kind_of_part_is_counted(
    kind: str, model: Model, instrumented: Telemetry, loop: Any
) -> None:
    history = [
        ModelRequest(parts=[SystemPromptPart("s" * 400), UserPromptPart(["u" * 400, PIXELS])]),
        ModelResponse(
            parts=[
                ThinkingPart("t" * 400),
                TextPart("r" * 400),
                ToolCallPart("lookup", {"key": "k" * 400}, tool_call_id="1"),
            ]
        ),
        ModelRequest(parts=[ToolReturnPart("lookup", NESTED, tool_call_id="1")]),
        ModelResponse(parts=[TextPart("r" * 400)]),
    ]
    agent = Agent(model(kind))

    @agent.tool_plain
    def lookup(key: str) -> str:
        return key

    run_styles.run(loop, agent, "hi", message_history=history)
    [span] = instrumented.decided
    signals = attributes(span)
    assert signals["kvpolicy.signals.history_turns"] == 2
    assert signals["kvpolicy.signals.user_tokens"] == 0  # two characters
    assert (
        100
        <= signals["kvpolicy.signals.prefix_tokens"] - signals["kvpolicy.signals.tool_tokens"]
        <= 101
    )
    # User, reply, arguments, tool result and reply. The thinking may or may not be sent again.
    assert 4 * 100 + 75 <= signals["kvpolicy.signals.history_tokens"] <= 5 * 100 + 75 + 60


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (UserPromptPart("x" * 400), 100),
        (UserPromptPart(["x" * 400, ImageUrl(url="http://127.0.0.1/" + "x" * 4000), PIXELS]), 100),
        (UserPromptPart([DocumentUrl(url="http://127.0.0.1/" + "x" * 4000)]), 0),
        (SystemPromptPart("x" * 400), 100),
        (ToolReturnPart("lookup", "x" * 400, tool_call_id="1"), 100),
        (ToolReturnPart("lookup", {"a": ["x" * 400]}, tool_call_id="1"), 100),
        (TextPart("x" * 400), 100),
        (ThinkingPart("x" * 400), 100),
        (ToolCallPart("lookup", {"a": "x" * 400}), 100),
        (ToolCallPart("lookup", "x" * 400), 100),
        (FilePart(PIXELS), 0),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_decide_counts_messages_of_pydantic_ai(part: Any, tokens: int) -> None:
    kind = (
        ModelResponse
        if part.__class__ in {TextPart, ThinkingPart, ToolCallPart, FilePart}
        else ModelRequest
    )
    counted = decide(message_history=[kind(parts=[part])], user_prompt="hi").signals
    assert tokens <= counted["history_tokens"] <= tokens + 6
    assert counted["history_turns"] == (1 if kind is ModelResponse else 0)

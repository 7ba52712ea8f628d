"""The kind of text in a request, and whether all of it was counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_kvpolicy.policy.calibration import STARTING_RATIOS
from otel_kvpolicy.requests import read_chat, read_responses
from otel_kvpolicy.requests.sample import is_all_text, script_of_request

CHINESE = "今天的天气很好，我们去公园散步。" * 20
PROSE = "The cache keeps what is asked for again. " * 5
DATA = '{"id": 17, "price": 12.50, "tags": ["x", "y"]}, ' * 20
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"x" * 400: 1}}}


def message(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


CHATS = [
    ([], "prose", True),
    ([message(PROSE)], "prose", True),
    ([message(PROSE, "system"), message(CHINESE)], "wide", True),
    ([message(CHINESE), *[message("ok")] * 63], "wide", True),
    ([message(CHINESE), *[message(PROSE)] * 64], "prose", True),  # only the latest are looked at
    ([message(PROSE), message(DATA, "tool")], "data+results", True),
    ([message([part(CHINESE)])], "wide", True),
    ([message([part(CHINESE), IMAGE])], "wide", False),
    ([message([IMAGE]), message(PROSE)], "prose", False),
    ([message(None, "assistant"), message(PROSE)], "prose", True),
    ([{"role": "assistant"}, message(PROSE)], "prose", True),
    ([SimpleNamespace(role="user", content=PROSE)], "prose", False),
    ([message([part("x")])] * 2000, "prose", False),  # too many to look for media in
]


@pytest.mark.parametrize(("messages", "script", "all_text"), CHATS)
def test_chat_completions(messages: list[Any], script: str, *, all_text: bool) -> None:
    body = {"messages": messages}
    text = read_chat(body)
    assert script_of_request(body, text, sum(text[:-1])) == script
    assert is_all_text(body, text) is all_text


RESPONSES: list[tuple[dict[str, Any], str, bool]] = [
    ({}, "prose", True),
    ({"input": CHINESE}, "wide", True),
    ({"input": [message(PROSE), message(CHINESE)]}, "wide", True),
    ({"input": [message([{"type": "input_text", "text": CHINESE}])]}, "wide", True),
    ({"input": [message([{"type": "input_image", "image_url": "x"}])]}, "prose", False),
    ({"input": [{"type": "input_file", "file_id": "f"}]}, "prose", False),
    ({"input": [{"type": "function_call_output", "output": DATA}]}, "data+results", True),
    ({"input": PROSE, "previous_response_id": "r"}, "prose", False),
    ({"input": PROSE, "prompt": {"id": "p"}}, "prose", False),
    ({"input": 3}, "prose", True),
]


@pytest.mark.parametrize(("body", "script", "all_text"), RESPONSES)
def test_responses(body: dict[str, Any], script: str, *, all_text: bool) -> None:
    text = read_responses(body)
    assert script_of_request(body, text, sum(text[:-1])) == script
    assert is_all_text(body, text) is all_text


def test_a_prompt_that_is_mostly_tool_definitions_is_a_kind_of_its_own() -> None:
    body = {"messages": [message("short")], "tools": [TOOL]}
    text = read_chat(body)
    assert script_of_request(body, text, sum(text[:-1])) == "tools"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "output"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(values, values, values)
def test_any_body_is_of_some_kind(messages: Any, instructions: Any, tools: Any) -> None:
    chat = {"messages": messages, "tools": tools}
    responses = {"input": messages, "instructions": instructions, "prompt": tools}
    for body, text in ((chat, read_chat(chat)), (responses, read_responses(responses))):
        assert script_of_request(body, text, sum(text[:-1])) in STARTING_RATIOS
        assert is_all_text(body, text) in {True, False}

"""Request bodies: what is prefix, history and question, in chat completions and Responses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from otel_kvpolicy.policy import CallText
from otel_kvpolicy.requests import (
    Answer,
    read_answer,
    read_chat,
    read_chunk,
    read_responses,
    reader_of,
)
from otel_kvpolicy.requests.decide_arguments import decide_arguments

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "abc"}], CallText(user_chars=3)),
        (
            [
                {"role": "system", "content": "ab"},
                {"role": "developer", "content": "c"},
                {"role": "user", "content": "de"},
            ],
            CallText(3, 0, 0, 0, 2, 0),
        ),
        (
            [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": "cde"},
                {"role": "user", "content": "f"},
            ],
            CallText(1, 0, 5, 0, 1, 1),
        ),
        (
            [
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "content": "xyz"},
            ],
            CallText(0, 0, 8, 0, 3, 1),
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}],
            CallText(user_chars=5),
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "prefill"}],
            CallText(0, 0, 8, 0, 0, 1),
        ),
        (
            [
                SimpleNamespace(role="user", content="abc"),
                SimpleNamespace(role="assistant", content="d", tool_calls=None),
            ],
            CallText(0, 0, 4, 0, 0, 1),
        ),
        ([], CallText()),
        (None, CallText()),
        ("text", CallText()),
        ((message for message in [{"role": "user", "content": "abc"}]), CallText()),
        ([None, 5, "abc"], CallText(user_chars=3)),
        ([{"role": [], "content": "abc"}, {"role": {}, "content": "d"}], CallText(user_chars=4)),
        ([{"role": "system"}, {"role": "user", "content": "abc"}], CallText(user_chars=3)),
    ],
)
def test_chat_messages_are_divided_into_prefix_history_and_question(
    messages: Any, text: CallText
) -> None:
    assert read_chat({"model": "m", "messages": messages}) == text


def test_a_chat_request_without_messages_and_legacy_functions_are_read() -> None:
    assert read_chat({}) == CallText()
    assert (
        read_chat({"functions": [{"name": "f"}]}).tool_chars
        == read_chat({"tools": [{"name": "f"}]}).tool_chars
        > 0
    )
    assert read_chat({"tools": "nonsense"}).tool_chars == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"input": "abc", "instructions": "de"}, CallText(2, 0, 0, 0, 3, 0)),
        (
            {
                "input": [
                    {"role": "developer", "content": "ab"},
                    {"role": "user", "content": [{"type": "input_text", "text": "cde"}]},
                ]
            },
            CallText(2, 0, 0, 0, 3, 0),
        ),
        ({"input": "abc", "previous_response_id": "resp_1"}, CallText(0, 0, 0, 0, 3, 1)),
        ({"input": "abc", "conversation": {"id": "conv_1"}}, CallText(0, 0, 0, 0, 3, 1)),
        (
            {
                "input": [
                    {"role": "user", "content": "a"},
                    {
                        "type": "reasoning",
                        "summary": [{"type": "summary_text", "text": "bc"}],
                        "encrypted_content": "Z" * 999,
                    },
                    {"type": "function_call", "name": "look", "arguments": "{}"},
                    {"type": "function_call_output", "output": "xyz"},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "de"}],
                    },
                    {"role": "user", "content": "f"},
                ]
            },
            CallText(0, 0, 1 + 2 + 6 + 3 + 2, 0, 1, 2),
        ),
        ({"input": None}, CallText()),
        ({"input": 7}, CallText()),
    ],
)
def test_responses_input_is_divided_into_prefix_history_and_question(
    body: dict[str, Any], text: CallText
) -> None:
    assert read_responses(body) == text


@pytest.mark.parametrize(
    ("url", "reader"),
    [
        ("/chat/completions", read_chat),
        ("http://host/v1/chat/completions?x=1", read_chat),
        ("/deployments/gpt/chat/completions", read_chat),
        ("/responses", read_responses),
        ("/responses/resp_1/cancel", None),
        ("/responses/input_tokens", None),
        ("/chat/completions/chatcmpl-1", None),
        ("/completions", None),
        ("/embeddings", None),
        ("", None),
    ],
)
def test_only_chat_calls_are_read(url: str, reader: Any) -> None:
    assert reader_of(url) is reader


def test_usage_is_read_from_mappings_and_objects_of_both_apis() -> None:
    chat = {
        "id": "c",
        "model": "m",
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        "choices": [{"finish_reason": "stop"}],
    }
    answer = read_answer(chat)
    assert answer == Answer(9, 2, 4, "c", "m", ("stop",))
    responses = SimpleNamespace(
        id="r",
        model="m",
        status="completed",
        usage=SimpleNamespace(
            input_tokens=9, output_tokens=2, input_tokens_details=SimpleNamespace(cached_tokens=0)
        ),
    )
    assert read_answer(responses) == Answer(9, 2, 0, "r", "m", ("completed",))
    split = {
        "cached_token_stats": {
            "num_vllm_cached_tokens": 1,
            "num_lmcache_cached_tokens": 4,
            "num_lmcache_extra_cached_tokens": 3,
        }
    }
    assert read_answer({**chat, "kv_transfer_params": split})[6:] == (1, 4)


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        5,
        "x",
        [],
        {"usage": 5},
        {"usage": {"prompt_tokens": "9"}},
        {"usage": {"prompt_tokens": True}},
    ],
)
def test_an_unreadable_answer_reports_nothing(nonsense: Any) -> None:
    assert read_answer(nonsense)[:3] == (None, None, None)


def test_a_text_chunk_reports_nothing_and_the_last_chunk_reports_usage() -> None:
    chunk = {
        "id": "c",
        "choices": [{"delta": {"content": "x"}, "finish_reason": None}],
        "usage": None,
    }
    assert read_chunk(chunk) is None
    stop = read_chunk({"id": "c", "model": "m", "choices": [{"finish_reason": "stop"}]})
    usage = read_chunk(
        {
            "id": "c",
            "model": "m",
            "choices": [],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
        }
    )
    assert stop is not None
    assert usage is not None
    assert stop.then(usage) == Answer(3, 1, None, "c", "m", ("stop",))


def test_a_body_is_turned_into_arguments_of_decide() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "tools": [{"name": "f"}],
    }
    parts = decide_arguments(body)
    assert (
        parts["system_prompt"],
        parts["user_prompt"],
        len(parts["message_history"]),
        parts["tools"],
    ) == (
        ["s"],
        ["c"],
        2,
        [{"name": "f"}],
    )
    assert decide_arguments({"instructions": "s", "input": "c"})["system_prompt"] == ["s"]
    assert decide_arguments({"instructions": "s", "input": "c"})["user_prompt"] == ["c"]


def tool(name: str, description: str = "d", **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


def test_remembered_tool_sizes_are_not_mixed_up() -> None:
    variants = [
        [tool("a")],
        [tool("a"), tool("b")],
        [tool("b"), tool("a")],
        [tool("a", "d" * 100)],
        [tool("a", x={"type": "string", "description": "long " * 50})],
        [tool("a", x={}, y={})],
        [tool("a")["function"]],
        [{"type": "web_search"}],
        ["odd", None, 7],
    ]
    for _ in range(2):
        for tools in variants:
            assert read_chat({"tools": tools}).tool_chars == pytest.approx(
                len(json.dumps(tools)), rel=0.1, abs=8
            )

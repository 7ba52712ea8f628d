"""Counting: text counts, media and bytes do not, and no value makes counting hang or raise."""

from __future__ import annotations

import json
import tracemalloc
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_kvpolicy.policy.counting import (
    call_chars,
    content_chars,
    history_text,
    json_chars,
    message_chars,
    speaker,
)
from otel_kvpolicy.requests import read_chat

BASE64 = "A" * 100_000


@pytest.mark.parametrize(
    ("content", "chars"),
    [
        ("hello", 5),
        (
            [
                {"type": "text", "text": "hello"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
            ],
            5,
        ),
        ([{"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}], 0),
        ([{"type": "file", "file": {"file_data": BASE64, "filename": "a.pdf"}}], 0),
        (
            [
                {"type": "input_text", "text": "abc"},
                {"type": "input_image", "image_url": BASE64},
                {"type": "input_file", "file_data": BASE64},
            ],
            3,
        ),
        ([{"type": "refusal", "refusal": "no"}], 2),
        ([{"type": "text", "text": "abc"}, {"type": "output_text", "text": "de"}], 5),
        ({"type": "function_call_output", "call_id": "c", "output": "12345"}, 5),
        (SimpleNamespace(kind="binary", data=b"x" * 1000, media_type="image/png"), 0),
        (SimpleNamespace(kind="image-url", url="https://example.com/a.png"), 0),
        (["abc", SimpleNamespace(content="de")], 5),
        (b"bytes", 0),
        (None, 0),
        (3.5, 0),
    ],
)
def test_text_counts_and_media_does_not(content: Any, chars: int) -> None:
    assert content_chars(content) == chars


def test_data_counts_about_as_much_as_its_json() -> None:
    data = {"rows": [{"name": "a" * 50, "price": 12} for _ in range(20)]}
    assert content_chars(data) == pytest.approx(len(json.dumps(data)), rel=0.1)


def test_any_mapping_is_read_like_a_dict() -> None:
    part = {"type": "text", "text": "quay", "name": "mole"}
    assert (
        content_chars(MappingProxyType(part))
        == content_chars([MappingProxyType(part)])
        == len("quaymole")
    )
    assert (
        content_chars(MappingProxyType({"tide": 7}))
        == content_chars({"tide": 7})
        == json_chars(MappingProxyType({"tide": 7}))
    )


def test_counting_stops_at_a_value_that_contains_itself() -> None:
    loop: dict[str, Any] = {"type": "note", "text": "quay"}
    loop["content"] = [loop]
    assert (
        content_chars([loop, {"type": "note", "text": "mole"}])
        == content_chars([loop])
        == len("quay")
    )


@pytest.mark.parametrize("count", [content_chars, json_chars])
def test_counting_cyclic_and_deep_values_terminates(count: Any) -> None:
    cyclic: list[Any] = ["abc"]
    cyclic += [cyclic, cyclic]
    assert count(cyclic) >= 0
    deep: Any = "abc"
    for _ in range(5000):
        deep = [deep]
    assert count(deep) >= 3


class Text(str):
    """A string that counts how often its length is read."""

    visits = 0

    def __len__(self) -> int:
        self.visits += 1
        return super().__len__()


def self_containing(text: str, times: int) -> list[Any]:
    """Return a list that contains itself many times."""
    values: list[Any] = [text]
    values += [values] * times
    return values


COUNTS = [content_chars, json_chars, lambda content: message_chars({"content": content})]


@pytest.mark.parametrize("count", COUNTS)
def test_counting_a_value_that_contains_itself_reads_few_strings(count: Any) -> None:
    for content in (
        self_containing(text := Text("abc"), 2000),
        [self_containing(text, 2000)] * 10_000,
        [{"rows": self_containing(text, 2000)}] * 10_000,
    ):
        count(content)
    assert 0 < text.visits < 10


def test_counting_a_body_of_such_values_reads_few_strings() -> None:
    text = Text("abc")
    content = self_containing(text, 2000)
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "custom", "content": content}]},
    ] * 1000
    read_chat({"messages": messages})
    history_text(messages)
    assert text.visits <= 2 * 2 * len(messages)


@pytest.mark.parametrize("count", COUNTS)
def test_one_content_has_one_limit_for_all_its_parts(count: Any) -> None:
    """The content repeats the same values."""
    text = Text("abc")
    count([[[text] * 1000] * 1000] * 1000)
    assert 90_000 < text.visits <= 100_000


@pytest.mark.parametrize(
    "content",
    [
        self_containing("abc", 1000),
        [[["abc"] * 1000] * 1000] * 1000,
        [{str(index): "abc" for index in range(10)}] * 100_000,
    ],
)
def test_counting_uses_little_memory(content: Any) -> None:
    tracemalloc.start()
    try:
        content_chars(content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


_NODES = st.lists(
    st.lists(st.integers(0, 7) | st.none() | st.just("abc"), max_size=3), min_size=1, max_size=8
)


@given(nodes=_NODES)
def test_json_chars_counts_what_json_would_write(nodes: list[list[Any]]) -> None:
    """Lists and objects contain one another, some several times, and some contain themselves."""
    text = Text("abc")
    holders: list[Any] = [{} if index % 2 else [] for index in range(len(nodes))]
    for holder, values in zip(holders, nodes, strict=True):
        held = [
            text if value == "abc" else value if value is None else holders[value % len(holders)]
            for value in values
        ]
        if isinstance(holder, dict):
            holder.update({f"key{index}": value for index, value in enumerate(held)})
        else:
            holder.extend(held)
    written, whole = "", True
    try:
        for piece in json.JSONEncoder().iterencode(holders):
            written += piece
    except ValueError:  # a circular reference
        whole = False
    text.visits = 0
    chars = json_chars(holders)
    assert text.visits == written.count("abc")
    assert chars == len(written) or not whole


@pytest.mark.parametrize(
    "value",
    [
        "",
        "abc",
        {},
        [],
        {"a": "b"},
        ["a", "b"],
        {"a": ["b", {"c": "d"}], "e": {}},
        None,
        True,
        [None],
    ],
)
def test_json_of_text_counts_exactly(value: Any) -> None:
    assert json_chars(value) == len(json.dumps(value))


def test_a_number_counts_as_four_and_an_object_that_is_not_json_as_zero() -> None:
    assert json_chars([1.25, 7, False]) == 2 * 3 + 3 * 4
    assert json_chars(object()) == json_chars(b"bytes") == 0


NAMED = {"name": "ab", "arguments": "cde"}


@pytest.mark.parametrize(
    ("calls", "chars"),
    [
        ([{"function": NAMED}], 5),
        ([SimpleNamespace(function=SimpleNamespace(**NAMED))], 5),
        ([{"function": SimpleNamespace(**NAMED)}, SimpleNamespace(function=NAMED)], 10),
        ([{"function": {"name": "ab"}}, {"function": {"arguments": "cde"}}], 5),
        (({"function": NAMED},), 5),
        ([{}, None, "function"], 0),
        ("function", 0),
        ({"function": NAMED}, 0),
    ],
)
def test_tool_calls_count_by_name_and_arguments(calls: Any, chars: int) -> None:
    assert call_chars(calls) == chars
    assert message_chars({"role": "assistant", "content": "xy", "tool_calls": calls}) == 2 + chars
    assert (
        message_chars(SimpleNamespace(role="assistant", content="xy", tool_calls=calls))
        == 2 + chars
    )


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ({"role": "user"}, "user"),
        ({"kind": "response"}, None),
        (SimpleNamespace(kind="response", role="user"), "response"),
        (SimpleNamespace(role="user"), "user"),
        (SimpleNamespace(kind=7), None),
        (None, None),
    ],
)
def test_the_speaker_of_a_message_is_its_role_or_kind(message: Any, role: str | None) -> None:
    assert speaker(message) == role


def test_nested_values_count() -> None:
    assert content_chars([{"type": "custom", "text": "ab", "content": "cde"}]) == 5
    assert content_chars([[{"a": "b"}, {"a": "b"}]]) == 2 * len(json.dumps({"a": "b"}))
    assert content_chars([["ab", {"a": "b"}, "cde"]]) == 5 + len(json.dumps({"a": "b"}))


@pytest.mark.parametrize("history", ["abcd", b"abcd", {"role": "assistant"}, 7, None])
def test_a_value_that_is_not_a_list_of_messages_is_no_history(history: Any) -> None:
    assert history_text(history) == (0, 0)

"""Which calls a workload makes, in which order, and which files can be one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_kvpolicy.cli.demo.conversations import built_in
from otel_kvpolicy.cli.demo.workload import Conversation, InputError, read_conversations, steps
from otel_kvpolicy.standin.prompt import render, token_count

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}


def conversation(turns: int) -> Conversation:
    return Conversation([USER, REPLY] * turns)


def test_each_assistant_message_is_a_call_with_all_messages_before_it() -> None:
    assert Conversation(
        [{"role": "system", "content": "be"}, USER, REPLY, USER, REPLY, USER]
    ).calls == [2, 4]
    assert Conversation([REPLY, USER]).calls == []


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(1, 8))
def test_calls_of_a_conversation_keep_their_order_and_users_are_bounded(
    turns: list[int], users: int
) -> None:
    conversations = [conversation(count) for count in turns]
    order = steps(conversations, users)
    for index, one in enumerate(conversations):
        assert [length for step, length in order if step == index] == one.calls
    sent = [index for index, _ in order]
    for place in range(len(order)):
        assert len(set(sent[: place + 1]) & set(sent[place:])) <= users
    assert steps(conversations, users) == order


def test_conversations_of_several_users_interleave() -> None:
    order = [index for index, _ in steps([conversation(20), conversation(20)], users=2)]
    assert order != sorted(order)
    alone = [index for index, _ in steps([conversation(20), conversation(20)], users=1)]
    assert alone == sorted(alone)


@pytest.mark.parametrize(
    "wrap",
    [lambda m: m, lambda m: {"messages": m}, lambda m: {"traj": m, "reward": 1}],
    ids=["list", "messages", "traj"],
)
@pytest.mark.parametrize("name", ["talk.jsonl", "talk.jsonl.gz"])
def test_every_supported_file_format_is_read(tmp_path: Path, wrap: Any, name: str) -> None:
    text = "\n\n".join(
        json.dumps(wrap(messages)) for messages in ([USER, REPLY], [USER, REPLY, USER, REPLY])
    )
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert [one.calls for one in read_conversations(path)] == [[1], [1, 3]]


def test_a_conversations_tools_are_kept(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": [USER, REPLY], "tools": tools}))
    assert read_conversations(path)[0].tools == tools


@pytest.mark.parametrize(
    ("content", "problem", "line"),
    [
        (b"{", "not_json", 1),
        (b'[{"role": "user", "content": "x"}]\nnot json', "not_json", 2),
        (b'"text"', "not_messages", 1),
        (b'{"conversation": []}', "not_messages", 1),
        (b'{"messages": {}}', "not_messages", 1),
        (b'[{"role": "user"}, 7]', "bad_message", 1),
        (b'[{"content": "x"}]', "bad_message", 1),
        (b'{"messages": [], "tools": {}}', "bad_tools", 1),
        (b'[{"role": "user", "content": "x"}]', "no_calls", None),
        (b"", "no_calls", None),
        (b"\xff\xfe\xff", "unreadable", None),
        (b"[" * 100_000, "not_json", 1),
    ],
)
def test_a_bad_file_is_rejected_with_its_line_and_problem(
    tmp_path: Path, content: bytes, problem: str, line: int | None
) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_conversations(path)
    error = raised.value
    assert (error.problem, error.line) == (problem, line)
    assert "talk.jsonl" in str(error)
    assert line is None or f"line {line}" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"[]" * 5000)[:-20]],
    ids=["not gzip", "cut off"],
)
def test_a_broken_gzip_file_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "talk.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_conversations(path)
    assert raised.value.problem == "unreadable"


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_conversations(tmp_path / "none.jsonl")
    assert raised.value.problem == "unreadable"


def test_the_built_in_workload_is_reproducible_and_varied() -> None:
    workload = built_in()
    assert workload == built_in()
    assert any(one.tools for one in workload)
    assert {one.stream for one in workload} == {True, False}
    lengths = [
        token_count(render(one.messages[:length], one.tools))
        for one in workload
        for length in one.calls
    ]
    one_offs = [one for one in workload if len(one.messages) == 2]
    texts = {one.messages[0]["content"] for one in one_offs}
    assert min(lengths) < 256 < 2048 < max(lengths)
    assert len(texts) == len(one_offs) > len(workload) / 2
    assert sum(len(one.calls) > 3 for one in workload) > 20
    assert any(message["role"] == "tool" for one in workload for message in one.messages)

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


def test_each_assistant_message_is_a_call_with_what_precedes_it() -> None:
    assert Conversation(
        [{"role": "system", "content": "be"}, USER, REPLY, USER, REPLY, USER]
    ).calls == [2, 4]
    assert Conversation([REPLY, USER]).calls == []


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(1, 8))
def test_all_calls_are_sent_in_their_own_order_by_so_many_users(
    turns: list[int], users: int
) -> None:
    conversations = [conversation(count) for count in turns]
    order = steps(conversations, users)
    for index, each in enumerate(conversations):
        assert [length for step, length in order if step == index] == each.calls
    sent = [index for index, _ in order]
    for place in range(len(order)):
        assert len(set(sent[: place + 1]) & set(sent[place:])) <= users
    assert steps(conversations, users) == order


def test_several_users_interleave() -> None:
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
def test_files_of_all_forms_are_read(tmp_path: Path, wrap: Any, name: str) -> None:
    text = "\n\n".join(
        json.dumps(wrap(messages)) for messages in ([USER, REPLY], [USER, REPLY, USER, REPLY])
    )
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert [each.calls for each in read_conversations(path)] == [[1], [1, 3]]


def test_tools_of_a_conversation_are_kept(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": [USER, REPLY], "tools": tools}))
    assert read_conversations(path)[0].tools == tools


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "line 1: not JSON"),
        (b'[{"role": "user", "content": "x"}]\nnot json', "line 2: not JSON"),
        (b'"text"', "line 1: neither a list of messages"),
        (b'{"conversation": []}', "line 1: neither a list of messages"),
        (b'{"messages": {}}', "line 1: neither a list of messages"),
        (b'[{"role": "user"}, 7]', "message 2 is not an object with a role"),
        (b'[{"content": "x"}]', "message 1 is not an object with a role"),
        (b'{"messages": [], "tools": {}}', '"tools" is not a list'),
        (b'[{"role": "user", "content": "x"}]', "no assistant message"),
        (b"", "no assistant message"),
        (b"\xff\xfe\xff", "cannot read"),
        (b"[" * 100_000, "line 1: not JSON"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=".") as error:
        read_conversations(path)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"[]" * 5000)[:-20]])
def test_a_broken_gzip_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "talk.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot read"):
        read_conversations(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_conversations(tmp_path / "none.jsonl")


def test_the_built_in_workload_is_the_same_each_time_and_varied() -> None:
    found = built_in()
    assert found == built_in()
    assert any(each.tools for each in found)
    assert {each.stream for each in found} == {True, False}
    lengths = [
        token_count(render(each.messages[:length], each.tools))
        for each in found
        for length in each.calls
    ]
    one_offs = [each for each in found if len(each.messages) == 2]
    assert min(lengths) < 256 < 2048 < max(lengths)
    assert len({each.messages[0]["content"] for each in one_offs}) == len(one_offs) > len(found) / 2
    assert sum(len(each.calls) > 3 for each in found) > 20
    assert any(message["role"] == "tool" for each in found for message in each.messages)

"""Hashes of the stable parts of a prompt."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from otel_kvpolicy.advisors.prefix import NO_PREFIX, hash_of, key_of, stable_prefix

KEY = key_of("secret")
SYSTEM = {"role": "system", "content": "You answer briefly."}
QUESTION = {"role": "user", "content": "What is a prefix?"}
REPLY = {"role": "assistant", "content": "A beginning."}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def test_all_calls_of_a_conversation_have_the_same_hashes() -> None:
    first = stable_prefix(chat(SYSTEM, QUESTION), KEY)
    later = stable_prefix(chat(SYSTEM, QUESTION, REPLY, {"role": "user", "content": "And?"}), KEY)
    assert first == later
    assert len(first.head) == len(first.opening) == 32
    assert first.head != first.opening
    assert first.has_head


def test_another_question_changes_the_opening_but_not_the_head() -> None:
    one = stable_prefix(chat(SYSTEM, QUESTION), KEY)
    other = stable_prefix(chat(SYSTEM, {"role": "user", "content": "Why?"}), KEY)
    assert one.head == other.head
    assert one.opening != other.opening


def test_a_conversation_without_a_head_is_identified_by_its_opening() -> None:
    first = stable_prefix(chat(QUESTION), KEY)
    later = stable_prefix(chat(QUESTION, REPLY, QUESTION), KEY)
    assert first == later
    assert first.head == first.opening
    assert first.opening_chars == len(QUESTION["content"])
    assert not first.has_head


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"tools": TOOLS},
        {"cache_salt": "tenant"},
        {"messages": [{"role": "system", "content": "You answer at length."}, QUESTION]},
        {"messages": [SYSTEM, SYSTEM, QUESTION]},
        {"messages": [{"role": "developer", "content": SYSTEM["content"]}, QUESTION]},
    ],
)
def test_everything_that_changes_the_cached_prefix_changes_its_hash(changed: Any) -> None:
    body = chat(SYSTEM, QUESTION)
    assert stable_prefix({**body, **changed}, KEY).head != stable_prefix(body, KEY).head


def test_parts_cannot_be_moved_from_one_message_to_the_next() -> None:
    one = chat({"role": "system", "content": "ab"}, {"role": "system", "content": "c"}, QUESTION)
    other = chat({"role": "system", "content": "a"}, {"role": "system", "content": "bc"}, QUESTION)
    assert stable_prefix(one, KEY).head != stable_prefix(other, KEY).head


def test_content_in_parts_and_objects_is_hashed() -> None:
    parts = [{"type": "text", "text": "You answer briefly."}]
    as_dict = stable_prefix(chat({"role": "system", "content": parts}, QUESTION), KEY)
    message = SimpleNamespace(role="system", content=[SimpleNamespace(**parts[0])])
    assert stable_prefix(chat(message, QUESTION), KEY) == as_dict


def test_responses_requests_are_hashed() -> None:
    first = stable_prefix({"model": "m", "instructions": "Be brief.", "input": "Hi"}, KEY)
    items = [{"role": "user", "content": "Hi"}, {"type": "function_call", "name": "f"}]
    later = stable_prefix({"model": "m", "instructions": "Be brief.", "input": items}, KEY)
    assert first == later
    assert first.has_head


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m"},
        chat(),
        {"messages": iter([QUESTION])},
        {"input": "Hi", "previous_response_id": "r"},
        {"input": "Hi", "conversation": "c"},
    ],
)
def test_a_request_whose_prompt_is_elsewhere_has_no_prefix(body: Any) -> None:
    assert stable_prefix(body, KEY) == NO_PREFIX


def test_another_process_gets_the_same_hashes_with_the_same_key_and_others_without() -> None:
    body = chat(SYSTEM, QUESTION, tools=TOOLS)
    code = (
        "import json, sys; from otel_kvpolicy.advisors.prefix import *; body = json.load(sys.stdin)"
        "; print(json.dumps([stable_prefix(body, key_of(k)).opening for k in ('secret', None)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(body),
        capture_output=True,
        text=True,
        check=True,
    )
    with_key, without = json.loads(done.stdout)
    assert with_key == stable_prefix(body, KEY).opening
    assert without != stable_prefix(body, key_of(None)).opening


def test_the_key_changes_every_hash() -> None:
    other = key_of("other")
    assert stable_prefix(chat(SYSTEM), KEY).head != stable_prefix(chat(SYSTEM), other).head
    assert hash_of("id", KEY) != hash_of("id", other)

"""Boundaries of a prompt: prompts that start alike are recognized, others are not."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_kvpolicy.policy.adaptive.boundaries import NO_BOUNDARIES, Boundaries, TraceBoundaries
from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of as lazy_boundaries_of
from otel_kvpolicy.policy.signals import CallText
from otel_kvpolicy.requests import read_chat, read_responses

KEY = 7
PARTS = st.one_of(
    st.text(max_size=5),
    st.lists(
        st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)}), max_size=2
    ),
    st.none(),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": PARTS}
    ),
    max_size=30,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TALK = [
    message("system", "rules"),
    message("user", "hi"),
    message("assistant", "yes"),
    message("user", "and?"),
    message("assistant", "no"),
    message("user", "ok"),
]


def evaluated(chain: Boundaries) -> TraceBoundaries:
    """Return all boundaries of a prompt, from its start."""
    hashes = list(chain.backwards())[::-1]
    return TraceBoundaries(
        hashes, [chain.chars_before(index) for index in range(-len(hashes), 0)], chain.parent
    )


def boundaries_of(
    body: Mapping[str, Any], key: int, text: CallText | None = None
) -> TraceBoundaries:
    return evaluated(lazy_boundaries_of(body, key, text))


def chain(messages: Any, **more: Any) -> TraceBoundaries:
    return boundaries_of({"model": "m", "messages": messages, **more}, KEY)


def parent_of(chain: TraceBoundaries) -> int:
    """Return the boundary at which the previous call ended."""
    assert chain.parent is not None
    return chain.hashes[chain.parent]


def test_a_call_is_recognized_in_the_call_that_continues_it() -> None:
    first, second = chain(TALK[:2]), chain(TALK[:4])
    assert parent_of(second) == first.hashes[-1]
    assert second.parent is not None
    assert second.chars[second.parent] == first.chars[-1] == len("ruleshi")
    third = chain(TALK)
    assert parent_of(third) == second.hashes[-1]
    assert first.hashes[-1] in third.hashes
    assert first.parent is None


def test_calls_that_share_a_system_prompt_share_only_its_boundary() -> None:
    one, other = chain(TALK[:2]), chain([TALK[0], message("user", "something else")])
    assert one.hashes[0] == other.hashes[0]
    assert one.hashes[-1] != other.hashes[-1]


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": "tide"}}]},
        {"instructions": "be brief"},
        {"messages": [message("developer", "rules"), *TALK[1:4]]},
        {"messages": [message("system", "rules!"), *TALK[1:4]]},
    ],
)
def test_prompts_that_differ_before_the_end_share_no_boundary(changed: dict[str, Any]) -> None:
    plain = chain(TALK[:4])
    other = boundaries_of({"model": "m", "messages": TALK[:4]} | changed, KEY)
    assert not set(plain.hashes) & set(other.hashes)


def test_prompts_with_different_tool_calls_differ() -> None:
    def after(arguments: str) -> TraceBoundaries:
        call = {
            "id": arguments,
            "type": "function",
            "function": {"name": "tide", "arguments": arguments},
        }
        return chain(
            [
                TALK[1],
                message("assistant", None, tool_calls=[call]),
                message("tool", "7", tool_call_id=arguments),
            ]
        )

    assert after("a").hashes[-1] != after("b").hashes[-1]
    assert after("a").hashes[-1] == after("a").hashes[-1]


def test_a_generator_of_tool_calls_is_not_consumed() -> None:
    calls = iter([{"id": "a", "type": "function", "function": {"name": "tide", "arguments": "{}"}}])
    chain(
        [
            TALK[1],
            message("assistant", None, tool_calls=calls),
            message("tool", "7", tool_call_id="a"),
        ]
    )
    assert len(list(calls)) == 1


def test_another_key_gives_other_hashes() -> None:
    body = {"messages": TALK}
    assert not set(boundaries_of(body, 1).hashes) & set(boundaries_of(body, 2).hashes)


def test_content_in_parts_and_messages_as_objects_are_recognized() -> None:
    parts = [
        message("user", [{"type": "text", "text": "hi"}]),
        message("assistant", [{"type": "text", "text": "yes"}]),
        message("user", "and?"),
    ]
    assert chain(parts[:1]).hashes[-1] == parent_of(chain(parts))
    objects = [
        SimpleNamespace(role="user", content="hi"),
        SimpleNamespace(role="assistant", content="yes"),
        SimpleNamespace(role="user", content="?"),
    ]
    assert chain(objects[:1]).hashes[-1] == parent_of(chain(objects))


def test_a_responses_request_is_recognized_in_its_continuation() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "tide", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "7"}
    first = boundaries_of({"input": "hi", "instructions": "rules"}, KEY)
    start, more = [message("user", "hi")], [message("user", "hi"), call, result]
    second = boundaries_of({"input": more, "instructions": "rules"}, KEY)
    assert len(first.hashes) == 1
    assert (
        parent_of(second)
        == boundaries_of({"input": start, "instructions": "rules"}, KEY).hashes[-1]
    )


def test_a_later_picture_does_not_change_the_boundaries_before_it() -> None:
    picture = message(
        "user",
        [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    )
    for earlier in (TALK[:2], TALK[:4]):
        later = chain([*earlier, message("assistant", "yes"), picture])
        assert parent_of(later) == chain(earlier).hashes[-1]
    call = {"id": "1", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
    tools = [
        TALK[1],
        message("assistant", None, tool_calls=[call]),
        message("tool", "7", tool_call_id="1"),
    ]
    later = chain([*tools, message("assistant", "yes"), picture])
    assert parent_of(later) == chain(tools).hashes[-1]


def test_a_later_message_of_an_unusual_shape_does_not_change_the_boundaries_before_it() -> None:
    odd = message(
        "user",
        [
            {"type": "text", "text": ["no", "text"]},
            {"type": "image_url", "image_url": None},
            "text",
            7,
        ],
    )
    for first in (
        [{"type": "text", "text": "see"}],
        [{"type": "image_url", "image_url": "data:,"}],
    ):
        begun = [message("user", first)]
        assert (
            parent_of(chain([*begun, message("assistant", "yes"), odd])) == chain(begun).hashes[-1]
        )


def test_a_long_prompt_has_few_boundaries() -> None:
    talk = [message("user" if index % 2 == 0 else "assistant", f"{index}") for index in range(1000)]
    boundaries = chain([message("system", "rules"), *talk])
    assert len(boundaries.hashes) <= 6
    assert boundaries.chars[-1] == len("rules") + sum(len(f"{index}") for index in range(1000))


@settings(max_examples=300, deadline=None)
@given(messages=MESSAGES)
def test_any_conversation_has_ordered_and_repeatable_boundaries(
    messages: list[dict[str, Any]],
) -> None:
    boundaries = chain(messages)
    if not messages:
        assert boundaries == evaluated(NO_BOUNDARIES)
        return
    assert len(boundaries.hashes) == len(boundaries.chars) <= 6
    assert list(boundaries.chars) == sorted(boundaries.chars)
    assert chain(copy.deepcopy(messages)) == boundaries
    assert chain([*messages[:-1], message("user", "a new end")]).hashes[-1] != boundaries.hashes[-1]
    replies = [
        index
        for index, message in enumerate(messages)
        if index and message["role"] == "assistant" != messages[index - 1]["role"]
    ]
    if replies and not isinstance(messages[0]["content"], (list, type(None))):
        before = chain(messages[: replies[-1]])
        if all(isinstance(message["content"], str) for message in messages):
            assert parent_of(boundaries) == before.hashes[-1]


@settings(max_examples=300, deadline=None)
@given(
    body=st.dictionaries(
        st.sampled_from(["messages", "input", "tools", "instructions", "model"]), JSON, max_size=5
    )
)
def test_any_body_has_at_most_six_boundaries(body: dict[str, Any]) -> None:
    boundaries = boundaries_of(body, KEY)
    assert len(boundaries.hashes) == len(boundaries.chars) <= 6


def test_hashing_a_cyclic_message_terminates() -> None:
    loop: dict[str, Any] = {"role": "user"}
    loop["content"] = [loop]
    assert len(chain([loop]).hashes) == 1


def test_tools_and_instructions_count_before_the_first_message() -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "d" * 500,
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    body = {"messages": TALK[:2], "tools": tools}
    text = read_chat(body)
    assert boundaries_of(body, KEY, text).chars[-1] == text.tool_chars + sum(
        len(message["content"]) for message in TALK[:2]
    )
    asked = {"input": "hi", "instructions": "rules"}
    assert boundaries_of(asked, KEY, read_responses(asked)).chars == [len("ruleshi")]


@given(MESSAGES)
def test_passing_the_counts_does_not_change_the_boundaries(messages: list[dict[str, Any]]) -> None:
    body = {"model": "m", "messages": messages}
    counted, fresh = boundaries_of(body, KEY, read_chat(body)), boundaries_of(body, KEY)
    assert (counted.hashes, counted.parent) == (fresh.hashes, fresh.parent)


class Cycle(dict[str, Any]):
    """A mapping that contains itself 50 times, and raises if it is read too often."""

    reads = 0

    def __init__(self) -> None:
        super().__init__({str(index): self for index in range(50)})

    def items(self) -> Any:
        self.reads += 1
        if self.reads > 20_000:
            raise RecursionError
        return super().items()


@pytest.mark.parametrize("where", ["model", "tools", "tool_calls"])
def test_reading_a_body_that_contains_itself_is_bounded(where: str) -> None:
    cycle = Cycle()
    reply = message("assistant", "yes", **({"tool_calls": cycle} if where == "tool_calls" else {}))
    more = (
        {"model": cycle}
        if where == "model"
        else {"tools": [{"name": cycle}]}
        if where == "tools"
        else {}
    )
    assert len(chain([message("user", "hi"), reply, message("tool", "ok")], **more).hashes) == 2
    assert cycle.reads > 0


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_a_request_that_continues_a_stored_response_has_no_boundaries(
    field: str,
) -> None:
    body = {"model": "m", "input": "and then?"}
    assert len(boundaries_of(body, KEY).hashes) == 1
    assert boundaries_of({**body, field: "resp_1"}, KEY) == evaluated(NO_BOUNDARIES)


def test_prompts_with_different_cache_salts_share_no_boundary() -> None:
    one, other = chain(TALK, cache_salt="a"), chain(TALK, cache_salt="b")
    assert chain(TALK, cache_salt="a") == one
    assert not {*one.hashes} & {*other.hashes, *chain(TALK).hashes}

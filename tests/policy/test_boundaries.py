"""The boundaries of a prompt: what starts alike is recognised, what does not is not."""

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


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TALK = [
    said("system", "rules"),
    said("user", "hi"),
    said("assistant", "yes"),
    said("user", "and?"),
    said("assistant", "no"),
    said("user", "ok"),
]


def spelled(chain: Boundaries) -> TraceBoundaries:
    """All boundaries of a chain, from the start on."""
    hashes = list(chain.backwards())[::-1]
    return TraceBoundaries(
        hashes, [chain.chars_before(at) for at in range(-len(hashes), 0)], chain.parent
    )


def boundaries_of(
    body: Mapping[str, Any], key: int, text: CallText | None = None
) -> TraceBoundaries:
    return spelled(lazy_boundaries_of(body, key, text))


def chain(messages: Any, **more: Any) -> TraceBoundaries:
    return boundaries_of({"model": "m", "messages": messages, **more}, KEY)


def parent_of(chain: TraceBoundaries) -> int:
    """The boundary at which the call before ended."""
    assert chain.parent is not None
    return chain.hashes[chain.parent]


def test_a_call_is_found_again_in_the_call_that_continues_it() -> None:
    first, second = chain(TALK[:2]), chain(TALK[:4])
    assert parent_of(second) == first.hashes[-1]
    assert second.parent is not None
    assert second.chars[second.parent] == first.chars[-1] == len("ruleshi")
    third = chain(TALK)
    assert parent_of(third) == second.hashes[-1]
    assert first.hashes[-1] in third.hashes
    assert first.parent is None


def test_calls_that_share_a_system_prompt_share_its_boundary_alone() -> None:
    one, other = chain(TALK[:2]), chain([TALK[0], said("user", "something else")])
    assert one.hashes[0] == other.hashes[0]
    assert one.hashes[-1] != other.hashes[-1]


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": "tide"}}]},
        {"instructions": "be brief"},
        {"messages": [said("developer", "rules"), *TALK[1:4]]},
        {"messages": [said("system", "rules!"), *TALK[1:4]]},
    ],
)
def test_what_stands_before_tells_prompts_apart(changed: dict[str, Any]) -> None:
    plain = chain(TALK[:4])
    other = boundaries_of({"model": "m", "messages": TALK[:4]} | changed, KEY)
    assert not set(plain.hashes) & set(other.hashes)


def test_tool_calls_tell_prompts_apart() -> None:
    def after(arguments: str) -> TraceBoundaries:
        call = {
            "id": arguments,
            "type": "function",
            "function": {"name": "tide", "arguments": arguments},
        }
        return chain(
            [
                TALK[1],
                said("assistant", None, tool_calls=[call]),
                said("tool", "7", tool_call_id=arguments),
            ]
        )

    assert after("a").hashes[-1] != after("b").hashes[-1]
    assert after("a").hashes[-1] == after("a").hashes[-1]


def test_tool_calls_given_as_a_generator_are_left_to_the_client() -> None:
    calls = iter([{"id": "a", "type": "function", "function": {"name": "tide", "arguments": "{}"}}])
    chain([TALK[1], said("assistant", None, tool_calls=calls), said("tool", "7", tool_call_id="a")])
    assert len(list(calls)) == 1


def test_another_key_gives_other_hashes() -> None:
    body = {"messages": TALK}
    assert not set(boundaries_of(body, 1).hashes) & set(boundaries_of(body, 2).hashes)


def test_the_same_in_parts_or_as_objects_stays_the_same_to_itself() -> None:
    parts = [
        said("user", [{"type": "text", "text": "hi"}]),
        said("assistant", [{"type": "text", "text": "yes"}]),
        said("user", "and?"),
    ]
    assert chain(parts[:1]).hashes[-1] == parent_of(chain(parts))
    objects = [
        SimpleNamespace(role="user", content="hi"),
        SimpleNamespace(role="assistant", content="yes"),
        SimpleNamespace(role="user", content="?"),
    ]
    assert chain(objects[:1]).hashes[-1] == parent_of(chain(objects))


def test_responses_requests() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "tide", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "7"}
    first = boundaries_of({"input": "hi", "instructions": "rules"}, KEY)
    start, more = [said("user", "hi")], [said("user", "hi"), call, result]
    second = boundaries_of({"input": more, "instructions": "rules"}, KEY)
    assert len(first.hashes) == 1
    assert (
        parent_of(second)
        == boundaries_of({"input": start, "instructions": "rules"}, KEY).hashes[-1]
    )


def test_a_picture_or_an_item_later_does_not_hide_the_plain_beginning() -> None:
    picture = said(
        "user",
        [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    )
    for earlier in (TALK[:2], TALK[:4]):
        later = chain([*earlier, said("assistant", "yes"), picture])
        assert parent_of(later) == chain(earlier).hashes[-1]
    call = {"id": "1", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
    tools = [
        TALK[1],
        said("assistant", None, tool_calls=[call]),
        said("tool", "7", tool_call_id="1"),
    ]
    later = chain([*tools, said("assistant", "yes"), picture])
    assert parent_of(later) == chain(tools).hashes[-1]


def test_a_plain_message_in_parts_reads_as_the_parts_do_whatever_else_is_odd() -> None:
    odd = said(
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
        begun = [said("user", first)]
        assert parent_of(chain([*begun, said("assistant", "yes"), odd])) == chain(begun).hashes[-1]


def test_a_long_prompt_has_few_boundaries() -> None:
    talk = [said("user" if at % 2 == 0 else "assistant", f"{at}") for at in range(1000)]
    found = chain([said("system", "rules"), *talk])
    assert len(found.hashes) <= 6
    assert found.chars[-1] == len("rules") + sum(len(f"{at}") for at in range(1000))


@settings(max_examples=300, deadline=None)
@given(messages=MESSAGES)
def test_boundaries_of_any_conversation(messages: list[dict[str, Any]]) -> None:
    found = chain(messages)
    if not messages:
        assert found == spelled(NO_BOUNDARIES)
        return
    assert len(found.hashes) == len(found.chars) <= 6
    assert list(found.chars) == sorted(found.chars)
    assert chain(copy.deepcopy(messages)) == found
    assert chain([*messages[:-1], said("user", "a new end")]).hashes[-1] != found.hashes[-1]
    replies = [
        at
        for at, message in enumerate(messages)
        if at and message["role"] == "assistant" != messages[at - 1]["role"]
    ]
    if replies and not isinstance(messages[0]["content"], (list, type(None))):
        before = chain(messages[: replies[-1]])
        if all(isinstance(message["content"], str) for message in messages):
            assert parent_of(found) == before.hashes[-1]


@settings(max_examples=300, deadline=None)
@given(
    body=st.dictionaries(
        st.sampled_from(["messages", "input", "tools", "instructions", "model"]), JSON, max_size=5
    )
)
def test_no_body_fails_it(body: dict[str, Any]) -> None:
    found = boundaries_of(body, KEY)
    assert len(found.hashes) == len(found.chars) <= 6


def test_a_cyclic_body_ends() -> None:
    loop: dict[str, Any] = {"role": "user"}
    loop["content"] = [loop]
    assert len(chain([loop]).hashes) == 1


def test_tools_and_instructions_stand_before_the_first_message() -> None:
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
def test_what_was_counted_changes_no_boundary(messages: list[dict[str, Any]]) -> None:
    body = {"model": "m", "messages": messages}
    counted, fresh = boundaries_of(body, KEY, read_chat(body)), boundaries_of(body, KEY)
    assert (counted.hashes, counted.parent) == (fresh.hashes, fresh.parent)


class Cycle(dict[str, Any]):
    """Holds itself fifty times, and says so when it is looked into without end."""

    looks = 0

    def __init__(self) -> None:
        super().__init__({str(at): self for at in range(50)})

    def items(self) -> Any:
        self.looks += 1
        if self.looks > 20_000:
            raise RecursionError
        return super().items()


@pytest.mark.parametrize("where", ["model", "tools", "tool_calls"])
def test_a_body_that_holds_itself_is_looked_into_for_a_while_only(where: str) -> None:
    cycle = Cycle()
    said_so = said("assistant", "yes", **({"tool_calls": cycle} if where == "tool_calls" else {}))
    more = (
        {"model": cycle}
        if where == "model"
        else {"tools": [{"name": cycle}]}
        if where == "tools"
        else {}
    )
    assert len(chain([said("user", "hi"), said_so, said("tool", "ok")], **more).hashes) == 2
    assert cycle.looks > 0


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_a_prompt_that_the_server_holds_is_not_taken_for_what_the_body_says_of_it(
    field: str,
) -> None:
    body = {"model": "m", "input": "and then?"}
    assert len(boundaries_of(body, KEY).hashes) == 1
    assert boundaries_of({**body, field: "resp_1"}, KEY) == spelled(NO_BOUNDARIES)


def test_each_salt_has_a_cache_of_its_own() -> None:
    one, other = chain(TALK, cache_salt="a"), chain(TALK, cache_salt="b")
    assert chain(TALK, cache_salt="a") == one
    assert not {*one.hashes} & {*other.hashes, *chain(TALK).hashes}

"""The stand-in's prompts: rendering, tokens, and cache keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_kvpolicy.standin.prompt import Prompt, render, token_count


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_a_longer_prompt_starts_with_the_chunks_of_its_prefix(head: str, tail: str) -> None:
    short, long = Prompt.of(head), Prompt.of(head + tail)
    assert long.blocks[: len(short.blocks)] == short.blocks
    assert long.chunks[: len(short.chunks)] == short.chunks


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=5000))
def test_a_prompt_has_its_full_blocks_and_chunks_only(text: str) -> None:
    prompt = Prompt.of(text)
    assert prompt.tokens == token_count(text)
    assert (len(prompt.blocks), len(prompt.chunks)) == (prompt.tokens // 16, prompt.tokens // 256)


def test_prompts_with_different_salts_share_no_chunk() -> None:
    text = "x" * 2048
    assert not set(Prompt.of(text).chunks) & set(Prompt.of(text, "tenant").chunks)


def test_a_change_at_the_start_changes_every_block() -> None:
    one, other = Prompt.of("a" + "x" * 4096), Prompt.of("b" + "x" * 4096)
    assert not set(one.blocks) & set(other.blocks)


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        ([{"role": "user", "content": "hello"}], "<|user|>hello"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
                }
            ],
            "<|user|>onetwo",
        ),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}],
            '[{"function":{"name":"f"}}]',
        ),
        ([{"role": "tool", "content": {"odd": 1}}], '{"odd":1}'),
        (["no message"], "<|user|>no message"),
    ],
)
def test_all_text_of_a_message_is_rendered(messages: list[Any], part: str) -> None:
    assert part in render(messages)


def test_tools_are_rendered_first() -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert render([{"role": "system", "content": "be"}], tools).startswith(
        '<|tools|>[{"type":"function"'
    )


def test_an_image_has_a_fixed_length_and_its_own_hash() -> None:
    def with_image(url: str) -> str:
        return render(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        )

    small, large = with_image("data:a"), with_image("data:" + "b" * 100_000)
    assert len(small) == len(large)
    assert small != large

"""What is counted: text yes; pictures, sound, files and bytes no; and nothing that is asked to count may hang or raise."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from otel_kvpolicy.policy.signals import content_chars, json_chars

BASE64 = "A" * 100_000


@pytest.mark.parametrize(
    ("content", "chars"),
    [
        ("hello", 5),
        ([{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}}], 5),
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


def test_returned_data_counts_about_as_its_json() -> None:
    data = {"rows": [{"name": "a" * 50, "price": 12} for _ in range(20)]}
    assert content_chars(data) == pytest.approx(len(json.dumps(data)), rel=0.1)


@pytest.mark.parametrize("count", [content_chars, json_chars])
def test_cyclic_and_bottomless_values_end(count: Any) -> None:
    cyclic: list[Any] = ["abc"]
    cyclic += [cyclic, cyclic]
    assert count(cyclic) >= 0
    deep: Any = "abc"
    for _ in range(5000):
        deep = [deep]
    assert count(deep) >= 3

"""The output for people, compared with files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..golden import assert_golden
from .asking import ask

FOLDER = Path(__file__).with_name("golden")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("skipped", [TRACE, "--span", "00f067aa0ba902b0"]),
        ("stored", [TRACE, "--span", "00f067aa0ba902b1"]),
        ("listing", ["--last", "10"]),
    ],
)
def test_the_output_for_people_is_the_one_that_was_reviewed(
    name: str, arguments: list[str]
) -> None:
    answer = ask(*arguments, "--from", FOLDER / "decisions.jsonl", columns=100)
    assert (answer.code, answer.err) == (0, "")
    assert_golden(answer.out, FOLDER / f"{name}.txt")

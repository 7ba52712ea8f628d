"""The output for people, compared with files. ``UPDATE_GOLDEN=1 pytest`` rewrites the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
def test_the_output_is_as_recorded(name: str, arguments: list[str]) -> None:
    answer = ask(*arguments, "--from", FOLDER / "decisions.jsonl", columns=100)
    assert (answer.code, answer.err) == (0, "")
    path = FOLDER / f"{name}.txt"
    out = "".join(f"{line.rstrip()}\n" for line in answer.out.splitlines())
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(out)
    assert out == path.read_text()

"""Under the plugin ``tests.fuzz.deep`` a property test runs 20 times as many examples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROPERTY = """
from hypothesis import given, settings, strategies as st
seen = []
@settings(max_examples=10, database=None)
@given(st.integers())
def test_it(number):
    seen.append(number)
def test_after():
    assert len(seen) == {count}, len(seen)
"""


def run(folder: Path, count: int, *options: str) -> int:
    (folder / "test_property.py").write_text(PROPERTY.format(count=count))
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
        str(folder),
    ]
    environment = {**os.environ, "PYTHONPATH": str(root), "KVPOLICY_DEEP_TIMES": "20"}
    return subprocess.run(
        command, check=False, capture_output=True, timeout=60, cwd=folder, env=environment
    ).returncode


@pytest.mark.slow
def test_the_plugin_multiplies_the_examples(tmp_path: Path) -> None:
    assert run(tmp_path, 10) == 0
    assert run(tmp_path, 200, "-p", "tests.fuzz.deep") == 0

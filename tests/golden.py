"""Compare what a command prints with a file that a person has read.

``UPDATE_GOLDEN=1 pytest tests/demo tests/doctor`` rewrites the files; review the diff before you
commit it.
"""

from __future__ import annotations

import os
from pathlib import Path


def assert_golden(printed: str, path: Path) -> None:
    """Assert that ``printed`` is the content of ``path``, ignoring spaces at the ends of lines."""
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")

"""Run the programs that tests need."""

from __future__ import annotations

import subprocess
from pathlib import Path


def run(*command: str | Path) -> str:
    """Run a program to its end and return its output, which is also the message of a failure."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr

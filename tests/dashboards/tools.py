"""Run programs that tests need, or say that they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def tool(name: str, *, package: str) -> str:
    """Return the path of a program.

    If it is missing, skip the test. In CI, which installs the package, fail it.
    """
    path = shutil.which(name)
    if path:
        return path
    message = f"{name} is not installed (Debian: apt-get install {package})"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def run(*command: str | Path) -> str:
    """Run a program to its end and return its output, which is also the message of a failure."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr

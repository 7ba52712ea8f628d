"""Programs that the tests run, and what is said when they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def tool(name: str, *, package: str) -> str:
    """Path of a program; skips the test where it is missing, fails it in CI, which installs the package."""
    found = shutil.which(name)
    if found:
        return found
    message = f"{name} is not installed (Debian: apt-get install {package})"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def run(*command: str | Path) -> str:
    """Runs a program to its end; its output is the failure message."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr

"""What a test needs from the machine. If it is missing, the test is skipped, but fails under CI."""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any, NoReturn

import pytest

SKIPPED = "not available: "
"""Start of the reason of every skip made here; the terminal summary lists these."""


def missing(what: str, fix: str, *, optional: bool = False) -> NoReturn:
    """Skip the current test, or fail it if CI is set, because something is missing.

    Args:
        what: what is missing, such as "redis-server".
        fix: how to get it, such as "apt-get install redis-server".
        optional: skip under CI too, because CI is not expected to have it.
    """
    message = f"{SKIPPED}{what} ({fix})"
    if os.environ.get("CI") and not optional:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def program(name: str, *, package: str) -> str:
    """Return the path of a program that the Debian package provides."""
    path = shutil.which(name)
    if path is None:
        missing(name, f"apt-get install {package}")
    return path


def module(name: str, *, install: str, optional: bool = False) -> Any:
    """Import and return a module that pip can install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(name, f"pip install '{install}'", optional=optional)

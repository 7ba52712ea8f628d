"""A pytest plugin that runs each property test with 20 times its own examples (``make deep``)."""

from __future__ import annotations

import os

import pytest
from hypothesis import is_hypothesis_test, settings

TIMES = int(os.environ.get("KVPOLICY_DEEP_TIMES", "20"))
_SETTINGS = "_hypothesis_internal_use_settings"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Multiply the number of examples of each property test."""
    for test in {
        item.obj
        for item in items
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)
    }:
        own: settings = getattr(test, _SETTINGS)
        setattr(
            test, _SETTINGS, settings(own, max_examples=own.max_examples * TIMES, deadline=None)
        )

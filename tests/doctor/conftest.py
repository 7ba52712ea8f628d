"""Keep servers, keys and exporters of the outer environment away from the tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OTEL_", "OPENAI_", "LMCACHE_"))]:
        monkeypatch.delenv(name)

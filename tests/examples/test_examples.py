"""The examples, run as their docstrings say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
INSTRUMENT = [
    str(Path(sys.executable).with_name("opentelemetry-instrument")),
    *("--traces_exporter", "console", "--metrics_exporter", "console", "--logs_exporter", "none"),
]


def run(name: str, *before: str) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "KV_CACHE_"))
    }
    done = subprocess.run(
        [*before, sys.executable, EXAMPLES / name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plain_client_gets_decisions_and_metrics_under_opentelemetry_instrument() -> None:
    shown = run("plain_openai.py", *INSTRUMENT)
    assert '"kvpolicy.decision": "skip"' in shown
    assert '"kvpolicy.decision": "store"' in shown
    assert '"name": "kvpolicy.decisions"' in shown
    assert '"name": "kvpolicy.cached.tokens"' in shown


def test_later_streams_read_the_article_from_a_cache() -> None:
    first, *later = run("async_streaming.py", *INSTRUMENT).split(
        " prompt tokens came from a cache)\n"
    )[:-1]
    assert first.endswith("(0")
    assert len(later) == 3
    assert all(int(line.rpartition("(")[2]) > 1000 for line in later)


def test_observe_mode_decides_and_sends_nothing() -> None:
    first, last = run("observe_mode.py").splitlines()
    assert first == "would skip because of one_off_short_prompt"
    assert last.startswith("observed: ")


def test_the_agent_example_prints_decisions_in_a_tree_of_spans() -> None:
    needs.module("pydantic_ai", install="pydantic-ai-slim[openai]")
    shown = run(
        "pydantic_ai_agent.py",
        INSTRUMENT[0],
        "--traces_exporter",
        "none",
        "--metrics_exporter",
        "none",
        "--logs_exporter",
        "none",
    )
    runs = [part.splitlines() for part in shown.split("invoke_agent librarian\n")[1:]]
    assert [run[:3] for run in runs] == [
        ["   · agent.calls: 2", "   · agent.skipped: 1", "   · agent.stored: 1"],
        ["   · agent.calls: 2", "   · agent.skipped: 0", "   · agent.stored: 2"],
    ]
    assert "      invoke_agent summarizer" in runs[1]
    assert (
        shown.count("chat stand-in") == shown.count("· explanation: ") == shown.count("POST") == 5
    )

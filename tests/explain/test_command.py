"""``otel-kvpolicy explain``: from the decision log of a really instrumented process, from a request, and where there is nothing to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from openai import OpenAI

import otel_kvpolicy
from otel_kvpolicy.explain.command import command
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

ONE_OFF: Any = [{"role": "user", "content": "hi"}]
LONG: Any = [{"role": "system", "content": "rule " * 1000}, {"role": "user", "content": "hi"}]


def run(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(command, list(arguments), input=stdin)
    assert not isinstance(done.exception, Exception), done.output
    return done.exit_code, done.output


@pytest.fixture
def log(server: StandIn, instrumented: Telemetry, tmp_path: Path) -> Path:
    """The decision log of two calls, one skipped and one stored."""
    path = tmp_path / "decisions.jsonl"
    otel_kvpolicy.configure(decision_log=str(path))
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        for messages in (ONE_OFF, LONG):
            client.chat.completions.create(model="stand-in", messages=messages, max_tokens=2)
    return path


def test_from_a_trace_to_the_reason(log: Path, instrumented: Telemetry) -> None:
    skipped, stored = instrumented.decided
    code, said = run(f"{skipped.context.trace_id:032x}", "--from", str(log))
    assert code == 0
    assert "SKIPPED" in said
    assert "0 of 1024 tokens: 1024 short" in said
    code, said = run(f"{stored.context.trace_id:032x}", "--from", str(log))
    assert code == 0
    assert "STORED" in said
    assert "long_shared_prefix" in said


def test_filters_and_nothing_found(log: Path) -> None:
    code, said = run("--last", "20", "--skipped", "--from", str(log), "--json")
    assert code == 0
    assert said.count('"one_off_short_prompt"') >= 1
    assert "long_shared_prefix" not in said
    assert run("0" * 31 + "1", "--from", str(log))[0] == 3


def test_a_request_offline_and_another_setting() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "system", "content": "rule " * 500}, *ONE_OFF]})
    code, said = run("--request", "-", stdin=body)
    assert (code, "SKIPPED" in said) == (0, True)
    code, said = run("--request", "-", "--set", "KV_CACHE_MIN_PREFIX_TOKENS=512", stdin=body)
    assert (code, "STORED" in said) == (0, True)


@pytest.mark.parametrize("given", [("--from", "http://127.0.0.1:9"), ("--from", "/no/such/file")])
def test_a_source_that_cannot_be_read_is_one_line(given: tuple[str, ...]) -> None:
    code, said = run("--last", "5", *given)
    assert code in {1, 2}
    assert "Traceback" not in said


def test_wrong_usage() -> None:
    assert run("not an id", "--from", "x")[0] == 2

"""``otel-kvpolicy warm``: a fresh server stores known prefixes before callers ask for them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from openai import OpenAI

from otel_kvpolicy.cli import main
from otel_kvpolicy.standin import StandIn

SYSTEMS = [
    {"role": "system", "content": f"agent {number} " + "works " * 900} for number in range(8)
]


def warm(server: StandIn, path: Path, *options: str) -> Result:
    command = ["warm", str(path), "--base-url", server.base_url, "--per-second", "1000", *options]
    cli: Any = main  # its type depends on whether click is installed
    return CliRunner().invoke(cli, command)


def prefixes(folder: Path, *bodies: Any) -> Path:
    path = folder / "prefixes.jsonl"
    path.write_text("".join(f"{json.dumps(body)}\n" for body in bodies))
    return path


def first_call_share(server: StandIn) -> float:
    """Return the cached share of the prompts of a first call to each agent."""
    cached = total = 0
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        for system in SYSTEMS:
            messages: Any = [system, {"role": "user", "content": "What do you do?"}]
            answer = client.chat.completions.create(
                model="stand-in", messages=messages, max_tokens=1
            )
            assert answer.usage and answer.usage.prompt_tokens_details
            cached += answer.usage.prompt_tokens_details.cached_tokens or 0
            total += answer.usage.prompt_tokens
    return cached / total


def test_first_calls_find_their_prefix_after_warming(tmp_path: Path) -> None:
    path = prefixes(tmp_path, *({"model": "stand-in", "messages": [each]} for each in SYSTEMS))
    with StandIn() as cold:
        assert first_call_share(cold) < 0.05
    with StandIn() as server:
        done = warm(server, path)
        assert done.exit_code == 0, done.output
        assert all(
            request.body["kv_transfer_params"] == {"lmcache.skip_save": False}
            for request in server.requests
        )
        assert server.chunks_stored > 0
        server.reset_prefix_cache()  # so that the hits come from LMCache
        assert first_call_share(server) > 0.8


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    bodies = [{"messages": [each]} for each in SYSTEMS]
    ledger = tmp_path / "done"
    options = ("--model", "stand-in", "--done", str(ledger))
    with StandIn() as server:
        assert warm(server, prefixes(tmp_path, *bodies[:3]), *options).exit_code == 0
        assert warm(server, prefixes(tmp_path, *bodies), *options).exit_code == 0
        asked = [request.body["messages"][0]["content"] for request in server.requests]
    assert asked == [each["content"] for each in SYSTEMS]
    assert "agent" not in ledger.read_text()


def test_the_rate_is_limited(tmp_path: Path) -> None:
    path = prefixes(tmp_path, *({"messages": [each]} for each in SYSTEMS[:3]))
    started = time.monotonic()
    with StandIn() as server:
        assert warm(server, path, "--model", "stand-in", "--per-second", "5").exit_code == 0
    assert time.monotonic() - started >= 0.4


def test_unusable_input_and_servers_end_with_one_line(tmp_path: Path) -> None:
    with StandIn() as server:
        for body, options in (({"input": "hi"}, ()), ({"messages": []}, ()), ([], ())):
            done = warm(server, prefixes(tmp_path, body), *options)
            assert (done.exit_code, done.output.count("\n")) == (1, 1)
        assert not server.requests
        path = prefixes(tmp_path, {"model": "missing", "messages": [SYSTEMS[0]]})
        assert warm(server, path).exit_code == 1
    assert warm(server, path).exit_code == 1

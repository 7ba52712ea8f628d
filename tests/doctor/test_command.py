"""The doctor against the stand-in as a multi-process LMCache: it says which key is honoured, and ends with the code that says so."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from otel_kvpolicy.doctor.command import command
from otel_kvpolicy.standin import StandIn


def examine(server: StandIn, *options: str) -> tuple[int, dict[str, Any]]:
    lmcache = ["--lmcache-url", server.lmcache_url] if server.lmcache_url else []
    done = CliRunner().invoke(command, ["--base-url", server.base_url, *lmcache, "--json", *options])
    assert not isinstance(done.exception, Exception), done.output
    return done.exit_code, json.loads(done.stdout)


def test_the_multi_process_server_honours_the_cap_alone() -> None:
    with StandIn(mode="mp") as server:
        code, found = examine(server)
    assert code == 0
    assert found["mode"] == "mp"
    assert {key: finding["outcome"] for key, finding in found["findings"].items()} == {
        "skip_save": "ignored",
        "max_offload_tokens": "honoured",
        "both": "honoured",
    }
    assert found["vllm"]["reports_cached_tokens"] is True


def test_what_cannot_be_reached_is_one_line_and_a_code() -> None:
    done = CliRunner().invoke(command, ["--base-url", "http://127.0.0.1:9/v1"])
    assert not isinstance(done.exception, Exception)
    assert done.exit_code == 3
    assert "127.0.0.1:9" in done.output
    assert "Traceback" not in done.output

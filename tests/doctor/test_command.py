"""The doctor's verdicts on stand-ins in each mode and with each fault: which key is honoured, how that is known, what to do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from otel_kvpolicy.standin import StandIn

from .asking import NOWHERE, found_at, found_in, notes, outcomes, run, urls, ways

PATIENCE_SECONDS = 60
HONOURS_CAP = ("ignored", "honoured", "honoured")
HONOURS_SKIP = ("honoured", "ignored", "honoured")
IGNORES_ALL = ("ignored", "ignored", "ignored")


def test_the_multi_process_server_honours_the_cap_alone() -> None:
    with StandIn(mode="mp") as server:
        found = found_in(server)
    assert outcomes(found) == HONOURS_CAP
    assert (found["outcome"], found["exit_code"], found["mode"], found["connector"]) == (
        "honoured",
        0,
        "mp",
        True,
    )
    assert ways(found) == {"told", "counted"}
    assert found["vllm"]["reports_cached_tokens"] is True
    assert (
        found["lmcache"]["version"],
        found["lmcache"]["chunk_size"],
        found["lmcache"]["l2"],
    ) == ("0.5.6", 256, ["FSL2Adapter"])
    assert (found["metrics_release"], found["missing_metrics"]) == ("0.5.6 or later", [])
    assert "Nothing: it works" in notes(found)


def test_the_multi_process_server_is_known_without_its_address() -> None:
    with StandIn(mode="mp") as server:
        found = found_at("--base-url", server.base_url)
    assert outcomes(found) == HONOURS_CAP
    assert (found["mode"], found["lmcache"], ways(found)) == ("mp", None, {"told"})


def test_the_in_process_connector_honours_skip_save_alone() -> None:
    with StandIn(mode="in_process") as server:
        found = found_in(server)
    assert outcomes(found) == HONOURS_SKIP
    assert (found["outcome"], found["exit_code"], found["mode"]) == ("honoured", 0, "in_process")
    assert ways(found) == {"salted"}


def test_the_in_process_connector_is_judged_by_its_counters_where_usage_tells_nothing() -> None:
    with StandIn(mode="in_process", prompt_tokens_details=False) as server:
        found = found_in(server, "--refresh", "0")
    assert outcomes(found) == HONOURS_SKIP
    assert ways(found) == {"counted"}
    assert "--enable-prompt-tokens-details" in notes(found)


@pytest.mark.parametrize("mode", ["mp", "in_process"])
def test_an_lmcache_that_reads_no_hint_ignores_every_one(mode: str) -> None:
    with StandIn(mode=mode, honour_hints=False) as server:
        found = found_in(server)
    assert outcomes(found) == IGNORES_ALL
    assert (found["outcome"], found["exit_code"]) == ("ignored", 1)
    assert ("0.5.6 or later" if mode == "mp" else "from 0.3.6 on") in notes(found)


def test_the_copy_of_the_connector_inside_vllm_is_told_from_lmcaches_own() -> None:
    with StandIn(mode="mp", vendored_connector=True) as server:
        found = found_in(server)
    assert outcomes(found) == IGNORES_ALL
    assert ways(found) == {"counted"}
    assert "LMCACHE_USE_UPSTREAM_MP" in notes(found)


def test_a_vllm_without_lmcache_gets_no_use_of_the_hint_and_a_warning_for_each() -> None:
    with StandIn(mode="none") as server:
        found = found_in(server)
        sent = sum("kv_transfer_params" in request.body for request in server.requests)
    assert outcomes(found) == ("no_connector",) * 3
    assert (found["exit_code"], found["connector"]) == (1, False)
    assert "each hint costs a warning line" in notes(found)
    assert sent <= 12  # each is a warning: what one round cannot change is not asked again


def test_no_further_round_is_spent_on_what_is_certain() -> None:
    with StandIn(mode="none") as server:
        once = len(found_in(server)["trials"])
        assert len(found_in(server, "--rounds", "3")["trials"]) == once


@pytest.mark.parametrize("style", ["openai", "azure", "mistral", "nim", "gemini", "vllm_2024"])
def test_a_strict_server_refuses_the_hint(style: str) -> None:
    with StandIn(strict=style) as server:
        found = found_in(server)
    assert outcomes(found) == ("refused",) * 3
    assert found["exit_code"] == 1
    assert "kv_transfer_params" in found["findings"]["both"]["evidence"][0]["text"]
    assert "KV_CACHE_TARGETS" in notes(found)


@pytest.mark.parametrize(("mode", "expected"), [("mp", HONOURS_CAP), ("in_process", HONOURS_SKIP)])
def test_without_metrics_the_caches_themselves_tell(mode: str, expected: tuple[str, ...]) -> None:
    with StandIn(mode=mode, serve_metrics=False) as server:
        found = found_in(server)
    assert outcomes(found) == expected
    assert found["exit_code"] == 0
    assert found["vllm"]["metrics"] is False
    assert "vLLM serves no /metrics" in notes(found)
    assert ("LMCache serves no /metrics" in notes(found)) == (mode == "mp")


@pytest.mark.parametrize("mode", ["in_process", "none"])
def test_where_nothing_tells_it_is_inconclusive(mode: str) -> None:
    with StandIn(mode=mode, serve_metrics=False, prompt_tokens_details=False) as server:
        found = found_in(server)
    assert outcomes(found) == ("inconclusive",) * 3
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    assert "Not proven either way" in notes(found)


def test_where_nothing_is_ever_stored_skipping_cannot_be_told_from_it() -> None:
    with StandIn(l1_bytes=0, l2_bytes=0) as server:
        found = found_in(server)
    assert outcomes(found) == ("inconclusive",) * 3
    assert found["exit_code"] == 3
    assert "Nothing was stored even when asked to" in notes(found)


@pytest.mark.parametrize(
    ("mode", "keys", "outcome", "code"),
    [
        ("mp", "skip_save", "ignored", 1),
        ("mp", "max_offload_tokens", "honoured", 0),
        ("in_process", "max_offload_tokens", "ignored", 1),
        ("in_process", "skip_save", "honoured", 0),
    ],
)
def test_the_verdict_is_on_the_keys_that_are_sent(
    mode: str, keys: str, outcome: str, code: int
) -> None:
    with StandIn(mode=mode) as server:
        found = found_in(server, KV_CACHE_HINT_KEYS=keys)
    assert (found["hint_keys"], found["outcome"], found["exit_code"]) == (keys, outcome, code)
    assert ("set KV_CACHE_HINT_KEYS=both" in notes(found)) == (code == 1)


def test_a_slow_server_is_waited_for() -> None:
    with StandIn(latency=0.03) as server:
        found = found_in(server)
    assert (outcomes(found), found["exit_code"]) == (HONOURS_CAP, 0)


def test_a_server_that_is_too_slow_is_one_line() -> None:
    with StandIn(latency=1.5) as server:
        found = found_in(server, "--timeout", "0.7")
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    assert (
        found["trouble"]
        == f"{server.url}/v1/chat/completions did not answer within 0.7 s (--timeout)"
    )
    assert found["vllm"]["version"] == "0.32.0"


def test_a_server_that_never_answers_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        found = found_at(
            "--base-url", f"http://127.0.0.1:{mute.getsockname()[1]}/v1", "--timeout", "0.2"
        )
    assert found["exit_code"] == 3
    assert "did not answer within 0.2 s" in found["trouble"]


@pytest.mark.parametrize("options", [(), ("--api-key", "wrong")])
def test_a_key_that_is_asked_for_is_told(options: tuple[str, ...]) -> None:
    with StandIn(api_key="right") as server:
        found = found_in(server, *options)
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    asked = "another API key" if options else "an API key"
    assert (
        found["trouble"]
        == f"{server.url} answers 401 and asks for {asked}: give --api-key or set OPENAI_API_KEY"
    )


@pytest.mark.parametrize(
    ("options", "environment"), [(("--api-key", "right"), {}), ((), {"OPENAI_API_KEY": "right"})]
)
def test_the_key_goes_to_vllm_and_into_no_output(
    options: tuple[str, ...], environment: dict[str, str]
) -> None:
    with StandIn(api_key="right") as server:
        done = run(*urls(server), "--rounds", "1", "--settle", "0.02", *options, **environment)
    assert done.exit_code == 0
    assert "right" not in done.output


def test_the_addresses_are_taken_from_the_environment_too() -> None:
    with StandIn() as server:
        assert server.lmcache_url is not None
        found = found_at(OPENAI_BASE_URL=server.base_url, LMCACHE_URL=server.lmcache_url)
    assert (found["exit_code"], ways(found)) == (0, {"told", "counted"})


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_fails_a_call_is_one_line(status: int) -> None:
    with StandIn(fail_first=1, fail_status=status) as server:
        found = found_in(server)
    assert found["exit_code"] == 3
    assert f"answered {status}" in found["trouble"]


def test_a_prompt_that_no_chunk_fits_in_is_told() -> None:
    with StandIn(max_model_len=300) as server:
        found = found_in(server)
    assert found["exit_code"] == 3
    assert (
        found["trouble"]
        == "the longest prompt this model takes (300 tokens) does not fill a chunk of 256 tokens"
    )


def test_a_short_context_takes_shorter_prompts() -> None:
    with StandIn(max_model_len=500) as server:
        found = found_in(server)
    assert outcomes(found) == HONOURS_CAP
    assert {trial["chunks"] for trial in found["trials"]} == {1}


def test_the_model_can_be_chosen() -> None:
    with StandIn(models=("one", "two")) as server:
        first, second, unknown = (
            found_in(server),
            found_in(server, "--model", "two"),
            found_in(server, "--model", "three"),
        )
    assert (first["vllm"]["model"], second["vllm"]["model"]) == ("one", "two")
    assert second["exit_code"] == 0
    assert (unknown["exit_code"], unknown["trouble"]) == (
        3,
        f"{server.url} serves no model 'three'; there are one, two",
    )


def test_what_cannot_be_reached_is_one_line() -> None:
    found = found_at("--base-url", NOWHERE)
    assert (found["outcome"], found["exit_code"], found["vllm"]) == ("inconclusive", 3, None)
    assert found["trouble"].startswith("cannot reach http://127.0.0.1:9: ")


def test_a_password_in_the_address_is_not_shown() -> None:
    done = run("--base-url", "http://user:secret@127.0.0.1:9/v1")
    assert done.exit_code == 3
    assert "http://127.0.0.1:9" in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--base-url", "gb10:8000/v1"),
        ("--base-url", "ftp://gb10/v1"),
        ("--base-url", "http:///v1"),
        ("--base-url", "http://gb10:x/v1"),
        ("--base-url", "http://[::1/v1"),
        ("--base-url", "http://gb10:99999/v1"),
        ("--base-url", NOWHERE, "--lmcache-url", "gb10"),
        ("--base-url", NOWHERE, "--rounds", "0"),
        ("--base-url", NOWHERE, "--settle", "-1"),
        ("--base-url", NOWHERE, "--timeout", "0"),
        ("--base-url", NOWHERE, "--chunk-tokens", "0"),
        ("--base-url", NOWHERE, "--nonsense"),
    ],
)
def test_wrong_usage_ends_with_two(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert "Usage:" in done.stderr


def test_a_process_of_its_own_ends_with_the_code_and_prints_no_trace(tmp_path: Any) -> None:
    with StandIn(mode="none") as server:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "otel_kvpolicy.cli",
                "doctor",
                *urls(server),
                "--rounds",
                "1",
                "--settle",
                "0.02",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "KV_CACHE_MIN_PREFIX_TOKENS": "many", "COLUMNS": "120"},
        )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "KV_CACHE_MIN_PREFIX_TOKENS: cannot read 'many'" in done.stdout
    assert "verdict: no effect (exit code 1)" in done.stdout


def test_an_interruption_is_no_verdict() -> None:
    with StandIn(latency=PATIENCE_SECONDS) as server:
        arguments = [sys.executable, "-m", "otel_kvpolicy.cli", "doctor", *urls(server)]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as doctor:
            try:
                end = time.monotonic() + PATIENCE_SECONDS
                while not server.requests and time.monotonic() < end:
                    threading.Event().wait(0.05)
                doctor.send_signal(signal.SIGINT)
                out, err = doctor.communicate(timeout=PATIENCE_SECONDS)
            finally:
                doctor.kill()
    assert server.requests
    assert (doctor.returncode, out) == (130, "")
    assert "Traceback" not in err

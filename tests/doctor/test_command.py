"""The doctor on stand-ins in every mode: outcome, evidence, advice and exit code."""

from __future__ import annotations

import json
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

from .asking import NOWHERE, codes, found_at, found_in, outcomes, run, urls, values, ways

PATIENCE_SECONDS = 60
HONOURS_CAP = ("ignored", "honoured", "honoured")
HONOURS_SKIP = ("honoured", "ignored", "honoured")
IGNORES_ALL = ("ignored", "ignored", "ignored")


def test_the_multi_process_server_honours_only_the_cap() -> None:
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
    assert codes(found) == ["hint_works"]
    assert values(found, "hint_works") == {
        "hint_keys": "both",
        "working_keys": ["max_offload_tokens"],
    }


def test_the_multi_process_server_is_recognized_without_its_address() -> None:
    with StandIn(mode="mp") as server:
        found = found_at("--base-url", server.base_url)
    assert outcomes(found) == HONOURS_CAP
    assert (found["mode"], found["lmcache"], ways(found)) == ("mp", None, {"told"})


def test_the_in_process_connector_honours_only_skip_save() -> None:
    with StandIn(mode="in_process") as server:
        found = found_in(server)
    assert outcomes(found) == HONOURS_SKIP
    assert (found["outcome"], found["exit_code"], found["mode"]) == ("honoured", 0, "in_process")
    assert ways(found) == {"salted"}


def test_counters_decide_on_the_in_process_connector_if_usage_has_no_cached_tokens() -> None:
    with StandIn(mode="in_process", prompt_tokens_details=False) as server:
        found = found_in(server, "--refresh", "0")
    assert outcomes(found) == HONOURS_SKIP
    assert ways(found) == {"counted"}
    assert "cached_tokens_not_reported" in codes(found)


@pytest.mark.parametrize("mode", ["mp", "in_process"])
def test_an_lmcache_that_reads_no_hint_ignores_all(mode: str) -> None:
    with StandIn(mode=mode, honour_hints=False) as server:
        found = found_in(server)
    assert outcomes(found) == IGNORES_ALL
    assert (found["outcome"], found["exit_code"]) == ("ignored", 1)
    assert codes(found)[0] == ("still_stores" if mode == "mp" else "upgrade_in_process")


def test_vllms_own_copy_of_the_connector_is_recognized() -> None:
    with StandIn(mode="mp", vendored_connector=True) as server:
        found = found_in(server)
    assert outcomes(found) == IGNORES_ALL
    assert ways(found) == {"counted"}
    assert codes(found)[0] == "vendored_connector"


def test_hints_have_no_effect_on_a_vllm_without_lmcache_and_few_are_sent() -> None:
    with StandIn(mode="none") as server:
        found = found_in(server)
        sent = sum("kv_transfer_params" in request.body for request in server.requests)
    assert outcomes(found) == ("no_connector",) * 3
    assert (found["exit_code"], found["connector"]) == (1, False)
    assert codes(found)[0] == "no_connector"
    assert sent <= 12  # vLLM logs a warning for each, so a final outcome ends the rounds


def test_a_final_outcome_ends_the_rounds() -> None:
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
    assert codes(found)[0] == "hint_refused"


@pytest.mark.parametrize(("mode", "expected"), [("mp", HONOURS_CAP), ("in_process", HONOURS_SKIP)])
def test_without_metrics_the_outcome_is_known_from_the_answers(
    mode: str, expected: tuple[str, ...]
) -> None:
    with StandIn(mode=mode, serve_metrics=False) as server:
        found = found_in(server)
    assert outcomes(found) == expected
    assert found["exit_code"] == 0
    assert found["vllm"]["metrics"] is False
    assert "no_vllm_metrics" in codes(found)
    assert ("no_lmcache_metrics" in codes(found)) == (mode == "mp")


@pytest.mark.parametrize("mode", ["in_process", "none"])
def test_without_metrics_and_cached_tokens_the_outcome_is_inconclusive(mode: str) -> None:
    with StandIn(mode=mode, serve_metrics=False, prompt_tokens_details=False) as server:
        found = found_in(server)
    assert outcomes(found) == ("inconclusive",) * 3
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    assert codes(found)[0] == "not_proven"


def test_a_server_that_stores_nothing_at_all_is_inconclusive() -> None:
    with StandIn(l1_bytes=0, l2_bytes=0) as server:
        found = found_in(server)
    assert outcomes(found) == ("inconclusive",) * 3
    assert found["exit_code"] == 3
    assert codes(found)[0] == "nothing_stored"


@pytest.mark.parametrize(
    ("mode", "keys", "outcome", "code"),
    [
        ("mp", "skip_save", "ignored", 1),
        ("mp", "max_offload_tokens", "honoured", 0),
        ("in_process", "max_offload_tokens", "ignored", 1),
        ("in_process", "skip_save", "honoured", 0),
    ],
)
def test_the_exit_code_is_about_the_keys_that_the_settings_send(
    mode: str, keys: str, outcome: str, code: int
) -> None:
    with StandIn(mode=mode) as server:
        found = found_in(server, KV_CACHE_HINT_KEYS=keys)
    assert (found["hint_keys"], found["outcome"], found["exit_code"]) == (keys, outcome, code)
    if code == 1:
        assert values(found, "wrong_keys") == {"hint_keys": keys, "use": "both"}
    else:
        assert codes(found) == ["hint_works"]


def test_a_slow_server_is_examined_as_well() -> None:
    with StandIn(latency=0.03) as server:
        found = found_in(server)
    assert (outcomes(found), found["exit_code"]) == (HONOURS_CAP, 0)


def ended_early(found: dict[str, Any], code: str) -> str:
    """Check that the examination ended with this trouble, and return its text."""
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    assert found["trouble_code"] == code
    assert codes(found) == []
    text: str = found["trouble"]
    assert "\n" not in text
    return text


def test_a_server_that_is_too_slow_ends_the_examination() -> None:
    with StandIn(latency=1.5) as server:
        found = found_in(server, "--timeout", "0.7")
    text = ended_early(found, "timeout")
    assert f"{server.url}/v1/chat/completions" in text
    assert "0.7 s" in text
    assert found["vllm"]["version"] == "0.32.0"


def test_a_server_that_never_answers_ends_the_examination() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        found = found_at(
            "--base-url", f"http://127.0.0.1:{mute.getsockname()[1]}/v1", "--timeout", "0.2"
        )
    ended_early(found, "timeout")


@pytest.mark.parametrize("options", [(), ("--api-key", "wrong")])
def test_a_missing_or_wrong_key_ends_the_examination_with_the_option_to_pass(
    options: tuple[str, ...],
) -> None:
    with StandIn(api_key="right") as server:
        found = found_in(server, *options)
    text = ended_early(found, "credentials_required")
    assert server.url in text
    assert "--api-key" in text
    assert "OPENAI_API_KEY" in text


@pytest.mark.parametrize(
    ("options", "environment"), [(("--api-key", "right"), {}), ((), {"OPENAI_API_KEY": "right"})]
)
def test_the_key_goes_to_vllm_but_not_into_the_output(
    options: tuple[str, ...], environment: dict[str, Any]
) -> None:
    with StandIn(api_key="right") as server:
        done = run(*urls(server), "--rounds", "1", "--settle", "0.02", *options, **environment)
    assert done.exit_code == 0
    assert "right" not in done.output


def test_addresses_may_come_from_the_environment() -> None:
    with StandIn() as server:
        assert server.lmcache_url is not None
        found = found_at(OPENAI_BASE_URL=server.base_url, LMCACHE_URL=server.lmcache_url)
    assert (found["exit_code"], ways(found)) == (0, {"told", "counted"})


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_fails_a_call_ends_the_examination(status: int) -> None:
    with StandIn(fail_first=1, fail_status=status) as server:
        found = found_in(server)
    assert str(status) in ended_early(found, "unusable_answer")


def test_a_context_shorter_than_a_chunk_ends_the_examination() -> None:
    with StandIn(max_model_len=300) as server:
        found = found_in(server)
    text = ended_early(found, "prompt_below_chunk")
    assert "300" in text
    assert "256" in text


def test_prompts_fit_into_a_short_context() -> None:
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
    assert "one, two" in ended_early(unknown, "unknown_model")


def test_an_unreachable_server_ends_the_examination() -> None:
    found = found_at("--base-url", NOWHERE)
    assert "http://127.0.0.1:9" in ended_early(found, "unreachable")
    assert found["vllm"] is None


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
def test_wrong_usage_exits_with_two(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert "Usage:" in done.stderr


def test_the_command_in_its_own_process_exits_with_the_code_and_prints_no_traceback(
    tmp_path: Any,
) -> None:
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
                "--json",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "KV_CACHE_MIN_PREFIX_TOKENS": "many", "COLUMNS": "120"},
        )
    assert done.returncode == 1
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["outcome"] == "no_connector"
    (check,) = [check for check in found["checks"] if check["name"] == "settings"]
    assert (check["state"], check["code"]) == ("fail", "problems")
    assert "KV_CACHE_MIN_PREFIX_TOKENS" in check["text"]
    assert values(found, "check_process") == {"checks": ["settings"]}


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from otel_kvpolicy.cli import main
main()
"""
"""The command line. Shells let their background jobs ignore SIGINT, and so would this process."""


def test_an_interruption_exits_without_an_outcome() -> None:
    with StandIn(latency=PATIENCE_SECONDS) as server:
        arguments = [sys.executable, "-c", INTERRUPTIBLE, "doctor", *urls(server)]
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

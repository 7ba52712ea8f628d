"""The doctor on a real vLLM: with LMCache, alone and beside other traffic, and without LMCache."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from .. import needs
from ..doctor.traffic import Traffic
from .pairs import PATIENCE_SECONDS, Pair, wait_until

pytestmark = pytest.mark.e2e

DOCTOR_SECONDS = 600
START_SECONDS = 600


def _doctor(pair: Pair | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    addresses = ("--base-url", pair.base_url, "--lmcache-url", pair.lmcache_url) if pair else ()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "KV_CACHE_", "OPENAI_", "LMCACHE_"))
    }
    return subprocess.run(
        [sys.executable, "-m", "otel_kvpolicy.cli", "doctor", *addresses, *arguments],
        env=kept | {"NO_PROXY": "127.0.0.1", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DOCTOR_SECONDS,
    )


def _outcomes(found: dict[str, Any]) -> dict[str, str]:
    return {arm: finding["outcome"] for arm, finding in found["findings"].items()}


def _codes(found: dict[str, Any]) -> list[str]:
    return [note["code"] for note in found["advice"]]


def test_a_real_pair_honours_the_cap_and_ignores_skip_save(real_pair: Pair) -> None:
    done = _doctor(real_pair)
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    for arm, outcome in (
        ("skip_save", "ignored"),
        ("max_offload_tokens", "honoured"),
        ("both", "honoured"),
    ):
        assert any(line.split()[:2] == [arm, outcome] for line in done.stdout.splitlines())
    assert done.stdout.splitlines()[-1] == "verdict: honoured (exit code 0)"


def test_the_facts_about_a_real_pair_are_right(real_pair: Pair) -> None:
    done = _doctor(real_pair, "--json", "--rounds", "1")
    found = json.loads(done.stdout)
    assert (found["mode"], found["connector"], found["exit_code"]) == ("mp", True, 0)
    assert found["vllm"]["version"].startswith("0.")
    assert (found["vllm"]["prefix_caching"], found["vllm"]["reports_cached_tokens"]) == (True, True)
    assert (found["lmcache"]["chunk_size"], found["lmcache"]["l2"]) == (256, ["FSL2Adapter"])
    assert found["lmcache"]["l1_bytes"] == 1 << 30
    assert found["missing_metrics"] == []
    assert {each["way"] for each in found["findings"]["both"]["evidence"]} == {"told", "counted"}


def test_other_traffic_does_not_change_the_outcome(real_pair: Pair) -> None:
    with Traffic(real_pair.base_url, real_pair.model) as traffic:
        done = _doctor(real_pair, "--json")
    found = json.loads(done.stdout)
    print(json.dumps(found["findings"], indent=1), f"beside {traffic.sent} other calls")
    assert _outcomes(found) == {
        "skip_save": "ignored",
        "max_offload_tokens": "honoured",
        "both": "honoured",
    }
    assert done.returncode == 0
    assert "other_traffic" in _codes(found)


class Bare(NamedTuple):
    """A vLLM without LMCache.

    Attributes:
        base_url: its URL, with ``/v1``.
        log: file that it logs to.
    """

    base_url: str
    log: Path


@pytest.fixture(scope="module")
def bare(real_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """Start a vLLM without LMCache beside the real pair, whose model it uses."""
    venv = os.environ.get("KVPOLICY_REAL_VENV")
    model = Path(real_pair.http.get(f"{real_pair.base_url}/models").json()["data"][0]["root"])
    if not venv or not (model / "config.json").is_file():
        needs.missing(
            "a vLLM without LMCache",
            "set KVPOLICY_REAL_STACK and KVPOLICY_REAL_VENV",
            optional=True,
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("bare") / "vllm.log"
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    options = (
        "--served-model-name tiny --load-format dummy --dtype float32 --max-model-len 4096"
        " --enforce-eager --max-num-seqs 8 --max-num-batched-tokens 4096"
        " --enable-prompt-tokens-details"
    )
    command: list[str | Path] = [
        f"{venv}/bin/vllm",
        "serve",
        model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *options.split(),
    ]
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=os.environ | settings, stdout=out, stderr=out) as server,
    ):
        try:
            end = time.monotonic() + START_SECONDS
            while not _is_up(port):
                assert server.poll() is None, f"vLLM exited; see {log}"
                assert time.monotonic() < end, (
                    f"vLLM did not answer within {START_SECONDS} s; see {log}"
                )
                threading.Event().wait(1)
            yield Bare(f"http://127.0.0.1:{port}/v1", log)
        finally:
            server.terminate()
            server.wait(PATIENCE_SECONDS)


def _is_up(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def test_hints_have_no_effect_on_a_real_vllm_without_lmcache(bare: Bare) -> None:
    done = _doctor(None, "--base-url", bare.base_url, "--json")
    found = json.loads(done.stdout)
    assert (found["exit_code"], found["connector"], found["vllm"]["reports_cached_tokens"]) == (
        1,
        False,
        True,
    )
    assert _outcomes(found) == dict.fromkeys(
        ("skip_save", "max_offload_tokens", "both"), "no_connector"
    )
    assert _codes(found)[0] == "no_connector"
    assert done.returncode == 1


def test_such_a_vllm_logs_a_warning_for_each_hint(bare: Bare) -> None:
    """The doctor's advice says so."""

    def warnings() -> int:
        return bare.log.read_text(errors="replace").count(
            "Got kv_transfer_params, but no KVConnector found"
        )

    before = warnings()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    for hint in (
        {},
        {"kv_transfer_params": {"lmcache.skip_save": True}},
        {},
        {"kv_transfer_params": {"lmcache.skip_save": False}},
    ):
        httpx2.post(
            f"{bare.base_url}/chat/completions",
            json=body | hint,
            timeout=PATIENCE_SECONDS,
            trust_env=False,
        ).raise_for_status()
    wait_until(lambda: warnings() >= before + 2, "the warnings")
    assert warnings() == before + 2


def test_the_report_for_people_says_so_too(bare: Bare) -> None:
    done = _doctor(None, "--base-url", bare.base_url, "--rounds", "1")
    print(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1] == "verdict: no effect (exit code 1)"

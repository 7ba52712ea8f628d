"""The two server pairs that the contract is checked on: the stand-in and a real vLLM with LMCache.

The real pair is running already if ``KVPOLICY_REAL_URLS`` names a file with ``OPENAI_BASE_URL=``
and ``LMCACHE_URL=`` lines; ``KVPOLICY_REAL_OTLP_PORT`` is then the loopback port that vLLM exports
its traces to. The tests start it if ``KVPOLICY_REAL_STACK`` names a script with the commands
``up VENV DIR`` and ``down DIR``, and ``KVPOLICY_REAL_VENV`` its environment. Without either, the
tests of the real pair are skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_kvpolicy.standin import StandIn

from .. import needs
from .pairs import Pair
from .receiver import Receiver


@pytest.fixture(scope="session")
def standin_pair() -> Iterator[Pair]:
    with StandIn(gpu_tokens=65536) as server, Receiver() as receiver:
        assert server.lmcache_url is not None
        yield Pair("standin", server.base_url, server.lmcache_url, receiver, exports_spans=False)


@pytest.fixture(scope="session")
def real_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    urls, script, venv = (
        os.environ.get(f"KVPOLICY_REAL_{name}") for name in ("URLS", "STACK", "VENV")
    )
    if urls:
        port = os.environ.get("KVPOLICY_REAL_OTLP_PORT", "0")
        with Receiver(int(port)) as receiver:
            yield _pair(Path(urls), receiver, exports_spans=port != "0")
    elif script and venv:
        folder = tmp_path_factory.mktemp("real")
        with Receiver() as receiver:
            yield from _started(script, venv, folder, receiver)
    else:
        needs.missing(
            "a real vLLM with LMCache",
            "set KVPOLICY_REAL_URLS, or KVPOLICY_REAL_STACK and KVPOLICY_REAL_VENV",
            optional=True,
        )


def _started(script: str, venv: str, folder: Path, receiver: Receiver) -> Iterator[Pair]:
    more = os.environ.get("EXTRA_VLLM_ARGS", "")
    extra = {
        "EXTRA_VLLM_ARGS": f"--otlp-traces-endpoint {receiver.url}/v1/traces {more}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    with (folder / "up.log").open("w") as log:
        up = subprocess.run(
            [script, "up", venv, folder],
            env=os.environ | extra,
            stdout=log,
            stderr=log,
            check=False,
        )
    try:
        assert up.returncode == 0, f"{script} up failed; see the logs in {folder}"
        yield _pair(folder / "urls", receiver, exports_spans=True)
    finally:
        subprocess.run([script, "down", folder], check=False)


def _pair(urls: Path, receiver: Receiver, *, exports_spans: bool) -> Pair:
    addresses = dict(line.split("=", 1) for line in urls.read_text().split())
    return Pair(
        "real",
        addresses["OPENAI_BASE_URL"],
        addresses["LMCACHE_URL"],
        receiver,
        exports_spans=exports_spans,
    )


@pytest.fixture(scope="session", params=["standin", pytest.param("real", marks=pytest.mark.e2e)])
def pair(request: pytest.FixtureRequest) -> Pair:
    named: Pair = request.getfixturevalue(f"{request.param}_pair")
    return named

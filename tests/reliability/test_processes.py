"""Children of an instrumented process: forked and spawned ones decide, and a process without the SDK does too."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from typing import Any

import pytest
from openai import OpenAI

from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

CALL: dict[str, Any] = {"model": "stand-in", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def one_call(base_url: str, answers: Any, telemetry: Telemetry | None = None) -> None:
    with OpenAI(base_url=base_url, api_key="key") as client:
        client.chat.completions.create(**CALL)
    answers.put(telemetry.total("kvpolicy.decisions") if telemetry else 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_worker_decides_and_counts(server: StandIn, instrumented: Telemetry) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.chat.completions.create(**CALL)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    workers = [context.Process(target=one_call, args=(server.base_url, answers, instrumented)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [answers.get() for _ in workers] == [2, 2, 2]
    for worker in workers:
        worker.join(30)
    assert instrumented.total("kvpolicy.decisions") == 1
    assert ["kv_transfer_params" in request.body for request in server.requests] == [True] * 4


def test_a_spawned_worker_is_as_its_own_start_makes_it(server: StandIn, instrumented: Telemetry) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    worker = context.Process(target=one_call, args=(server.base_url, answers))
    worker.start()
    answers.get()
    worker.join(30)
    assert "kv_transfer_params" not in server.last.body


WITHOUT_SDK = """
import sys
class NoSDK:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.sdk"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoSDK())
import otel_kvpolicy
from openai import OpenAI
otel_kvpolicy.KVPolicyInstrumentor().instrument()
with OpenAI(api_key="key") as client:
    client.chat.completions.create(model="stand-in", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
    for _ in client.chat.completions.create(model="stand-in", messages=[{"role": "user", "content": "hi"}], max_tokens=2, stream=True): pass
"""


def test_the_api_alone_is_enough(server: StandIn) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDK],
        check=False,
        env={**clean, "OPENAI_BASE_URL": server.base_url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert ["kv_transfer_params" in request.body for request in server.requests] == [True, True]

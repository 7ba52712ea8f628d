"""Forked and spawned children of an instrumented process, and a process without the SDK.

Each test starts a new interpreter, because a fork of the test process would inherit the locks of
its threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_kvpolicy.standin import StandIn

pytestmark = pytest.mark.slow

CALL = """
from openai import OpenAI
def call(text="hi", **options):
    with OpenAI(api_key="key") as client:
        return client.chat.completions.create(
            model="stand-in", messages=[{"role": "user", "content": text}], max_tokens=2, **options)
"""

METRICS = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_kvpolicy import KVPolicyInstrumentor
reader = InMemoryMetricReader()
KVPolicyInstrumentor().instrument(meter_provider=MeterProvider([reader]))
def decisions():
    data = reader.get_metrics_data()
    return sum(
        point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "kvpolicy.decisions"
        for point in metric.data.data_points
    )
"""


def run(server: StandIn, code: str, **environment: str) -> str:
    """Run a program against the server and return its output; stderr must stay empty."""
    server.requests.clear()
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "KV_CACHE_"))
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        check=False,
        env={**clean, "OPENAI_BASE_URL": server.base_url, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


FORKS = f"""
{METRICS}
{CALL}
import multiprocessing
def child(answers):
    call()
    answers.put(decisions())
call()
context = multiprocessing.get_context("fork")
answers = context.Queue()
workers = [context.Process(target=child, args=(answers,)) for _ in range(3)]
for worker in workers: worker.start()
print([answers.get(timeout=30) for _ in workers], decisions())
for worker in workers: worker.join(30)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_worker_decides_and_counts(server: StandIn) -> None:
    assert run(server, FORKS) == "[2, 2, 2] 1\n"
    assert ["kv_transfer_params" in request.body for request in server.requests] == [True] * 4


LEARNS = f"""
{CALL}
import os, threading
from otel_kvpolicy import KVPolicyInstrumentor
KVPolicyInstrumentor().instrument()
call()
rule = KVPolicyInstrumentor()._runtime.adaptive.rule
stop = threading.Event()
def busy():
    while not stop.is_set(): rule.export()
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()
codes = []
for _ in range(10):
    pid = os.fork()
    if not pid:
        try:
            call()
            os._exit(0)
        except BaseException:
            os._exit(1)
    codes.append(os.waitpid(pid, 0)[1])
stop.set()
for thread in threads: thread.join()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_children_forked_while_the_rule_is_exported_use_its_state(
    server: StandIn, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    assert (
        run(server, LEARNS, KV_CACHE_RULE="adaptive", KV_CACHE_STATE_FILE=str(state))
        == f"{[0] * 10}\n"
    )
    assert len(server.requests) == 11
    assert json.loads(state.read_text())["classes"]


SPAWNS = f"""
{METRICS}
{CALL}
import multiprocessing
if __name__ == "__main__":
    call()
    worker = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    worker.start()
    worker.join(30)
    print(worker.exitcode)
"""


def test_a_spawned_worker_is_not_instrumented(server: StandIn) -> None:
    assert run(server, SPAWNS).split() == ["spawned", "0"]
    assert ["kv_transfer_params" in request.body for request in server.requests] == [True]


WITHOUT_SDK = f"""
import sys
class NoSDK:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.sdk"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoSDK())
import otel_kvpolicy
otel_kvpolicy.KVPolicyInstrumentor().instrument()
{CALL}
call()
with OpenAI(api_key="key") as client:
    for _ in client.chat.completions.create(
        model="stand-in",
        messages=[{{"role": "user", "content": "hi"}}],
        max_tokens=2,
        stream=True,
    ):
        pass
"""


def test_the_hint_is_sent_without_the_sdk(server: StandIn) -> None:
    run(server, WITHOUT_SDK)
    assert ["kv_transfer_params" in request.body for request in server.requests] == [True, True]


SDK_FIRST = f"""
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider(resource=Resource({{"service.name": "app"}}))
from otel_kvpolicy import KVPolicyInstrumentor
KVPolicyInstrumentor().instrument(tracer_provider=provider)
{CALL}
call()
import os
child = os.fork()
if not child:
    call()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize("rule", ["thresholds", "adaptive"])
def test_the_sdks_fork_handler_does_not_hang(server: StandIn, rule: str) -> None:
    """It hangs if ``concurrent.futures.thread`` is first imported after the provider was created.

    Seen with OpenTelemetry 1.45.
    """
    assert run(server, SDK_FIRST, KV_CACHE_RULE=rule) == "0\n"
    assert ["kv_transfer_params" in request.body for request in server.requests] == [True, True]

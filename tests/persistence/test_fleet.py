"""Processes that share their counts through a real Redis, and what happens without it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from otel_kvpolicy import configure, settings
from otel_kvpolicy.persistence import AdaptiveState
from otel_kvpolicy.persistence.fleet import KEY, Fleet
from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
from otel_kvpolicy.policy.adaptive.reuse_table import MAX_CLASSES, CallClass
from otel_kvpolicy.policy.adaptive.rule import AdaptiveRule
from otel_kvpolicy.requests import read_chat
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry
from tests.dashboards.tools import tool

from .trained_rule import active_state, question, train

pytestmark = pytest.mark.live

redis = pytest.importorskip("redis")


class Server:
    """A Redis server on its own socket."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._program = tool("redis-server", package="redis-server")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Any:
        self._process = subprocess.Popen(
            [
                self._program,
                "--port",
                "0",
                "--unixsocket",
                self.socket,
                "--save",
                "",
                "--dir",
                self.socket.parent,
            ],
            stdout=subprocess.DEVNULL,
        )
        client = redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)
        for _ in range(200):
            try:
                client.ping()
                return client
            except redis.ConnectionError:
                threading.Event().wait(0.05)
        pytest.fail("redis-server does not answer")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.stop()


class Process:
    """One process of the fleet."""

    def __init__(self, url: str) -> None:
        self.faults: list[str] = []
        configure(rule="adaptive", redis_url=url)
        self.state = AdaptiveState(lambda seam, _: self.faults.append(seam))
        self.clock = [0.0]
        self.rule = self.state.rule = AdaptiveRule(clock=lambda: self.clock[0])

    def train(self) -> None:
        train(self.rule, self.clock)

    def skips(self) -> bool:
        body = {"model": "stand-in", "messages": question()}
        rule = self.rule
        return rule.decide(read_chat(body), "batch", boundaries_of(body, rule.key))[0].skip_save


def test_a_process_gets_the_counts_of_another(store: Server) -> None:
    client = store.start()
    one, other = Process(store.url), Process(store.url)
    one.train()
    assert (one.skips(), other.skips()) == (True, False)
    one.state.sync()
    other.state.sync()
    assert other.skips()
    assert one.faults == other.faults == []
    assert 0 < client.ttl(KEY) <= 7 * 24 * 3600
    assert "harbour" not in str(client.hgetall(KEY))


def test_counts_of_concurrent_processes_add_up(store: Server) -> None:
    client = store.start()
    group = CallClass("batch", 0, 2, 0)
    processes = [Process(store.url) for _ in range(8)]

    def count(process: Process) -> None:
        rule = process.rule
        for _ in range(20):
            rule.give_back({group: (1.0, 0.5)})
            process.state.sync()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, processes))
    assert client.hgetall(KEY) == {'["batch", 0, 2, 0]': "160.000000 80.000000"}
    assert [process.faults for process in processes] == [[]] * 8


def test_counts_learned_while_redis_is_down_are_shared_later(store: Server) -> None:
    process = Process(store.url)
    process.train()
    process.state.sync()
    assert process.faults == ["redis"]
    assert process.skips()
    client = store.start()
    process.state.sync()
    assert process.faults == ["redis"]
    assert client.hlen(KEY) == len(process.rule.export()["classes"])


def test_processes_do_not_forget_if_redis_is_emptied(store: Server) -> None:
    client = store.start()
    group = CallClass("batch", 0, 2, 0)
    one, other = Process(store.url), Process(store.url)
    for process, calls in ((one, 500.0), (other, 0.0)):
        process.rule.give_back({group: (calls, 0.0)})
        process.state.sync()
    assert [other.rule.export()["classes"]] == [[(*group, 500.0, 0.0)]]
    client.flushall()
    one.rule.give_back({group: (1.0, 0.0)})
    one.state.sync()
    assert one.rule.export()["classes"] == [(*group, 500.0, 0.0)]
    other.rule.give_back({group: (700.0, 700.0)})
    other.state.sync()
    one.state.sync()
    assert (
        one.rule.export()["classes"] == other.rule.export()["classes"] == [(*group, 701.0, 700.0)]
    )


@pytest.mark.parametrize(
    "counts", ["nan nan", "inf inf", "1e308 1e308", "-1 5", "1 -5", "1 nan", "x"]
)
def test_invalid_counts_are_reset(store: Server, counts: str) -> None:
    client = store.start()
    client.hset(KEY, '["a", 0, 1, 0]', counts)
    fleet = Fleet(store.url)
    assert fleet.exchange({CallClass("a", 0, 1, 0): (2.0, 1.0)}) == [
        (CallClass("a", 0, 1, 0), 2.0, 1.0)
    ]
    fleet.close()


def test_foreign_fields_are_ignored(store: Server) -> None:
    client = store.start()
    client.hset(
        KEY,
        mapping={
            "nonsense": "x",
            '["a", 0, 99, 0]': "1 1",
            '["a", 0, 1]': "1 1",
            '["b", 0, 1, 0]': "nan 1",
            '["c", 0, 1, 0]': "1",
        },
    )
    process = Process(store.url)
    process.state.sync()
    assert process.faults == []
    assert [name for name, *_ in process.rule.export()["classes"]] == []
    client.hset(KEY, mapping={b"\xff\xfe": b"\xff", '["d", 1e999, 0, 0]': "1 1", "[" * 1000: "1 1"})
    client.hset(KEY, '["e", 0, 1, 0]', "1 1")
    process.state.sync()
    assert process.faults == []
    assert [name for name, *_ in process.rule.export()["classes"]] == ["e"]
    client.delete(KEY)
    client.set(KEY, "a string")
    process.state.sync()
    assert process.faults == ["redis"]


def test_the_number_of_classes_is_bounded_and_counts_follow_the_traffic(store: Server) -> None:
    client = store.start()
    process = Process(store.url)
    fleet_new = {
        CallClass(f"agent {number}", 0, 1, 0): (1.0, 1.0) for number in range(MAX_CLASSES + 100)
    }
    fleet = Fleet(store.url)
    assert len(fleet.exchange(fleet_new)) == MAX_CLASSES
    group = CallClass("agent 1", 0, 1, 0)
    for _ in range(3):
        fleet.exchange({group: (10_000.0, 5_000.0)})
    calls, returned = map(float, client.hget(KEY, '["agent 1", 0, 1, 0]').split())
    assert calls < 16384
    assert returned / calls == pytest.approx(0.5, abs=0.01)
    process.state.sync()
    assert process.faults == []
    fleet.close()


def test_a_class_with_any_agent_name_is_shared(store: Server) -> None:
    store.start()
    one, other = Process(store.url), Process(store.url)
    group = CallClass("\U0001f600" * 64, 4, 16, 4)
    one.rule.give_back({group: (3.0, 1.0)})
    one.state.sync()
    other.state.sync()
    assert other.rule.export()["classes"] == [(*group, 3.0, 1.0)]


@pytest.mark.parametrize(
    "password", ["canary/1", "canary#1", "canary?1", "canary]1", "canary[1", "canary\udcff"]
)
def test_no_password_is_logged(
    password: str, server: StandIn, instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    configure(rule="adaptive", redis_url=f"redis://:{password}@127.0.0.1:1/0")
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.chat.completions.create(model="stand-in", messages=question(), max_tokens=2)  # type: ignore[arg-type]
    active_state().sync()
    assert {point["kvpolicy.seam"] for point, _ in instrumented.points("kvpolicy.errors")} == {
        "redis"
    }
    assert "redis failed" in caplog.text
    assert "canary" not in caplog.text


APP = """
from openai import OpenAI
with OpenAI(api_key="key") as client:
    messages = [{"role": "user", "content": "hi"}]
    client.chat.completions.create(model="stand-in", messages=messages, max_tokens=2)
"""


def test_a_server_that_never_completes_an_answer_does_not_delay_the_exit(
    server: StandIn, tmp_path: Path
) -> None:
    """The server sends single bytes that never form an answer, so no socket timeout applies."""
    path, over = tmp_path / "learned.json", threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while not over.wait(0.2):
                connection.sendall(b"+")

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "KV_CACHE_"))
        }
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        settings_given = {
            "KV_CACHE_RULE": "adaptive",
            "KV_CACHE_STATE_FILE": str(path),
            "KV_CACHE_REDIS_URL": url,
        }
        options = [
            "--traces_exporter",
            "none",
            "--metrics_exporter",
            "none",
            "--logs_exporter",
            "none",
        ]
        command = [
            str(Path(sys.executable).with_name("opentelemetry-instrument")),
            *options,
            sys.executable,
            "-c",
            APP,
        ]
        try:
            subprocess.run(
                command,
                env={**clean, **settings_given, "OPENAI_BASE_URL": server.base_url},
                check=True,
                timeout=45,
            )
        finally:
            over.set()
    assert path.exists()


FORKING = """
import os, threading
from otel_kvpolicy import configure, persistence

persistence.started = threading.Event()
state = persistence.AdaptiveState(lambda *_: None)
state.rule_for(configure(rule="adaptive", redis_url="redis://127.0.0.1:1/0"))
assert persistence.started.wait(20)
child = os.fork()
import redis
if not child:
    os._exit(0)
state.close()
os.waitpid(child, 0)
print("ended", flush=True)
"""
"""A worker that is forked while the thread imports redis, and that imports it too."""

SLOW = """
import threading
from otel_kvpolicy import persistence
persistence.started.set()
threading.Event().wait(1)
"""


def test_a_worker_forked_while_redis_is_imported_can_import_it(tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.communicate(timeout=20)[0] == "ended\n"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the child has the pipe open, too
            raise


@pytest.mark.parametrize("url", ["nonsense", "http://host", "redis://127.0.0.1:1/0"])
def test_an_unusable_url_is_counted_as_an_error(url: str) -> None:
    process = Process(url)
    process.state.sync()
    assert process.faults == ["redis"]
    assert settings.current().rule == "adaptive"

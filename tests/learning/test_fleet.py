"""Processes that share what they learn through a real Redis, and what becomes of them without it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy import configure, settings
from otel_kvpolicy.learning import Learner
from otel_kvpolicy.learning.fleet import KEY, Fleet
from otel_kvpolicy.policy.chain import chain_of
from otel_kvpolicy.policy.reuse_table import MAX_CLASSES, CallClass
from otel_kvpolicy.requests import read_chat
from tests.dashboards.tools import tool

from .taught import question, teach

redis = pytest.importorskip("redis")


class Server:
    """A Redis on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._program = tool("redis-server", package="redis-server")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Any:
        self._process = subprocess.Popen(
            [self._program, "--port", "0", "--unixsocket", self.socket, "--save", "", "--dir", self.socket.parent],
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
        self.knobs = configure(rule="adaptive", redis_url=url)
        self.learner = Learner(self.knobs, lambda seam, _: self.faults.append(seam))
        self.clock = [0.0]
        self.learner.rule._clock = lambda: self.clock[0]

    def teach(self) -> None:
        teach(self.learner.rule, self.clock)

    def skips(self) -> bool:
        body = {"model": "stand-in", "messages": question()}
        rule = self.learner.rule
        return rule.decide(read_chat(body), "batch", chain_of(body, rule.key))[0].skip_save


def test_what_one_process_learned_another_knows(store: Server) -> None:
    client = store.start()
    one, other = Process(store.url), Process(store.url)
    one.teach()
    assert (one.skips(), other.skips()) == (True, False)
    one.learner.sync()
    other.learner.sync()
    assert other.skips()
    assert one.faults == other.faults == []
    assert 0 < client.ttl(KEY) <= 7 * 24 * 3600
    assert "harbour" not in str(client.hgetall(KEY))


def test_counts_add_up_whoever_shares_at_the_same_time(store: Server) -> None:
    client = store.start()
    group = CallClass("batch", 0, 2, 0)
    processes = [Process(store.url) for _ in range(8)]

    def count(process: Process) -> None:
        rule = process.learner.rule
        for _ in range(20):
            rule.give_back({group: (1.0, 0.5)})
            process.learner.sync()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, processes))
    assert client.hgetall(KEY) == {'["batch", 0, 2, 0]': "160.000000 80.000000"}
    assert [process.faults for process in processes] == [[]] * 8


def test_while_the_store_is_down_the_process_learns_on_and_shares_later(store: Server) -> None:
    process = Process(store.url)
    process.teach()
    process.learner.sync()
    assert process.faults == ["redis"]
    assert process.skips()
    client = store.start()
    process.learner.sync()
    assert process.faults == ["redis"]
    assert client.hlen(KEY) == len(process.learner.rule.export()["classes"])


def test_what_another_hand_has_put_there_is_passed_over(store: Server) -> None:
    client = store.start()
    client.hset(
        KEY, mapping={"nonsense": "x", '["a", 0, 99, 0]': "1 1", '["a", 0, 1]': "1 1", '["b", 0, 1, 0]': "nan 1", '["c", 0, 1, 0]': "1"}
    )
    process = Process(store.url)
    process.learner.sync()
    assert process.faults == []
    assert [name for name, *_ in process.learner.rule.export()["classes"]] == []
    client.delete(KEY)
    client.set(KEY, "a string")
    process.learner.sync()
    assert process.faults == ["redis"]


def test_the_table_is_bounded_and_follows_its_traffic(store: Server) -> None:
    client = store.start()
    process = Process(store.url)
    fleet_new = {CallClass(f"agent {number}", 0, 1, 0): (1.0, 1.0) for number in range(MAX_CLASSES + 100)}
    fleet = Fleet(store.url)
    assert len(fleet.exchange(fleet_new)) == MAX_CLASSES
    group = CallClass("agent 1", 0, 1, 0)
    for _ in range(3):
        fleet.exchange({group: (10_000.0, 5_000.0)})
    calls, returned = map(float, client.hget(KEY, '["agent 1", 0, 1, 0]').split())
    assert calls < 16384
    assert returned / calls == pytest.approx(0.5, abs=0.01)
    process.learner.sync()
    assert process.faults == []
    fleet.close()


@pytest.mark.parametrize("url", ["nonsense", "http://host", "redis://127.0.0.1:1/0"])
def test_a_url_that_leads_nowhere_is_a_counted_fault(url: str) -> None:
    process = Process(url)
    process.learner.sync()
    assert process.faults == ["redis"]
    assert settings.current().rule == "adaptive"

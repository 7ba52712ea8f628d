"""Subscribers to decisions: what they get, where they run, and what their faults do."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from otel_kvpolicy import KVPolicyInstrumentor, configure, kv_context
from otel_kvpolicy.advisors import ENTRY_POINT_GROUP, Advice, Advisor, DecisionEvent
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

SECRET = "what only the prompt says"
BODY: dict[str, Any] = {
    "model": "stand-in",
    "messages": [
        {"role": "system", "content": f"{SECRET} " * 200},
        {"role": "user", "content": f"{SECRET}?"},
    ],
    "max_tokens": 4,
}


class Watcher:
    """Keeps the events and the threads they arrived in."""

    def __init__(self) -> None:
        self.events: list[DecisionEvent] = []
        self.threads: list[str] = []

    def on_decision(self, event: DecisionEvent) -> None:
        self.events.append(event)
        self.threads.append(threading.current_thread().name)


class HeaderAdder:
    adds_headers = True

    def __init__(self, **headers: Any) -> None:
        self.headers = headers
        self.threads: list[str] = []

    def on_decision(self, event: DecisionEvent) -> Advice:
        self.threads.append(threading.current_thread().name)
        return Advice(self.headers)


@contextmanager
def advised(telemetry: Telemetry, *advisors: Any) -> Iterator[KVPolicyInstrumentor]:
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        advisors=list(advisors),
    )
    try:
        yield instrumentor
    finally:
        instrumentor.uninstrument()


def call(server: StandIn, body: dict[str, Any] = BODY, **client_options: Any) -> None:
    with OpenAI(base_url=server.base_url, api_key="key", **client_options) as client:
        client.chat.completions.create(**body)


def faults(telemetry: Telemetry) -> dict[str, float]:
    """Return the number of errors at the seam of the advisors, by the type of the error."""
    return {
        attributes["error.type"]: value
        for attributes, value in telemetry.points("kvpolicy.errors")
        if attributes["kvpolicy.seam"] == "advisor"
    }


def test_an_advisor_gets_every_decision_outside_the_thread_of_the_call(
    server: StandIn, telemetry: Telemetry
) -> None:
    watcher = Watcher()
    assert isinstance(watcher, Advisor)
    with advised(telemetry, watcher):
        call(server)
        call(server)
    first, second = watcher.events
    [span, _] = telemetry.decided
    attributes = span.attributes or {}
    assert first == second
    assert first.decision.cache_worthy == attributes["kvpolicy.cache_worthy"]
    assert first.prefix_tokens == attributes["kvpolicy.signals.prefix_tokens"]
    assert first.total_tokens == attributes["kvpolicy.signals.total_tokens"]
    assert (first.model, first.outcome) == ("stand-in", "applied")
    assert str(first.origin.port) in server.base_url
    assert set(watcher.threads) == {"kvpolicy-advisors"}


def test_no_content_reaches_an_advisor(server: StandIn, telemetry: Telemetry) -> None:
    watcher = Watcher()
    with advised(telemetry, watcher), kv_context(conversation_id="conversation of Jane"):
        call(server)
    [event] = watcher.events
    assert event.conversation_hash
    assert SECRET not in repr(event)
    assert "Jane" not in repr(event)


def test_a_plain_function_is_an_advisor(server: StandIn, telemetry: Telemetry) -> None:
    events: list[DecisionEvent] = []
    with advised(telemetry, events.append):
        call(server)
    assert len(events) == 1


async def test_async_calls_are_passed_on(server: StandIn, telemetry: Telemetry) -> None:
    watcher, adder = Watcher(), HeaderAdder(**{"x-a": "1"})
    with advised(telemetry, watcher, adder):
        async with AsyncOpenAI(base_url=server.base_url, api_key="key") as client:
            await asyncio.gather(*(client.chat.completions.create(**BODY) for _ in range(5)))
    assert len(watcher.events) == 5
    assert [request.headers["x-a"] for request in server.requests] == ["1"] * 5


def test_an_advisor_that_adds_headers_runs_on_the_path_of_the_call(
    server: StandIn, telemetry: Telemetry
) -> None:
    adder = HeaderAdder(**{"x-route": "a"})
    with advised(telemetry, adder):
        call(server)
    assert adder.threads == [threading.current_thread().name]
    assert server.requests[0].headers["x-route"] == "a"


def test_the_callers_own_header_wins(server: StandIn, telemetry: Telemetry) -> None:
    adder = HeaderAdder(**{"X-Route": "advisor", "Authorization": "advisor", "x-new": "advisor"})
    options = {"extra_headers": {"x-route": "caller"}}
    with advised(telemetry, adder):
        call(server, {**BODY, **options})
        call(server, default_headers={"x-ROUTE": "client"})
    first, second = (request.headers for request in server.requests)
    assert (first["x-route"], first["authorization"]) == ("caller", "Bearer key")
    assert (second["x-route"], second["x-new"]) == ("client", "advisor")
    assert options == {"extra_headers": {"x-route": "caller"}}


@pytest.mark.parametrize(
    "setting", [{"mode": "observe"}, {"targets": "elsewhere"}, {"layering": False}]
)
def test_no_header_goes_where_no_hint_may_go(
    setting: Any, server: StandIn, telemetry: Telemetry
) -> None:
    configure(affinity_header="x-affinity", **setting)
    watcher = Watcher()
    with advised(telemetry, HeaderAdder(**{"x-route": "a"}), watcher):
        call(server)
    headers = server.requests[0].headers
    assert "x-route" not in headers
    assert "x-affinity" not in headers
    assert len(watcher.events) == 1


def test_the_header_is_kept_if_the_server_rejects_the_hint(telemetry: Telemetry) -> None:
    with StandIn(strict="mistral") as strict, advised(telemetry, HeaderAdder(**{"x-route": "a"})):
        call(strict)
        call(strict, {**BODY, "stream": True})
        assert ["kv_transfer_params" in request.body for request in strict.requests] == [
            True,
            False,
            False,
        ]
        assert [request.headers["x-route"] for request in strict.requests] == ["a"] * 3


@pytest.mark.parametrize("adds_headers", [False, True])
def test_the_faults_of_an_advisor_are_counted_and_do_not_reach_the_caller(
    adds_headers: bool, server: StandIn, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def on_decision(self, event: DecisionEvent) -> None:
            raise LookupError(SECRET)

    Broken.adds_headers = adds_headers  # type: ignore[attr-defined]
    watcher, adder = Watcher(), HeaderAdder(**{"x-route": "a"})
    with advised(telemetry, Broken(), watcher, adder):
        call(server)
        call(server)
    assert faults(telemetry) == {"LookupError": 2}
    assert len(watcher.events) == 2
    assert [request.headers["x-route"] for request in server.requests] == ["a", "a"]
    assert len([record for record in caplog.records if record.name == "otel_kvpolicy"]) == 1
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": "two\r\nx-b: lines"},
        {"x-a": "ü"},
        {"x-a": ""},
        {"x a": "1"},
        {"x-a": 1},
        {"Content-Length": "1"},
        {"host": "elsewhere"},
    ],
)
def test_a_header_that_cannot_be_sent_is_left_out(
    headers: Any, server: StandIn, telemetry: Telemetry
) -> None:
    with advised(telemetry, HeaderAdder(**headers)):
        call(server)
    assert sum(faults(telemetry).values()) == 1
    assert "x-a" not in server.requests[0].headers


def test_content_of_an_odd_shape_still_reaches_the_advisors_without_a_hash(
    server: StandIn, telemetry: Telemetry
) -> None:
    watcher = Watcher()
    parts: list[Any] = [{"type": "text", "text": "hi", (1, 2): "not JSON"}]
    with advised(telemetry, watcher), pytest.raises(TypeError):
        call(server, {**BODY, "messages": [{"role": "user", "content": parts}]})
    assert [event.prefix_hash for event in watcher.events] == [""]
    assert faults(telemetry) == {}


def test_something_that_is_no_advisor_is_reported(server: StandIn, telemetry: Telemetry) -> None:
    watcher = Watcher()
    with advised(telemetry, "nothing", watcher):
        call(server)
    assert faults(telemetry) == {"TypeError": 1}
    assert len(watcher.events) == 1


def test_a_slow_advisor_loses_events_and_delays_no_call(
    server: StandIn, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_kvpolicy.advisors.registry._MAX_QUEUED", 3)
    entered, go_on, seen = threading.Event(), threading.Event(), []

    def slow(event: DecisionEvent) -> None:
        entered.set()
        go_on.wait(20)
        seen.append(event)

    with advised(telemetry, slow):
        call(server)
        assert entered.wait(20)
        for _ in range(6):
            call(server)
        go_on.set()
    assert len(seen) == 4
    assert faults(telemetry) == {"Full": 3}


def test_calls_that_an_advisor_makes_are_not_decided(server: StandIn, telemetry: Telemetry) -> None:
    def caller(event: DecisionEvent) -> None:
        call(server)

    with advised(telemetry, caller):
        call(server)
    assert len(server.requests) == 2
    assert len(telemetry.decided) == 1


def test_published_advisors_are_loaded_and_broken_ones_left_out(
    server: StandIn, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Published(Watcher):
        made: list[Published] = []

        def __init__(self) -> None:
            super().__init__()
            self.made.append(self)

    ready = Watcher()

    class EntryPoint:
        def __init__(self, value: Any) -> None:
            self.value = value

        def load(self) -> Any:
            if isinstance(self.value, Exception):
                raise self.value
            return self.value

    found = metadata.entry_points

    def entry_points(**selected: Any) -> Any:
        if selected.get("group") != ENTRY_POINT_GROUP:
            return found(**selected)
        return [EntryPoint(ImportError("gone")), EntryPoint(Published), EntryPoint(ready)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    with advised(telemetry):
        call(server)
    [published] = Published.made
    assert len(published.events) == len(ready.events) == 1
    assert faults(telemetry) == {"ImportError": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_advisors_run_in_a_forked_child(server: StandIn, telemetry: Telemetry) -> None:
    read, write = os.pipe()

    def tell(event: DecisionEvent) -> None:
        os.write(write, b"%d;" % os.getpid())

    with advised(telemetry, tell):
        call(server)
        child = os.fork()
        if child == 0:
            try:
                call(server)
                time.sleep(1)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    pids = os.read(read, 1000).decode().strip(";").split(";")
    os.close(read)
    os.close(write)
    assert sorted(map(int, pids)) == sorted([os.getpid(), child])

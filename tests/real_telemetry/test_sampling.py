"""Which traces the Collector of ``app.yaml`` keeps, alone or as one of two behind a gateway."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.telemetry import names

from ..dashboards.live import LOOPBACK, until
from .servers import Collector, Jaeger, tags
from .traffic import FAULT, REJECTED, SKIPPED, STORED, Sender, sending

pytestmark = pytest.mark.live
REST = 1000


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    with Jaeger(tmp_path / "jaeger") as running:
        assert isinstance(running, Jaeger)
        yield running


def app(folder: Path, jaeger: Jaeger, name: str = "app") -> Collector:
    """The Collector of app.yaml; its metrics go nowhere."""

    def edit(config: dict[str, Any]) -> None:
        config["processors"]["tail_sampling"]["decision_wait"] = "1s"

    return Collector(
        "app", folder / name, edit, TEMPO_ENDPOINT=jaeger.endpoint, COLLECTOR_NAME=name
    )


def arrived(jaeger: Jaeger, check: Callable[[dict[str, Any]], bool]) -> int:
    """Return how many spans in Jaeger pass the check."""
    return sum(check(tags(span)) for span in jaeger.spans("app"))


def skipped(span: dict[str, Any]) -> bool:
    return bool(span.get(names.DECISION) == names.SKIP)


def test_every_promised_trace_is_kept_and_a_share_of_the_rest(
    tmp_path: Path, jaeger: Jaeger
) -> None:
    with app(tmp_path, jaeger) as collector:
        assert isinstance(collector, Collector)
        with sending(collector.url) as sender:
            sender.calls(60, SKIPPED)
            sender.calls(40, REJECTED)
            sender.calls(30, FAULT)
            sender.calls(20, STORED, failed=True)
            sender.calls(REST, STORED)
        _wait_for_promised(jaeger)
        kept = arrived(jaeger, lambda span: True) - 150
    # 10 % of 1000, by a hash of random trace ids: 100 with a standard deviation of 9.5.
    assert 60 <= kept <= 140


def _wait_for_promised(jaeger: Jaeger) -> None:
    until(lambda: arrived(jaeger, skipped) == 60, "every skipped call arrives")
    for outcome, count in (("rejected", 40), ("error", 30)):
        until(
            lambda outcome=outcome, count=count: (
                arrived(jaeger, lambda span: span.get(names.HINT_OUTCOME) == outcome) == count
            ),
            f"every call with the outcome {outcome} arrives",
        )
    until(
        lambda: arrived(jaeger, lambda span: span.get("error") is True) == 20,
        "every failed call arrives",
    )


def test_a_skipped_call_is_kept_even_if_its_trace_was_judged_long_before(
    tmp_path: Path, jaeger: Jaeger
) -> None:
    """An agent's run that stores first and skips later than ``decision_wait``."""
    with app(tmp_path, jaeger) as collector:
        assert isinstance(collector, Collector)
        with sending(collector.url) as sender:
            agents = [sender.agent() for _ in range(50)]
            for agent in agents:
                sender.call(STORED, parent=agent)
            sender.flush()
            until(
                lambda: _judged(collector) >= len(agents),
                "all 50 traces are judged without a skipped call",
            )
            for agent in agents:
                sender.call(SKIPPED, parent=agent)
                agent.end()
        until(lambda: arrived(jaeger, skipped) == len(agents), "every skipped call arrives")


def _judged(collector: Collector) -> float:
    return collector.total("processor_tail_sampling_global_count_traces_sampled")


def test_traces_under_decision_survive_a_restart_of_the_collector(
    tmp_path: Path, jaeger: Jaeger
) -> None:
    collector = Collector("app", tmp_path / "app", TEMPO_ENDPOINT=jaeger.endpoint)
    with collector:
        with sending(collector.url) as sender:
            sender.calls(300, SKIPPED)
        collector.stop()
        collector.start()
        until(lambda: arrived(jaeger, skipped) == 300, "every skipped call arrives")


class Pair:
    """Two sampling Collectors behind one gateway."""

    def __init__(self, folder: Path, jaeger: Jaeger) -> None:
        self.samplers = [app(folder, jaeger, name) for name in ("one", "two")]

        def edit(config: dict[str, Any]) -> None:
            hosts = [f"{LOOPBACK}:{sampler.grpc}" for sampler in self.samplers]
            config["exporters"]["load_balancing"]["resolver"] = {"static": {"hostnames": hosts}}

        self.gateway = Collector("gateway", folder / "gateway", edit)

    def __enter__(self) -> Pair:
        for server in (*self.samplers, self.gateway):
            server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.gateway, *self.samplers):
            server.stop()


def test_two_collectors_behind_load_balancing_keep_whole_traces(
    tmp_path: Path, jaeger: Jaeger
) -> None:
    with Pair(tmp_path, jaeger) as pair:
        with sending(pair.gateway.url) as sender:
            _agent_runs(sender, 100)
        until(lambda: arrived(jaeger, skipped) == 100, "every skipped call arrives")
        until(
            lambda: sum(len(trace) == 6 for trace in _traces(jaeger)) == 100,
            "each trace arrives with all of its six spans",
        )
        taken = [sampler.total("receiver_accepted_spans") for sampler in pair.samplers]
        assert sum(taken) == 600
        assert all(count > 100 for count in taken), "both take their part"
        assert all(count % 6 == 0 for count in taken), "neither takes a part of a trace"


def _agent_runs(sender: Sender, count: int) -> None:
    """Record traces whose only skipped call is the last, each span in a batch of its own."""
    agents = [sender.agent() for _ in range(count)]
    for attributes in (STORED, STORED, STORED, STORED, SKIPPED):
        for agent in agents:
            sender.call(attributes, parent=agent)
        sender.flush()
    for agent in agents:
        agent.end()


def _traces(jaeger: Jaeger) -> list[list[dict[str, Any]]]:
    traces: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for span in jaeger.spans("app"):
        traces[span["traceID"]].append(span)
    return list(traces.values())


def test_the_gateway_keeps_what_a_missing_collector_cannot_take(
    tmp_path: Path, jaeger: Jaeger
) -> None:
    """Also across a crash of the gateway itself: its queue is on disk."""
    with Pair(tmp_path, jaeger) as pair:
        pair.samplers[1].stop()
        with sending(pair.gateway.url) as sender:
            sender.calls(200, SKIPPED)
        until(lambda: arrived(jaeger, skipped) > 0, "the running Collector's share arrives")
        pair.gateway.kill()
        pair.gateway.start()
        pair.samplers[1].start()
        until(lambda: arrived(jaeger, skipped) >= 200, "the rest arrives")
        traces = {span["traceID"] for span in jaeger.spans("app") if skipped(tags(span))}
        assert len(traces) == 200

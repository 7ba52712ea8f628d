"""A flood of names does not become a flood of series."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider

from otel_kvpolicy import KVCacheLayeringPolicy
from otel_kvpolicy.targets import Origin, RejectedOrigins
from otel_kvpolicy.telemetry import CallRecord, Instruments
from otel_kvpolicy.telemetry.instruments import MAX_CALLERS
from tests.conftest import Telemetry


def test_ten_thousand_models_agents_and_hosts(telemetry: Telemetry) -> None:
    provider: MeterProvider = telemetry.meter_provider
    instruments = Instruments(provider.get_meter("otel_kvpolicy"))
    policy = KVCacheLayeringPolicy()
    decision = policy.decide(user_prompt="hi")
    for number in range(10_000):
        record = CallRecord(decision, True, "applied", "enforce", policy, f"model-{number}", f"host-{number}", 80, f"agent-{number}")
        instruments.decided(record, 1e-6)
    points = telemetry.points("kvpolicy.decisions")
    assert len(points) == MAX_CALLERS + 1
    assert sum(count for _, count in points) == 10_000
    [other] = [count for attributes, count in points if attributes["gen_ai.request.model"] == "_OTHER"]
    assert other == 10_000 - MAX_CALLERS
    assert len(telemetry.points("kvpolicy.score")) <= MAX_CALLERS + 1


def test_a_long_name_is_cut(telemetry: Telemetry) -> None:
    instruments = Instruments(telemetry.meter_provider.get_meter("otel_kvpolicy"))
    policy = KVCacheLayeringPolicy()
    instruments.decided(CallRecord(policy.decide(), True, "applied", "enforce", policy, "m" * 10_000, "h", 80, None), 1e-6)
    [(attributes, _)] = telemetry.points("kvpolicy.decisions")
    assert len(attributes["gen_ai.request.model"]) == 200


def test_rejecting_servers_are_bounded() -> None:
    rejected = RejectedOrigins(limit=100)
    for number in range(10_000):
        rejected.add(Origin("http", f"host-{number}", 80))
    assert len(rejected._origins) == 100

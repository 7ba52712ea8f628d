"""Many models, agents, hosts, or reasons do not create many metric series."""

from __future__ import annotations

from typing import Any

from openai import OpenAI
from opentelemetry.sdk.metrics import MeterProvider

from otel_kvpolicy import KVCacheDecision, KVCacheLayeringPolicy, KVPolicyInstrumentor
from otel_kvpolicy.hints.targets import Origin, RejectedOrigins
from otel_kvpolicy.policy import REASONS, CallText, ThresholdsRule
from otel_kvpolicy.record import CallRecord
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry.instruments import MAX_CALLERS, MAX_REASONS, Instruments
from tests.conftest import Telemetry

RULE = ThresholdsRule()


def test_ten_thousand_models_agents_and_hosts_stay_within_the_series_limit(
    telemetry: Telemetry,
) -> None:
    provider: MeterProvider = telemetry.meter_provider
    instruments = Instruments(provider.get_meter("otel_kvpolicy"))
    verdict = RULE.verdict(RULE.judge(CallText(user_chars=2)))
    for number in range(10_000):
        record = CallRecord(
            verdict,
            True,
            "applied",
            "enforce",
            f"model-{number}",
            f"host-{number}",
            80,
            f"agent-{number}",
        )
        instruments.decided(record, 1e-6)
    points = telemetry.points("kvpolicy.decisions")
    assert len(points) == MAX_CALLERS + 1
    assert sum(count for _, count in points) == 10_000
    [other] = [
        count for attributes, count in points if attributes["gen_ai.request.model"] == "_OTHER"
    ]
    assert other == 10_000 - MAX_CALLERS
    assert len(telemetry.points("kvpolicy.score")) <= MAX_CALLERS + 1


class UnboundedReasons(KVCacheLayeringPolicy):
    """A custom rule that puts a number into its reason code, or gives no reason."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def decide(self, **_: Any) -> KVCacheDecision:
        self.calls += 1
        reasons = [f"seen_{self.calls}_times(detail)"] if self.calls % 2 else []
        return KVCacheDecision(cache_worthy=True, skip_save=False, reasons=reasons)


def test_reason_codes_of_a_custom_rule_are_bounded(server: StandIn, telemetry: Telemetry) -> None:
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        policy=UnboundedReasons(),
    )
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            for _ in range(4 * MAX_REASONS):
                client.chat.completions.create(
                    model="stand-in", messages=[{"role": "user", "content": "hi"}], max_tokens=1
                )
    finally:
        instrumentor.uninstrument()
    counted = {
        attributes["kvpolicy.reason"]: count
        for attributes, count in telemetry.points("kvpolicy.decisions")
    }
    assert len(counted) <= MAX_REASONS + 1
    assert counted["seen_1_times"] == 1
    assert counted["_OTHER"] > MAX_REASONS
    assert sum(counted.values()) == 4 * MAX_REASONS
    assert telemetry.total("kvpolicy.errors") == 0


def test_the_reason_codes_of_this_package_are_always_kept(telemetry: Telemetry) -> None:
    instruments = Instruments(telemetry.meter_provider.get_meter("otel_kvpolicy"))
    own = sorted(REASONS)
    for reason in [*map(str, range(1000)), *own]:
        decision = KVCacheDecision(cache_worthy=True, skip_save=False, reasons=[reason])
        instruments.decided(
            CallRecord(RULE.verdict(decision), False, "applied", "enforce", "m", "h", 80, None),
            1e-6,
        )
    counted = {
        attributes["kvpolicy.reason"] for attributes, _ in telemetry.points("kvpolicy.decisions")
    }
    assert counted >= set(own)
    assert len(counted) == len(REASONS) + MAX_REASONS + 1


def test_a_long_name_is_truncated(telemetry: Telemetry) -> None:
    instruments = Instruments(telemetry.meter_provider.get_meter("otel_kvpolicy"))
    verdict = RULE.verdict(RULE.judge(CallText()))
    instruments.decided(
        CallRecord(verdict, True, "applied", "enforce", "m" * 10_000, "h", 80, None),
        1e-6,
    )
    [(attributes, _)] = telemetry.points("kvpolicy.decisions")
    assert len(attributes["gen_ai.request.model"]) == 200


def test_the_number_of_remembered_rejecting_servers_is_bounded() -> None:
    rejected = RejectedOrigins(limit=100)
    for number in range(10_000):
        rejected.add(Origin("http", f"host-{number}", 80))
    assert len(rejected._origins) == 100

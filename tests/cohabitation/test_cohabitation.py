"""This package beside each other instrumentation, switched on in either order and off again.

Every call is decided once, the decision is on the right span, and the other one keeps working.
"""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn
from tests import needs
from tests.conftest import Telemetry

from . import table
from .others import OTHERS
from .table import OURS, Phases, chat_spans, measure

PAIRS = [
    pytest.param(other, order, id=f"{other}-{order}-ours", marks=pytest.mark.slow)
    for other in OTHERS
    for order in table.ORDERS
]


def _needs(other: str) -> None:
    absent = OTHERS[other].missing
    if absent:
        needs.missing(", ".join(absent), "make matrix ARGS='-s cohabitation'", optional=True)


@pytest.fixture
def phases(other: str, order: str) -> Phases:
    _needs(other)
    return measure(other, order)


def _scopes(phase: dict[str, Any]) -> dict[str, set[str]]:
    return {name: {span["scope"] for span in chat_spans(call)} for name, call in phase.items()}


def _carriers(phase: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [(span["scope"], span["name"]) for span in call["spans"] if span["decision"]]
        for name, call in phase.items()
    }


@pytest.mark.parametrize(("other", "order"), PAIRS)
def test_every_call_is_decided_once_on_one_chat_span(other: str, phases: Phases) -> None:
    for name, call in phases["both"].items():
        assert call["hints"] == [True], name
        assert call["decisions"] == 1, name
        [decided] = [span for span in chat_spans(call) if span["decision"]]
        assert decided["decision"] == "skip"
        # This package opens its own span only if the other one opens its span after the answer.
        assert (decided["scope"] == OURS) is (
            other == "traceloop" and name.startswith("responses")
        ), name


@pytest.mark.parametrize(("other", "order"), PAIRS)
def test_cached_tokens_are_on_the_span_with_the_decision(other: str, phases: Phases) -> None:
    for name, call in phases["both"].items():
        [decided] = [span for span in call["spans"] if span["decision"]]
        if other == "logfire" and name.endswith("stream"):
            assert decided["cached"] is None, "Logfire ends its span before the stream is read"
        else:
            assert decided["cached"] == 0, name


@pytest.mark.parametrize(("other", "order"), PAIRS)
def test_the_other_keeps_working_after_ours_is_uninstalled(phases: Phases) -> None:
    for name, call in phases["ours off"].items():
        assert call["hints"] == [False], name
        assert call["decisions"] == 0, name
        assert [span for span in call["spans"] if span["decision"]] == [], name
    theirs = {name: scopes - {OURS} for name, scopes in _scopes(phases["both"]).items()}
    assert _scopes(phases["ours off"]) == theirs
    assert any(theirs.values())


@pytest.mark.parametrize(("other", "order"), PAIRS)
def test_ours_works_again_after_a_second_install(phases: Phases) -> None:
    assert _carriers(phases["ours on again"]) == _carriers(phases["both"])
    assert all(call["decisions"] == 1 for call in phases["ours on again"].values())


@pytest.mark.parametrize(("other", "order"), PAIRS)
def test_ours_keeps_working_after_the_other_is_uninstalled(other: str, phases: Phases) -> None:
    for name, call in phases["theirs off"].items():
        assert call["hints"] == [True], name
        assert call["decisions"] == 1, name
    alone = (
        _carriers(phases["both"])
        if OTHERS[other].stays
        else {name: [(OURS, "chat stand-in")] for name in phases["theirs off"]}
    )
    assert _carriers(phases["theirs off"]) == alone


@pytest.mark.parametrize(("other", "order"), PAIRS)
def test_no_hint_and_no_span_after_both_are_uninstalled(phases: Phases) -> None:
    for name, call in phases["both off"].items():
        assert call["hints"] == [False], name
        assert call["decisions"] == 0, name
        assert OURS not in {span["scope"] for span in call["spans"]}, name


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_the_order_of_installation_makes_no_difference(other: str) -> None:
    _needs(other)
    before, after = (measure(other, order)["both"] for order in table.ORDERS)
    assert _carriers(before) == _carriers(after)
    assert _scopes(before) == _scopes(after)


@pytest.mark.slow
def test_the_table_in_the_docs_matches_the_measurement() -> None:
    for other in OTHERS:
        _needs(other)
    assert table.printed() == table.table(), "run: python -m tests.cohabitation.table"


@pytest.mark.parametrize("of", ["client", "class"])
def test_a_call_is_decided_through_a_function_captured_before_instrumenting(
    of: str, server: StandIn, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logfire restores such a function on a client; OpenInference restores one on the class."""
    with OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        holder = client if of == "client" else OpenAI
        taken = holder.request
        instrumentor = KVPolicyInstrumentor()
        instrumentor.instrument(
            tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
        )
        monkeypatch.setattr(holder, "request", taken, raising=False)
        try:
            client.chat.completions.create(
                model="stand-in", messages=[{"role": "user", "content": "hi"}]
            )
        finally:
            instrumentor.uninstrument()
    assert "kv_transfer_params" in server.last.body
    assert len(telemetry.decided) == 1
    assert telemetry.total("kvpolicy.decisions") == 1


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "not-sampled"])
def test_calls_are_decided_when_instrumentation_is_suppressed_sampled_or_not(
    sampler: Sampler, server: StandIn, instrumented: Telemetry
) -> None:
    tracer = TracerProvider(sampler=sampler).get_tracer("theirs")
    with (
        OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client,
        tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}),
        suppress_instrumentation(),
    ):
        client.chat.completions.create(
            model="stand-in", messages=[{"role": "user", "content": "hi"}]
        )
    assert "kv_transfer_params" in server.last.body
    assert instrumented.spans() == []
    assert instrumented.total("kvpolicy.decisions") == 1

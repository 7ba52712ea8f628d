"""``KV_CACHE_CHARS_PER_TOKEN=auto`` with a real client: learns from a server's token counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI

import otel_kvpolicy
from otel_kvpolicy import KVCacheLayeringPolicy, KVPolicyInstrumentor
from otel_kvpolicy.policy.calibration import MIN_OBSERVATIONS, STARTING_RATIOS
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

from . import surfaces
from .surfaces import ASYNC, SYNC

# The stand-in counts four bytes of UTF-8 as a token, so a Chinese character is 0.75 tokens.
CHINESE = "今天的天气很好，我们去公园散步。" * 50
PROSE = "The cache keeps what is asked for again. " * 50
GAUGE = "kvpolicy.chars_per_token.ratio"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

Body = dict[str, Any]


@pytest.fixture(autouse=True)
def auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_CACHE_CHARS_PER_TOKEN", "auto")


@pytest.fixture
def client(server: StandIn, instrumented: Telemetry) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="none") as client:
        yield client


def ask(client: OpenAI, content: Any, times: int = 1, **body: Any) -> None:
    messages = [{"role": "user", "content": content}]
    for _ in range(times):
        client.chat.completions.create(**{"model": "stand-in", "messages": messages, **body})


def last(telemetry: Telemetry) -> dict[str, Any]:
    return dict(telemetry.decided[-1].attributes or {})


@pytest.mark.parametrize("surface", [*SYNC, *ASYNC], ids=lambda surface: surface.__name__)
def test_every_surface_teaches_the_ratio(
    surface: Callable[..., Any], server: StandIn, instrumented: Telemetry
) -> None:
    messages = [{"role": "user", "content": CHINESE}]
    for _ in range(MIN_OBSERVATIONS + 1):
        surfaces.run(surface, server.base_url, messages=messages)
    attributes = last(instrumented)
    assert attributes["kvpolicy.script"] == "wide"
    assert attributes["kvpolicy.chars_per_token"] == pytest.approx(4 / 3, rel=0.05)
    counted = attributes["gen_ai.usage.input_tokens"]
    assert attributes["kvpolicy.signals.total_tokens"] == pytest.approx(counted, rel=0.05)


def test_the_starting_ratio_is_used_until_the_server_has_counted(
    client: OpenAI, instrumented: Telemetry
) -> None:
    ask(client, CHINESE)
    assert last(instrumented)["kvpolicy.chars_per_token"] == STARTING_RATIOS["wide"]


def test_a_learned_ratio_changes_the_decision(client: OpenAI, instrumented: Telemetry) -> None:
    text = "нет да " * 400  # 2,800 characters: 1,120 tokens to begin with, 1,200 by the count
    otel_kvpolicy.configure(min_context_tokens=1150)
    ask(client, text)
    assert last(instrumented)["kvpolicy.decision"] == "skip"
    ask(client, text, MIN_OBSERVATIONS)
    assert last(instrumented)["kvpolicy.decision"] == "store"


def test_servers_models_and_kinds_of_text_learn_apart(
    client: OpenAI, instrumented: Telemetry
) -> None:
    ask(client, CHINESE, MIN_OBSERVATIONS)
    ask(client, PROSE)
    assert last(instrumented)["kvpolicy.script"] == "prose"
    assert last(instrumented)["kvpolicy.chars_per_token"] == STARTING_RATIOS["prose"]
    with (
        StandIn(models=("stand-in", "second")) as other,
        OpenAI(base_url=other.base_url, api_key="none") as client,
    ):
        ask(client, CHINESE)
        assert last(instrumented)["kvpolicy.chars_per_token"] == STARTING_RATIOS["wide"]
        ask(client, CHINESE, MIN_OBSERVATIONS)
        ask(client, CHINESE, model="second")
        assert last(instrumented)["kvpolicy.chars_per_token"] == STARTING_RATIOS["wide"]


def test_the_ratio_is_a_gauge(server: StandIn, client: OpenAI, instrumented: Telemetry) -> None:
    ask(client, CHINESE, MIN_OBSERVATIONS)
    [(attributes, value)] = instrumented.points(GAUGE)
    assert attributes == {
        "gen_ai.request.model": "stand-in",
        "server.address": "127.0.0.1",
        "kvpolicy.script": "wide",
    }
    assert value == pytest.approx(4 / 3, rel=0.05)


@pytest.mark.parametrize(
    "body",
    [
        {"content": [{"type": "text", "text": PROSE}, IMAGE]},
        {"content": [IMAGE]},
        {"content": "short"},
    ],
    ids=["text and image", "image", "short prompt"],
)
def test_calls_whose_tokens_are_not_those_of_their_text_teach_nothing(
    client: OpenAI, instrumented: Telemetry, body: Body
) -> None:
    ask(client, times=MIN_OBSERVATIONS, **body)
    assert instrumented.points(GAUGE) == []
    assert instrumented.total("kvpolicy.errors") == 0


def test_text_parts_teach(client: OpenAI, instrumented: Telemetry) -> None:
    ask(client, [{"type": "text", "text": CHINESE}], MIN_OBSERVATIONS)
    assert len(instrumented.points(GAUGE)) == 1


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_text_that_only_the_server_has_teaches_nothing(
    client: OpenAI, instrumented: Telemetry, field: str
) -> None:
    earlier = client.responses.create(model="stand-in", input="hi")
    for _ in range(MIN_OBSERVATIONS):
        client.responses.create(model="stand-in", input=PROSE, extra_body={field: earlier.id})
    assert instrumented.points(GAUGE) == []


def test_a_stream_without_usage_teaches_nothing(client: OpenAI, instrumented: Telemetry) -> None:
    for _ in range(MIN_OBSERVATIONS):
        messages: Any = [{"role": "user", "content": PROSE}]
        for _ in client.chat.completions.create(model="stand-in", messages=messages, stream=True):
            pass
    assert instrumented.points(GAUGE) == []


def test_nothing_is_learned_by_default(
    client: OpenAI, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KV_CACHE_CHARS_PER_TOKEN")
    ask(client, CHINESE, MIN_OBSERVATIONS + 1)
    assert last(instrumented)["kvpolicy.chars_per_token"] == 4.0
    assert "kvpolicy.script" not in last(instrumented)
    assert instrumented.points(GAUGE) == []


def test_the_adaptive_rule_and_its_shadow_use_the_ratio(
    client: OpenAI, instrumented: Telemetry
) -> None:
    otel_kvpolicy.configure(rule="adaptive", shadow=True)
    ask(client, CHINESE, MIN_OBSERVATIONS + 1)
    attributes = last(instrumented)
    assert attributes["kvpolicy.rule"] == "adaptive"
    assert attributes["kvpolicy.chars_per_token"] == pytest.approx(4 / 3, rel=0.05)
    counted = attributes["gen_ai.usage.input_tokens"]
    assert attributes["kvpolicy.signals.total_tokens"] == pytest.approx(counted, rel=0.05)


class OwnRule(KVCacheLayeringPolicy):
    """A rule whose ``decide`` is not told the model."""

    rule = "own"

    def decide(self, **parts: Any) -> Any:
        return super().decide(**parts)


@pytest.mark.parametrize(
    ("policy", "setting", "ratio"),
    [
        (KVCacheLayeringPolicy(chars_per_token="auto"), "4", 4 / 3),
        (KVCacheLayeringPolicy(chars_per_token=2), "auto", 2.0),
        (KVCacheLayeringPolicy(), "auto", 4 / 3),
        (OwnRule(), "auto", 4.0),
    ],
    ids=["auto in code", "number in code", "auto by setting", "own decide"],
)
def test_a_policy_in_code(
    policy: KVCacheLayeringPolicy,
    setting: str,
    ratio: float,
    server: StandIn,
    telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KV_CACHE_CHARS_PER_TOKEN", setting)
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(
        policy=policy,
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
    )
    try:
        with OpenAI(base_url=server.base_url, api_key="none") as client:
            ask(client, CHINESE, MIN_OBSERVATIONS + 1)
    finally:
        instrumentor.uninstrument()
    assert last(telemetry)["kvpolicy.chars_per_token"] == pytest.approx(ratio, rel=0.05)

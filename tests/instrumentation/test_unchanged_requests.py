"""The body differs only in the hint, byte for byte. Result and exception are the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from openai import OpenAI
from opentelemetry.sdk.trace import TracerProvider

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry


class Outcome:
    """The bytes that a call sent, and its result or exception."""

    def __init__(self, client: OpenAI, server: StandIn, call: dict[str, Any]) -> None:
        server.requests.clear()
        self.error: BaseException | None = None
        self.result: Any = None
        try:
            self.result = client.chat.completions.create(**call)
        except Exception as error:
            self.error = error
        self.sent = [request.raw for request in server.requests]

    def same_end(self, other: Outcome) -> bool:
        return type(self.error) is type(other.error) and type(self.result) is type(other.result)


@pytest.fixture
def client(server: StandIn) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        yield client


def with_and_without(client: OpenAI, server: StandIn, make: Any) -> tuple[Outcome, Outcome]:
    instrumentor = KVPolicyInstrumentor()
    plain = Outcome(client, server, make())
    instrumentor.instrument(tracer_provider=TracerProvider())
    try:
        return Outcome(client, server, make()), plain
    finally:
        instrumentor.uninstrument()


def without_hint(raw: bytes) -> bytes:
    """Return the body as the client writes it without the hint: compact and not ASCII-only."""
    body = json.loads(raw)
    params = body["kv_transfer_params"]
    for key in ("lmcache.skip_save", "lmcache.max_offload_tokens"):
        params.pop(key, None)
    if not params:
        del body["kv_transfer_params"]
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


text = st.text(st.characters(codec="utf-8"), max_size=30)
scalar = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "strange"]),
        "content": value,
    },
    optional={"name": text, "tool_calls": st.lists(value, max_size=2), "extra": value},
)
body = st.fixed_dictionaries(
    {"messages": st.lists(message | value, max_size=5)},
    optional={
        "temperature": st.integers(0, 2),
        "tools": st.lists(value, max_size=2),
        "seed": st.integers(0, 99),
        "user": text,
    },
)
extra = st.dictionaries(st.text("abcdef", min_size=1, max_size=5), value, max_size=3)
params = st.dictionaries(
    st.sampled_from(["do_remote_decode", "lmcache.tag.a", "remote_host"]),
    scalar,
    min_size=1,
    max_size=2,
)


@given(call=body, extra_body=st.none() | extra, given_params=st.none() | params)
@example(
    call={"messages": []},
    extra_body={"messages": [{"role": "assistant", "content": "over"}]},
    given_params=None,
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
def test_the_body_differs_only_in_the_hint(
    client: OpenAI, server: StandIn, call: Any, extra_body: Any, given_params: Any
) -> None:
    if given_params is not None:
        extra_body = {**(extra_body or {}), "kv_transfer_params": given_params}

    def make() -> dict[str, Any]:
        return {
            "model": "stand-in",
            "max_tokens": 1,
            **copy.deepcopy(call),
            "extra_body": copy.deepcopy(extra_body),
        }

    hinted, plain = with_and_without(client, server, make)
    assert hinted.same_end(plain), (hinted.error, plain.error)
    assert len(hinted.sent) == len(plain.sent)
    for hinted_body, plain_body in zip(hinted.sent, plain.sent, strict=True):
        assert json.loads(hinted_body)["kv_transfer_params"]["lmcache.skip_save"] in {True, False}
        assert without_hint(hinted_body) == plain_body


class NotSerializable:
    """An object that cannot be serialized."""


def generator() -> Iterator[dict[str, str]]:
    yield {"role": "user", "content": "hi"}


def nested_parts(levels: int) -> Any:
    nested: Any = "x"
    for _ in range(levels):
        nested = {"type": "text", "text": nested}
    return nested


BAD_CALLS: dict[str, Any] = {
    "none": lambda: {"messages": None},
    "generator": lambda: {"messages": generator()},
    "text": lambda: {"messages": "hi"},
    "number": lambda: {"messages": 7},
    "missing_content": lambda: {"messages": [{"role": "user"}]},
    "objects": lambda: {"messages": [NotSerializable()]},
    "none_inside": lambda: {"messages": [None, {"role": "user", "content": None}]},
    "keys_that_are_numbers": lambda: {"messages": [{"role": "user", "content": "hi", 7: "seven"}]},
    "extra_keys_that_are_numbers": lambda: {"messages": [], "extra_body": {7: "seven"}},
    "surrogates": lambda: {"messages": [{"role": "user", "content": "\ud800"}]},
    "not_a_number": lambda: {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": float("nan"),
    },
    "bytes": lambda: {"messages": [{"role": "user", "content": b"hi"}]},
    "ten_megabytes": lambda: {"messages": [{"role": "user", "content": "x" * 10_000_000}]},
    "deep": lambda: {"messages": [{"role": "user", "content": [nested_parts(200)]}]},
    "too_deep": lambda: {"messages": [{"role": "user", "content": [nested_parts(20_000)]}]},
    "body_that_is_not_a_mapping": lambda: {
        "messages": [{"role": "user", "content": "hi"}],
        "extra_body": ["x"],
    },
    "empty_extra_body": lambda: {"messages": [{"role": "user", "content": "hi"}], "extra_body": {}},
    "params_that_are_text": lambda: {
        "messages": [{"role": "user", "content": "hi"}],
        "extra_body": {"kv_transfer_params": "x"},
    },
    "params_that_are_none": lambda: {
        "messages": [{"role": "user", "content": "hi"}],
        "extra_body": {"kv_transfer_params": None},
    },
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_has_the_same_result_with_and_without_instrumentation(
    client: OpenAI, server: StandIn, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    hinted, plain = with_and_without(
        client, server, lambda: {"model": "stand-in", "max_tokens": 1, **BAD_CALLS[name]()}
    )
    assert hinted.same_end(plain), (hinted.error, plain.error)
    assert str(hinted.error) == str(plain.error)
    assert len(hinted.sent) == len(plain.sent)
    for hinted_body, plain_body in zip(hinted.sent, plain.sent, strict=True):
        if hinted_body != plain_body:
            bodies = [json.loads(hinted_body), json.loads(plain_body)]
            for each_body in bodies:
                each_body.pop("kv_transfer_params", None)
            assert bodies[0] == bodies[1]
    assert "failed with" not in caplog.text


def test_post_with_a_body_that_is_not_a_mapping_is_not_touched(
    client: OpenAI, server: StandIn, instrumented: Telemetry
) -> None:
    for content in ([1, 2], "text", None):
        with pytest.raises(Exception, match="40"):
            client.post("/chat/completions", body=content, cast_to=object)
    assert instrumented.total("kvpolicy.errors") == 0
    assert all(b"lmcache" not in request.raw for request in server.requests)


def test_a_body_passed_to_post_keeps_the_order_of_its_fields(
    client: OpenAI, server: StandIn, instrumented: Telemetry
) -> None:
    given = {
        "kv_transfer_params": {"x": 1},
        "model": "stand-in",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
    }
    client.post("/chat/completions", body=given, cast_to=object)
    assert list(server.last.body) == ["kv_transfer_params", "model", "messages", "max_tokens"]
    assert given["kv_transfer_params"] == {"x": 1}


def test_the_result_is_the_object_that_the_client_made(
    client: OpenAI, server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openai._base_client import SyncAPIClient

    made: list[Any] = []
    original = SyncAPIClient._process_response

    def keep(*args: Any, **kwargs: Any) -> Any:
        made.append(original(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(SyncAPIClient, "_process_response", keep)
    call: dict[str, Any] = {
        "model": "stand-in",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
    }
    assert client.chat.completions.create(**call) is made[-1]
    assert client.chat.completions.with_raw_response.create(**call) is made[-1]
    stream = client.chat.completions.create(**call, stream=True)
    assert stream is made[-1]
    made[-1].close()


def test_the_server_address_follows_the_base_url_of_the_client(
    client: OpenAI, server: StandIn, instrumented: Telemetry
) -> None:
    question = {"model": "stand-in", "messages": [{"role": "user", "content": "hi"}]}
    local, named = server.base_url, server.base_url.replace("127.0.0.1", "localhost")
    for url in (local, named, local):
        client.base_url = url
        client.chat.completions.create(**question)  # type: ignore[call-overload]
    asked = [(span.attributes or {})["server.address"] for span in instrumented.decided]
    assert asked == ["127.0.0.1", "localhost", "127.0.0.1"]

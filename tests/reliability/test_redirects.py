"""A redirect carries the hint only to a server that may be sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.hints.targets import Origin, Targets
from otel_kvpolicy.instrumentation.redirects import Added, RedirectGuard
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.standin.loopback import LoopbackServer, address, listen
from tests.conftest import Telemetry, attributes

CALL: dict[str, Any] = {
    "model": "stand-in",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}
SKIP = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}


@contextmanager
def redirecting(url: str, status: int) -> Iterator[str]:
    """Run a server under another host name that redirects every call to ``url``."""

    async def redirect(request: Request) -> Response:
        return RedirectResponse(f"{url}{request.url.path}", status)

    with serving(redirect) as base_url:
        yield base_url


@contextmanager
def serving(answer: Callable[[Request], Any]) -> Iterator[str]:
    """Run a server that is called localhost. Yields its base URL."""
    listener = listen("localhost", 0)
    server = LoopbackServer(
        Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])]),
        [listener],
        "redirecting",
    )
    server.start()
    try:
        yield address(listener).replace("127.0.0.1", "localhost") + "/v1"
    finally:
        server.close()


PATH = "/v1/chat/completions"
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "stand-in",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "ok"},
        }
    ],
}

Seen = list[tuple[str, dict[str, Any]]]


@contextmanager
def hopping(hops: Sequence[str], status: int) -> Iterator[tuple[str, Seen]]:
    """A server that redirects its calls to each of ``hops`` in turn, then answers.

    Yields its base URL, and a list of the paths and bodies that it gets.
    """
    seen: Seen = []

    async def answer(request: Request) -> Response:
        seen.append((request.url.path, await request.json()))
        if len(seen) <= len(hops):
            return RedirectResponse(hops[len(seen) - 1], status)
        return JSONResponse(ANSWER)

    with serving(answer) as base_url:
        yield base_url, seen


OTHER = {"do_remote_decode": True}


def sync_call(base_url: str, **more: Any) -> None:
    with OpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
        assert client.chat.completions.create(**CALL, **more).id


def sync_stream(base_url: str, **more: Any) -> None:
    with (
        OpenAI(base_url=base_url, api_key="key", max_retries=0) as client,
        client.chat.completions.create(**CALL, **more, stream=True) as stream,
    ):
        assert [chunk.id for chunk in stream]


def async_call(base_url: str, **more: Any) -> None:
    async def run() -> None:
        async with AsyncOpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
            assert (await client.chat.completions.create(**CALL, **more)).id

    asyncio.run(run())


def raw_call(base_url: str, **more: Any) -> None:
    with OpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(**CALL, **more)
        assert raw.http_response.history
        assert raw.parse().id


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("send", [sync_call, sync_stream, async_call, raw_call])
def test_a_redirect_to_a_host_that_is_not_allowed_leaves_the_hint_behind(
    server: StandIn,
    instrumented: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    send: Callable[[str], None],
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    with redirecting(server.url, status) as base_url:
        send(base_url)
    assert len(server.requests) == 1
    assert {**CALL, **server.last.body} == server.last.body
    assert "kv_transfer_params" not in server.last.body
    assert "authorization" not in server.last.headers, (
        "the client sends the key to the first host only"
    )
    [span] = instrumented.decided
    assert attributes(span)["server.address"] == "localhost"
    assert attributes(span)["kvpolicy.hint.outcome"] == "excluded_target"
    assert instrumented.total("kvpolicy.decisions") == 1
    assert instrumented.total("kvpolicy.errors") == 0


def test_the_body_behind_the_redirect_is_the_callers_byte_for_byte(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {"messages": [{"role": "user", "content": "h\u00e9 \u4f60"}], "temperature": 0.1}
    lengths = []
    for targets in ("127.0.0.1", "localhost"):  # first without a hint from the start
        monkeypatch.setenv("KV_CACHE_TARGETS", targets)
        with (
            redirecting(server.url, 307) as base_url,
            OpenAI(base_url=base_url, api_key="key") as client,
        ):
            assert client.chat.completions.create(**{**CALL, **call}).id
        lengths.append((server.last.headers["content-length"], server.last.body))
    assert lengths[0] == lengths[1]


def test_a_redirect_restores_what_the_caller_wrote_into_the_field(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    with redirecting(server.url, 307) as base_url:
        sync_call(base_url, extra_body={"kv_transfer_params": OTHER})
    assert server.last.body == {**CALL, "kv_transfer_params": OTHER}


@pytest.mark.parametrize("targets", ["localhost,127.0.0.1", "auto", "all"])
def test_a_redirect_to_an_allowed_host_keeps_the_hint(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch, targets: str
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", targets)
    with redirecting(server.url, 307) as base_url:
        sync_call(base_url)
    assert server.last.body == {**CALL, "kv_transfer_params": SKIP}
    [span] = instrumented.decided
    assert attributes(span)["kvpolicy.hint.outcome"] == "applied"


def test_a_redirect_to_a_server_of_another_dialect_leaves_the_hint_behind(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_DIALECT", "lmcache,vllm-offload@127.0.0.1")
    with redirecting(server.url, 307) as base_url:
        sync_call(base_url)
    assert server.last.body == CALL


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("send", [sync_call, async_call])
def test_a_redirect_within_the_origin_keeps_the_hint(
    server: StandIn,
    instrumented: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    send: Callable[[str], None],
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    with hopping([f"/moved{PATH}"], status) as (base_url, seen):
        send(base_url)
    assert [path for path, _ in seen] == [PATH, f"/moved{PATH}"]
    assert all(body["kv_transfer_params"] == SKIP for _, body in seen)
    [span] = instrumented.decided
    assert attributes(span)["kvpolicy.hint.outcome"] == "applied"


def test_the_second_redirect_of_a_chain_is_checked_too(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    with hopping([f"/moved{PATH}", f"{server.url}{PATH}"], 307) as (base_url, seen):
        sync_call(base_url)
    assert [body.get("kv_transfer_params") for _, body in seen] == [SKIP, SKIP]
    assert server.last.body == CALL


def test_a_hint_that_was_left_behind_does_not_come_back(
    instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    first: list[str] = []
    with hopping(first, 307) as (base_url, seen):
        home = base_url.removesuffix("/v1")
        with hopping([f"{home}/home{PATH}"], 307) as (elsewhere, seen_elsewhere):
            first.append(f"{elsewhere.removesuffix('/v1')}{PATH}".replace("localhost", "127.0.0.1"))
            sync_call(base_url)
    assert [(path, body.get("kv_transfer_params")) for path, body in seen] == [
        (PATH, SKIP),
        (f"/home{PATH}", None),
    ]
    assert [body.get("kv_transfer_params") for _, body in seen_elsewhere] == [None]


def test_a_client_of_the_caller_that_follows_no_redirect_still_follows_none(
    server: StandIn, instrumented: Telemetry
) -> None:
    with (
        redirecting(server.url, 307) as base_url,
        httpx2.Client(follow_redirects=False) as http,
        pytest.raises(APIStatusError) as raised,
    ):
        OpenAI(base_url=base_url, api_key="key", http_client=http).chat.completions.create(**CALL)
    assert raised.value.status_code == 307
    assert not server.requests


def test_a_legacy_httpx_client_leaves_the_hint_behind_too(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpx: Any = pytest.importorskip("httpx")
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    with (
        redirecting(server.url, 307) as base_url,
        httpx.Client(follow_redirects=True) as http,
    ):
        client = OpenAI(base_url=base_url, api_key="key", http_client=http)
        assert client.chat.completions.create(**CALL).id
    assert server.last.body == CALL


def test_a_request_of_the_application_itself_keeps_its_body(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    body = {**CALL, "kv_transfer_params": SKIP}
    with redirecting(server.url, 307) as base_url:
        sync_call(base_url)  # patches the HTTP client
        with httpx2.Client(follow_redirects=True) as http:
            assert http.post(f"{base_url}/chat/completions", json=body).status_code == 200
    assert server.last.body == body


def test_uninstrumenting_restores_the_http_client(server: StandIn, telemetry: Telemetry) -> None:
    method = httpx2.Client._build_redirect_request
    KVPolicyInstrumentor().instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
    )
    try:
        sync_call(server.base_url)
        assert httpx2.Client._build_redirect_request is not method
    finally:
        KVPolicyInstrumentor().uninstrument()
    assert httpx2.Client._build_redirect_request is method


def test_a_client_whose_redirects_cannot_be_checked_gets_no_hint() -> None:
    with pytest.raises(AttributeError, match="object"):
        RedirectGuard().cover(object)


def test_a_failure_of_the_check_is_reported_and_the_call_goes_on(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    monkeypatch.setattr(Added, "checked", lambda *_: 1 / 0)
    with redirecting(server.url, 307) as base_url:
        sync_call(base_url)
    assert instrumented.total("kvpolicy.errors") == 1
    [span] = instrumented.decided
    assert attributes(span)["kvpolicy.hint.outcome"] == "applied"


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}"])
def test_a_redirected_request_without_a_hint_goes_out_as_it_is(content: bytes) -> None:
    added = Added("f", {}, (), Origin("http", "there", 80))
    request = httpx2.Request("POST", "http://elsewhere/", content=content)
    assert added.checked(request, Targets("there"), lambda _: True) == (request, False)


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize(
    ("targets", "kept"), [("localhost", False), ("localhost,127.0.0.1", True), ("auto", True)]
)
def test_a_redirect_carries_the_affinity_header_to_allowed_hosts_only(
    server: StandIn,
    instrumented: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    targets: str,
    kept: bool,
    mode: str,
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", targets)
    monkeypatch.setenv("KV_CACHE_MODE", mode)
    monkeypatch.setenv("KV_CACHE_AFFINITY_HEADER", "x-kv-affinity")
    monkeypatch.setenv("KV_CACHE_AFFINITY_KEY", "0" * 32)
    call = {**CALL, "messages": [{"role": "system", "content": "x" * 8000}, *CALL["messages"]]}
    with (
        redirecting(server.url, 307) as base_url,
        OpenAI(base_url=base_url, api_key="key") as client,
    ):
        client.chat.completions.create(**call)
        client.chat.completions.create(**call)
    assert ("x-kv-affinity" in server.last.headers) is (kept and mode == "enforce")


def test_a_header_of_the_callers_own_is_left_to_the_client(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    monkeypatch.setenv("KV_CACHE_AFFINITY_HEADER", "x-kv-affinity")
    with redirecting(server.url, 307) as base_url:
        sync_call(base_url, extra_headers={"x-kv-affinity": "mine"})
    assert server.last.headers["x-kv-affinity"] == "mine"


def test_if_the_first_host_is_excluded_the_second_gets_no_hint_either(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "127.0.0.1")
    with (
        redirecting(server.url, 307) as base_url,
        OpenAI(base_url=base_url, api_key="key") as client,
    ):
        assert client.chat.completions.create(**CALL).id
    assert server.last.body == CALL


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_turns_into_a_get_carries_no_body(
    server: StandIn, instrumented: Telemetry, status: int
) -> None:
    with (
        redirecting(server.url, status) as base_url,
        OpenAI(base_url=base_url, api_key="key", max_retries=0) as client,
        pytest.raises(APIStatusError) as raised,
    ):
        client.chat.completions.create(**CALL)
    assert raised.value.status_code == 405, "a GET"
    assert not server.requests


def test_a_rejection_behind_a_redirect_repeats_the_call_without_the_hint(
    instrumented: Telemetry,
) -> None:
    with (
        StandIn(strict="openai") as vendor,
        redirecting(vendor.url, 307) as base_url,
        OpenAI(base_url=base_url, api_key="key", max_retries=0) as client,
    ):
        assert client.chat.completions.create(**CALL).id
        assert client.chat.completions.create(**CALL).id
        assert ["kv_transfer_params" in request.body for request in vendor.requests] == [
            True,
            False,
            False,
        ]
    assert [attributes(span)["kvpolicy.hint.outcome"] for span in instrumented.decided] == [
        "rejected",
        "rejected",
    ]


def test_a_url_in_the_query_does_not_name_the_server(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "elsewhere.example")
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.post("/chat/completions?next=http://elsewhere.example/", body=CALL, cast_to=object)
        assert server.last.body == CALL
        monkeypatch.setenv("KV_CACHE_TARGETS", "127.0.0.1")
        client.post("/chat/completions?next=http://elsewhere.example/", body=CALL, cast_to=object)
        assert server.last.body["kv_transfer_params"] == SKIP

"""Redirects: the hint follows the request body, as HTTP prescribes for each status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import APIStatusError, OpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

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

    listener = listen("localhost", 0)
    server = LoopbackServer(
        Starlette(routes=[Route("/{path:path}", redirect, methods=["GET", "POST"])]),
        [listener],
        "redirecting",
    )
    server.start()
    try:
        yield address(listener).replace("127.0.0.1", "localhost") + "/v1"
    finally:
        server.close()


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_that_repeats_the_body_repeats_the_hint(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "localhost")
    with (
        redirecting(server.url, status) as base_url,
        OpenAI(base_url=base_url, api_key="key") as client,
    ):
        assert client.chat.completions.create(**CALL).id
    assert server.last.body == {**CALL, "kv_transfer_params": SKIP}
    assert "authorization" not in server.last.headers, (
        "the client sends the key to the first host only"
    )
    [span] = instrumented.decided
    assert attributes(span)["server.address"] == "localhost"
    assert instrumented.total("kvpolicy.decisions") == 1


def test_no_hint_is_sent_through_an_excluded_host(
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
def test_a_redirect_that_becomes_a_get_carries_no_hint(
    server: StandIn, instrumented: Telemetry, status: int
) -> None:
    with (
        redirecting(server.url, status) as base_url,
        OpenAI(base_url=base_url, api_key="key", max_retries=0) as client,
        pytest.raises(APIStatusError) as raised,
    ):
        client.chat.completions.create(**CALL)
    assert raised.value.status_code == 405, "the client sent a GET"
    assert not server.requests


def test_a_vendor_behind_a_redirect_that_rejects_the_hint_is_not_sent_it_again(
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


def test_a_url_in_the_query_does_not_change_the_target(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "elsewhere.example")
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.post("/chat/completions?next=http://elsewhere.example/", body=CALL, cast_to=object)
        assert server.last.body == CALL
        monkeypatch.setenv("KV_CACHE_TARGETS", "127.0.0.1")
        client.post("/chat/completions?next=http://elsewhere.example/", body=CALL, cast_to=object)
        assert server.last.body["kv_transfer_params"] == SKIP

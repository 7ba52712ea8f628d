"""The URL decides whether the hint is sent, whatever carries the request."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, OpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from otel_kvpolicy.standin.loopback import LoopbackServer
from tests.conftest import Telemetry

CALL: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SKIP = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
    ],
}


class Answering(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """A transport of the application that answers by itself, first with a redirect if asked."""

    def __init__(self, redirect: str | None = None) -> None:
        self.redirect = redirect
        self.bodies: list[dict[str, Any]] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.read()))
        if self.redirect is not None and len(self.bodies) == 1:
            return httpx2.Response(307, headers={"location": self.redirect}, request=request)
        return httpx2.Response(200, json=ANSWER, request=request)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.handle_request(request)


@pytest.mark.parametrize(
    ("targets", "base_url", "sent"),
    [
        ("gb10.lan", "http://gb10.lan:8000/v1", True),
        ("gb10.lan", "http://GB10.LAN./v1", True),
        ("gb10.lan", "http://other.lan/v1", False),
        ("auto", "http://other.lan/v1", True),
        ("auto", "https://api.openai.com/v1", False),
        ("bücher.lan:8000", "http://bücher.lan:8000/v1", True),
        ("[::1]:8000", "http://[::1]:8000/v1", True),
    ],
)
def test_a_transport_of_the_application_does_not_change_the_target(
    instrumented: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    targets: str,
    base_url: str,
    sent: bool,
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", targets)
    transport = Answering()
    with httpx2.Client(transport=transport) as http:
        OpenAI(base_url=base_url, api_key="key", http_client=http).chat.completions.create(**CALL)

    async def run() -> None:
        async with httpx2.AsyncClient(transport=transport) as http:
            client = AsyncOpenAI(base_url=base_url, api_key="key", http_client=http)
            await client.chat.completions.create(**CALL)

    asyncio.run(run())
    assert [body.get("kv_transfer_params") for body in transport.bodies] == [
        SKIP if sent else None
    ] * 2


def test_a_transport_of_the_application_is_guarded_against_redirects(
    instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "gb10.lan")
    transport = Answering(redirect="http://other.lan/v1/chat/completions")
    with httpx2.Client(transport=transport, follow_redirects=True) as http:
        client = OpenAI(base_url="http://gb10.lan/v1", api_key="key", http_client=http)
        client.chat.completions.create(**CALL)
    assert [body.get("kv_transfer_params") for body in transport.bodies] == [SKIP, None]


def test_a_subclass_that_builds_redirects_itself_is_guarded_too(
    instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(httpx2.Client):
        def _build_redirect_request(
            self, request: httpx2.Request, response: httpx2.Response
        ) -> httpx2.Request:
            return super()._build_redirect_request(request, response)

    monkeypatch.setenv("KV_CACHE_TARGETS", "gb10.lan")
    transport = Answering(redirect="https://gb10.lan.evil.example/v1/chat/completions")
    with Own(transport=transport, follow_redirects=True) as http:
        client = OpenAI(base_url="http://gb10.lan/v1", api_key="key", http_client=http)
        client.chat.completions.create(**CALL)
    assert [body.get("kv_transfer_params") for body in transport.bodies] == [SKIP, None]


@pytest.mark.parametrize(("targets", "sent"), [("localhost", True), ("gb10.lan", False)])
def test_a_unix_socket_is_named_by_the_host_of_its_url(
    tmp_path: Path,
    instrumented: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    targets: str,
    sent: bool,
) -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: Request) -> Response:
        if request.url.path.startswith("/v1"):
            return RedirectResponse(f"/moved{request.url.path}", 307)
        bodies.append(await request.json())
        return JSONResponse(ANSWER)

    path = str(tmp_path / "vllm.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    server = LoopbackServer(
        Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])]), [listener], "unix"
    )
    server.start()
    monkeypatch.setenv("KV_CACHE_TARGETS", targets)
    try:
        transport = httpx2.HTTPTransport(uds=path)
        with httpx2.Client(transport=transport, follow_redirects=True) as http:
            client = OpenAI(base_url="http://localhost/v1", api_key="key", http_client=http)
            assert client.chat.completions.create(**CALL).id
    finally:
        server.close()
    assert [body.get("kv_transfer_params") for body in bodies] == [SKIP if sent else None]

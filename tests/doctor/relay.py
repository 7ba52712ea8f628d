"""A proxy that records requests and edits answers, for faults that the stand-in does not have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otel_kvpolicy.standin.loopback import LoopbackServer, address, listen

CHAT = "/v1/chat/completions"


class Exchange(NamedTuple):
    """A request, and the answer of the server behind the proxy."""

    body: Any
    answer: httpx2.Response

    @property
    def prompt(self) -> str:
        text: str = self.body["messages"][0]["content"]
        return text

    @property
    def answered(self) -> Any:
        """The answer's JSON."""
        return self.answer.json()


Edit = Callable[[Exchange], Any]
"""Returns what is answered instead: a response, text, or a JSON value; None for no change."""


class Relay:
    """The proxy.

    Args:
        target: URL of the server behind it.
        edits: an edit for each path; ``chat`` stands for the chat completions.

    Attributes:
        url: where it listens.
        base_url: ``url`` with ``/v1``.
        asked: method and path of each request.
    """

    def __init__(self, target: str, **edits: Edit) -> None:
        self._target = target
        self._edits = {CHAT if name == "chat" else f"/{name}": edit for name, edit in edits.items()}
        self._client = httpx2.Client(timeout=30, trust_env=False)
        self.asked: list[tuple[str, str]] = []
        listener = listen("127.0.0.1", 0)
        self.url = address(listener)
        self.base_url = f"{self.url}/v1"
        app = Starlette(
            routes=[
                Route(
                    "/{path:path}", self._serve, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]
                )
            ]
        )
        self._server = LoopbackServer(app, [listener], "relay")

    async def _serve(self, request: Request) -> Response:
        path, raw = request.url.path, await request.body()
        self.asked.append((request.method, path))
        headers = {"content-type": "application/json"} if raw else {}
        answer = await asyncio.to_thread(
            self._client.request, request.method, self._target + path, content=raw, headers=headers
        )
        edit = self._edits.get(path)
        changed = edit(Exchange(json.loads(raw) if raw else None, answer)) if edit else None
        if isinstance(changed, Response):
            return changed
        content = (
            answer.content
            if changed is None
            else changed
            if isinstance(changed, str)
            else json.dumps(changed)
        )
        return Response(content, answer.status_code)

    def __enter__(self) -> Relay:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self._client.close()

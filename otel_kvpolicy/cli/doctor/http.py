"""One server over HTTP, its failures as one line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2

from ..metrics_page import Page


class ServerError(Exception):
    """A server cannot be asked. Its text is one line for people."""


class RefusedError(Exception):
    """A server refuses a request as malformed (400 or 422). Its text is what the server said, on one line and shortened."""


class Http:
    """Requests to one server.

    Attributes:
        name: its URL as it is shown, without a password that may stand in it.

    Args:
        base: its URL without a path.
        api_key: bearer token, where one is needed.
        key_hint: how a key is given, for the line that says that one is asked for.
        timeout: seconds for each request.
    """

    def __init__(self, base: str, api_key: str | None, timeout: float, *, key_hint: str) -> None:
        self._base = base.rstrip("/")
        self.name = str(httpx2.URL(self._base).copy_with(username=None, password=None)).rstrip("/")
        self._key = f"another API key: {key_hint}" if api_key else f"an API key: {key_hint}"
        self._timeout = timeout
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.Client(headers=headers, timeout=timeout)

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    def _send(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        try:
            return self._client.request(method, self._base + path, json=body)
        except httpx2.TimeoutException:
            raise ServerError(
                f"{self.name}{path} did not answer within {self._timeout:g} s (--timeout)"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServerError(
                f"cannot reach {self.name}: {str(error) or type(error).__name__}"
            ) from None

    def get(self, path: str) -> Any:
        """The parsed answer; None where the server has no such page.

        Raises:
            ServerError: it cannot be reached, or asks for another key.
        """
        response = self._send("GET", path)
        self._check_key(response)
        if response.status_code != 200:
            return None
        try:
            return json.loads(response.content)
        except ValueError:
            return None

    def page(self) -> Page | None:
        """Its ``/metrics``; None where there is none."""
        response = self._send("GET", "/metrics")
        if response.status_code != 200:
            return None
        try:
            return Page.parse(response.text)
        except ValueError:
            return None

    def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a chat completion.

        Raises:
            RefusedError: the server takes the body for malformed.
            ServerError: anything else went wrong.
        """
        response = self._send("POST", "/v1/chat/completions", body)
        self._check_key(response)
        if response.status_code in {400, 422}:
            raise RefusedError(f"{response.status_code} {_line(response.text, 160)}")
        if response.status_code != 200:
            raise ServerError(
                f"{self.name}/v1/chat/completions answered {response.status_code}: {_line(response.text, 120)}"
            )
        try:
            answer = json.loads(response.content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ServerError(f"{self.name}/v1/chat/completions answered no JSON object")
        return answer

    def _check_key(self, response: httpx2.Response) -> None:
        if response.status_code in {401, 403}:
            raise ServerError(
                f"{self.name} answers {response.status_code} and asks for {self._key}"
            )


def _line(text: str, limit: int) -> str:
    """The beginning of a text, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}…"

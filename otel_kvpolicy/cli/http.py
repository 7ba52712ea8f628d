"""The HTTP client of the command line tools. Every failure is an exception with a one-line text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx2

from .metrics_page import Page


class ServerError(Exception):
    """A server cannot be reached or gave an unusable answer.

    Args:
        text: one line for people.
        code: the kind of failure: ``unreachable``, ``timeout``, ``invalid_url``,
            ``credentials_required`` or ``unusable_answer``.
    """

    def __init__(self, text: str, code: str = "unusable_answer") -> None:
        super().__init__(text)
        self.code = code


class RefusedError(Exception):
    """A server rejected a request as malformed (400 or 422).

    The text is what the server said, on one line and shortened.
    """


class Http:
    """A client for one server.

    Args:
        base: URL of the server, including the path it is served under.
        timeout: seconds allowed for each request.
        wanted_credentials: what the user must pass if the server answers 401 or 403; completes the
            sentence "http://host answers 401 and asks for ...".
        headers: headers of every request.
        follow_redirects: whether to follow redirects instead of returning them.

    Attributes:
        name: the URL for display, without any user name and password in it.
    """

    def __init__(
        self,
        base: str,
        *,
        timeout: float,
        wanted_credentials: str,
        headers: Mapping[str, str] | None = None,
        follow_redirects: bool = False,
    ) -> None:
        self._base = base.rstrip("/")
        self.name = _without_password(self._base)
        self._timeout = timeout
        self._wanted_credentials = wanted_credentials
        self._client = httpx2.Client(
            headers=headers, timeout=timeout, follow_redirects=follow_redirects
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def get(self, path: str, **params: Any) -> httpx2.Response:
        """Return the response to a GET with any status except 401 and 403.

        Args:
            path: path below the base URL.
            params: query parameters; those that are None are left out.

        Raises:
            ServerError: the server cannot be reached or demands credentials.
        """
        given = {name: value for name, value in params.items() if value is not None}
        response = self._send("GET", path, params=given)
        self._check_credentials(response)
        return response

    def get_json(self, path: str, **params: Any) -> Any:
        """Return the parsed response to a GET, or None for a 404.

        Raises:
            ServerError: as for :meth:`get`, or the response is another error or not JSON.
        """
        response = self.get(path, **params)
        if response.status_code == 404:
            return None
        if response.status_code >= 400:
            raise ServerError(f"{self.name}{path} answered {response.status_code}")
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            raise ServerError(f"{self.name}{path} did not answer with JSON") from None

    def try_json(self, path: str) -> Any:
        """Return the parsed response to a GET, or None if the server has no such JSON page.

        Raises:
            ServerError: as for :meth:`get`.
        """
        response = self.get(path)
        if response.status_code != 200:
            return None
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            return None

    def page(self) -> Page | None:
        """Return the parsed ``/metrics`` page, or None if the server has none.

        Raises:
            ServerError: the server cannot be reached.
        """
        response = self._send("GET", "/metrics")
        if response.status_code != 200:
            return None
        try:
            return Page.parse(response.text)
        except ValueError:
            return None

    def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a chat completion and return the parsed answer.

        Raises:
            RefusedError: the server rejects the body as malformed.
            ServerError: anything else went wrong.
        """
        path = "/v1/chat/completions"
        response = self._send("POST", path, json=body)
        self._check_credentials(response)
        if response.status_code in {400, 422}:
            raise RefusedError(f"{response.status_code} {_line(response.text, 160)}")
        if response.status_code != 200:
            raise ServerError(
                f"{self.name}{path} answered {response.status_code}: {_line(response.text, 120)}"
            )
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ServerError(f"{self.name}{path} answered without a JSON object")
        return answer

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            return self._client.request(method, self._base + path, **options)
        except httpx2.TimeoutException:
            raise ServerError(
                f"{self.name}{path} did not answer within {self._timeout:g} s (--timeout)",
                "timeout",
            ) from None
        except httpx2.InvalidURL as error:
            raise ServerError(
                f"{self.name} is not a valid URL: {_reason(error)}", "invalid_url"
            ) from None
        except httpx2.HTTPError as error:
            raise ServerError(
                f"cannot reach {self.name}: {_reason(error)}", "unreachable"
            ) from None

    def _check_credentials(self, response: httpx2.Response) -> None:
        if response.status_code in {401, 403}:
            raise ServerError(
                f"{self.name} answers {response.status_code} and asks for "
                f"{self._wanted_credentials}",
                "credentials_required",
            )


def _without_password(url: str) -> str:
    try:
        return str(httpx2.URL(url).copy_with(username=None, password=None)).rstrip("/")
    except (httpx2.InvalidURL, ValueError):
        return re.sub(r"//.*@", "//", url)


def _reason(error: Exception) -> str:
    return _line(str(error), 200) or type(error).__name__


def _line(text: str, limit: int) -> str:
    """Return the beginning of ``text`` on one line."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}…"

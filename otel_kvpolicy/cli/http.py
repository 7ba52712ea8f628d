"""One trace server over HTTP, its failures as one line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2

from .spans.source import SourceError


class Http:
    """GETs JSON of one server and turns every failure into one line.

    Args:
        base: the server's URL, with the path it is served under.
        headers: sent with each request.
        timeout: seconds for each request.
    """

    def __init__(self, base: str, headers: Mapping[str, str], timeout: float) -> None:
        self.base = base.rstrip("/")
        self._timeout = timeout
        self._client = httpx2.Client(
            headers={"accept": "application/json", **headers},
            timeout=timeout,
            follow_redirects=True,
        )

    def get(self, path: str, **params: Any) -> httpx2.Response:
        """The answer, whatever its status but 401 and 403.

        Raises:
            SourceError: there is none, or it asks for authorization.
        """
        given = {name: value for name, value in params.items() if value is not None}
        try:
            response = self._client.get(self.base + path, params=given)
        except httpx2.TimeoutException:
            raise SourceError(
                f"{self.base} did not answer within {self._timeout:g} s (--timeout)"
            ) from None
        except httpx2.InvalidURL as error:
            raise SourceError(f"{self.base} is no URL: {error}") from None
        except httpx2.HTTPError as error:
            raise SourceError(f"cannot reach {self.base}: {_first_line(error)}") from None
        if response.status_code in {401, 403}:
            asked = f"{self.base} asks for authorization ({response.status_code})"
            raise SourceError(
                f"{asked}: give --header, such as 'Authorization: Bearer …' or Tempo's 'X-Scope-OrgID: …'"
            )
        return response

    def json(self, path: str, **params: Any) -> Any:
        """The parsed answer; None for a 404.

        Raises:
            SourceError: as :meth:`get`, or the answer is an error or no JSON.
        """
        response = self.get(path, **params)
        if response.status_code == 404:
            return None
        if response.status_code >= 400:
            raise SourceError(f"{self.base}{path} answered {response.status_code}")
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            raise SourceError(f"{self.base}{path} answered no JSON") from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__

"""Keeps a redirect from carrying the hint or a header to a server that may not be sent it.

An HTTP client that follows a 307 or 308 sends the same body again, to the server that the answer
names. ``httpx`` and ``httpx2`` build that second request in one method, which is patched here: if
the new server may not be sent what was added to the request, the request is built without it.
Everything else about the redirect stays as it is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any, Final, NamedTuple

from ..hints.targets import Origin, Targets

_METHOD: Final = "_build_redirect_request"
_NOT_HOSTED: Final = Targets("auto")

Follow = Callable[[Any], Any]
"""Takes the request with which a client would follow a redirect; returns the one to send."""


class Added(NamedTuple):
    """What was added to a request: a hint, headers, or nothing.

    Attributes:
        field: body field of the hint; None if no hint was added.
        given: the body as the caller wrote it, from which the field is restored.
        headers: names of the headers.
        origin: the server that the request is sent to.
        azure: True if the client is made for Azure OpenAI.
    """

    field: str | None
    given: Mapping[Any, Any]
    headers: tuple[str, ...]
    origin: Origin
    azure: bool = False

    def checked(
        self, request: Any, targets: Targets, takes_hint: Callable[[Origin], bool]
    ) -> tuple[Any, bool]:
        """Return the request to send for a redirect, and whether the hint was removed from it.

        Args:
            request: the request that the HTTP client built to follow the redirect.
            targets: servers that may be sent the hint. No header goes to a hosted vendor, even if
                it is among them.
            takes_hint: returns True if a server that may be sent the hint would get this one.

        Raises:
            ValueError: the body of the request is not JSON.
        """
        origin = Origin.of(request.url)
        if origin == self.origin:
            return request, False
        allowed = targets.allow(origin, azure=self.azure)
        if not (allowed and _NOT_HOSTED.allow(origin, azure=self.azure)):
            for name in self.headers:
                request.headers.pop(name, None)
        plain = None if allowed and takes_hint(origin) else self._without_hint(request)
        return (request, False) if plain is None else (plain, True)

    def _without_hint(self, request: Any) -> Any:
        """Return a copy of the request without the hint; None if it carries none."""
        content = request.read() if self.field is not None else b""
        body = json.loads(content) if content else None
        if not isinstance(body, dict) or self.field not in body:
            return None
        if self.field in self.given:
            body[self.field] = self.given[self.field]
        else:
            del body[self.field]
        headers = request.headers.copy()
        headers.pop("content-length", None)
        # Spelled as httpx spells JSON, so that the body is the one sent without the hint.
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return type(request)(
            request.method,
            request.url,
            headers=headers,
            content=text.encode(),
            extensions=request.extensions,
        )


_follow: Final[ContextVar[Follow | None]] = ContextVar("otel_kvpolicy_follow", default=None)


def mark(follow: Follow) -> Token[Follow | None]:
    """Let ``follow`` check the redirects of requests of this context, until :func:`unmark`."""
    return _follow.set(follow)


def unmark(token: Token[Follow | None]) -> None:
    """Undo :func:`mark`."""
    _follow.reset(token)


class RedirectGuard:
    """Patches HTTP client classes as they are first used."""

    def __init__(self) -> None:
        self._guarded: set[type] = set()
        self._patched: list[tuple[type, Any, Any]] = []
        self._lock = threading.Lock()

    def cover(self, client: type) -> None:
        """Make sure that redirects followed by a class of HTTP client are checked.

        Args:
            client: class of the HTTP client that sends the request.

        Raises:
            AttributeError: the class is not one of ``httpx`` or ``httpx2``.
        """
        if client not in self._guarded:
            with self._lock:
                self._patch(client)
                self._guarded.add(client)

    def remove(self) -> None:
        """Restore the patched classes."""
        with self._lock:
            for owner, original, patch in self._patched:
                if owner.__dict__.get(_METHOD) is patch:
                    setattr(owner, _METHOD, original)
            self._patched.clear()
            self._guarded.clear()

    def _patch(self, client: type) -> None:
        owner = next((base for base in client.__mro__ if _METHOD in base.__dict__), None)
        if owner is None:
            raise AttributeError(f"{client.__name__} has no {_METHOD}, so redirects go unchecked")
        original = owner.__dict__[_METHOD]
        if any(original is patch for _, _, patch in self._patched):
            return

        @wraps(original)
        def build(self: Any, request: Any, response: Any) -> Any:
            following = original(self, request, response)
            follow = _follow.get()
            return following if follow is None else follow(following)

        setattr(owner, _METHOD, build)
        self._patched.append((owner, original, build))


GUARD: Final = RedirectGuard()
"""The guard of this process."""

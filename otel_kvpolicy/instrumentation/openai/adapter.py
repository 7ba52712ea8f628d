"""The adapter of the openai client: its requests as the core sees them.

The protocol is :class:`~otel_kvpolicy.instrumentation.wire_request.WireRequest`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ...hints.targets import Origin
from ..call import ChatCall
from ..redirects import GUARD
from .streams import observed_parser

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_MAX_ORIGINS: Final = 256
_origins: Final[dict[int, tuple[Any, Origin]]] = {}
"""Origins by the ``id`` of the client's base URL object, which all calls of a client share. They
are cached because computing an origin takes longer than a decision."""


class OpenAIRequest:
    """A call of ``SyncAPIClient.request`` or ``AsyncAPIClient.request``.

    Args:
        client: the client that sends the request.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call. ``options`` is a ``FinalRequestOptions``.

    Attributes:
        stream: True if the caller asked for a stream.
        path: path or URL of the request if it is a POST, otherwise empty.
    """

    __slots__ = ("_args", "_client", "_kwargs", "_options", "_plain", "path", "stream")

    def __init__(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        options = kwargs["options"] if "options" in kwargs else args[1]
        self._client = client
        self._args = args
        self._kwargs = kwargs
        self._options = self._plain = options
        self.stream = bool(kwargs.get("stream"))
        self.path: str = options.url if options.method == "post" else ""

    @property
    def body(self) -> Mapping[Any, Any] | None:
        """The JSON object that the client will send: ``extra_body`` over the rest."""
        body, extra = self._options.json_data, self._options.extra_json
        if extra is None:
            return body if isinstance(body, Mapping) else None
        if not isinstance(extra, Mapping) or not (body is None or isinstance(body, Mapping)):
            return None
        return {**(body or {}), **extra}

    @property
    def origin(self) -> Origin:
        """The server that the request goes to."""
        base = self._client.base_url
        # Tells an absolute URL from a path as the client does: a path may quote a URL in its query.
        if "://" in self.path:
            url = type(base)(self.path)
            if not url.is_relative_url:
                return Origin.of(url)
        return _origin_of(base)

    @property
    def is_azure(self) -> bool:
        """True if the client is made for Azure OpenAI, at any host."""
        return _is_azure(self._client.__class__)

    def watch(self, call: ChatCall) -> None:
        """Let ``call`` see the stream that a raw response is parsed into."""
        if self.stream:
            parser = observed_parser(call, self._options.post_parser)
            with_hint = self._options is not self._plain
            self._plain = _copy(self._plain, "post_parser", parser)
            self._options = (
                _copy(self._options, "post_parser", parser) if with_hint else self._plain
            )

    def add(self, field: str, value: Any) -> None:
        """Send ``value`` as a field of the request body, through ``extra_body``.

        Raises:
            AttributeError: redirects of this client cannot be checked, so it gets no hint.
        """
        GUARD.cover(type(self._client._client))  # noqa: SLF001 - it follows the redirects
        extra = {**(self._options.extra_json or {}), field: value}
        self._options = _copy(self._options, "extra_json", extra)

    def add_header(self, name: str, value: str) -> bool:
        """Send a header, also if the server rejects the hint. The caller's own header stays.

        Returns:
            False if the caller sends that header.

        Raises:
            AttributeError: redirects of this client cannot be checked, so it gets no header.
        """
        GUARD.cover(type(self._client._client))  # noqa: SLF001 - it follows the redirects
        given = self._options.headers
        given = given if isinstance(given, Mapping) else {}
        if name.lower() in {each.lower() for each in (*given, *self._client.default_headers)}:
            return False
        headers = {**given, name: value}
        with_hint = self._options is not self._plain
        self._plain = _copy(self._plain, "headers", headers)
        self._options = _copy(self._options, "headers", headers) if with_hint else self._plain
        return True

    @property
    def arguments(self) -> Arguments:
        """The arguments to send the request with, hint included."""
        return self._with(self._options)

    @property
    def arguments_without_hint(self) -> Arguments:
        """The arguments to send the request with if the server rejects the hint."""
        return self._with(self._plain)

    def _with(self, options: Any) -> Arguments:
        if "options" in self._kwargs:
            return self._args, {**self._kwargs, "options": options}
        return (self._args[0], options, *self._args[2:]), self._kwargs


def rejection_of(error: BaseException) -> tuple[int | None, str]:
    """Return status and text of the answer behind an exception of the client.

    Returns:
        ``(None, "")`` if the exception is not about an answer, or the answer cannot be read. Never
        raises, because the caller must see the original exception.
    """
    try:
        status, text = error.status_code, error.response.text  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - not an APIStatusError, or a stream that was not read
        return None, ""
    return status, text or ""


def _copy(options: Any, name: str, value: Any) -> Any:
    changed = copy.copy(options)
    setattr(changed, name, value)
    return changed


def _origin_of(base: Any) -> Origin:
    cached = _origins.get(id(base))
    if cached is not None and cached[0] is base:
        return cached[1]
    if len(_origins) >= _MAX_ORIGINS:
        _origins.clear()
    origin = Origin.of(base)
    _origins[id(base)] = (base, origin)
    return origin


@lru_cache(maxsize=64)
def _is_azure(client: Any) -> bool:
    return any(base.__name__ == "BaseAzureClient" for base in client.__mro__)

"""The seam between a client library and the core: one request about to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..hints.targets import Origin

if TYPE_CHECKING:
    from .call import ChatCall


class WireRequest(Protocol):
    """A request of some client library. Each library has an adapter with these members.

    An adapter never mutates the caller's objects: it sends copies.

    Attributes:
        path: path or URL of the request if it is a POST, otherwise empty.
    """

    path: str

    @property
    def body(self) -> Mapping[Any, Any] | None:
        """The JSON object that the client will send; None if the body is something else."""

    @property
    def origin(self) -> Origin:
        """The server that the request goes to."""

    @property
    def is_azure(self) -> bool:
        """True if the client is made for Azure OpenAI, at any host."""

    def watch(self, call: ChatCall) -> None:
        """Make sure that ``call`` sees an answer that the caller will parse later."""

    def add(self, field: str, value: Any) -> None:
        """Send ``value`` as a field of the request body."""

    def add_header(self, name: str, value: str) -> bool:
        """Send a header with the request, unless the caller sends one of that name.

        Returns:
            True if the header was added.
        """

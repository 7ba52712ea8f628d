"""Request bodies -> what is counted of them; responses -> what the server says of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..policy import CallText
from .answer import Answer, read_answer, read_chunk
from .chat import read_chat
from .responses import read_responses

__all__ = [
    "READERS",
    "Answer",
    "read_answer",
    "read_chat",
    "read_chunk",
    "read_responses",
    "reader_of",
]

READERS: Final[dict[str, Callable[[Mapping[Any, Any]], CallText]]] = {
    "/chat/completions": read_chat,
    "/responses": read_responses,
}
"""The paths whose calls are decided, and what reads their bodies."""


def reader_of(url: str) -> Callable[[Mapping[Any, Any]], CallText] | None:
    """The reader for a request path or URL; ``None`` for what is no chat call."""
    reader = READERS.get(url)
    if reader is not None:
        return reader
    path = url.partition("?")[0].partition("#")[0].rstrip("/")
    return next((reader for end, reader in READERS.items() if path.endswith(end)), None)

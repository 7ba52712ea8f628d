"""Reads chat requests and answers: counts bodies, and extracts what the server reports."""

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

Reader = Callable[[Mapping[Any, Any]], CallText]

READERS: Final[dict[str, Reader]] = {
    "/chat/completions": read_chat,
    "/responses": read_responses,
}
"""Path of each API whose calls are decided, with the function that counts its bodies."""


def reader_of(url: str) -> Reader | None:
    """Return the reader for a request path or URL; None if it is not a chat call."""
    reader = READERS.get(url)
    if reader is not None:
        return reader
    path = url.partition("?")[0].partition("#")[0].rstrip("/")
    return next((reader for end, reader in READERS.items() if path.endswith(end)), None)

"""Conversations, how they are read from a file, and in what order concurrent users would send their calls."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

_SEED: Final = 20

Step = tuple[int, int]
"""One model call: the conversation's index, and the number of its messages that are sent."""


class InputError(ValueError):
    """A file of conversations that cannot be used; the message says where and why in one line."""


@dataclass(frozen=True)
class Conversation:
    """A conversation as it went. Each assistant message in it is the answer to one model call.

    Attributes:
        messages: OpenAI chat messages.
        tools: tool definitions sent with every call.
        stream: whether its calls are streamed.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    stream: bool = False

    @property
    def calls(self) -> list[int]:
        """For each model call, how many messages it sends."""
        return [
            index
            for index, message in enumerate(self.messages)
            if index and message["role"] == "assistant"
        ]


def steps(conversations: Sequence[Conversation], users: int) -> list[Step]:
    """All calls of all conversations, interleaved as by ``users`` people at once.

    Each person takes the next conversation when one is over; whose turn it is, is drawn at random from a fixed seed, so that two runs send
    the same calls in the same order.
    """
    draw = random.Random(_SEED)  # noqa: S311 - an order, no secret
    waiting = iter(
        [(index, list(each.calls)) for index, each in enumerate(conversations) if each.calls]
    )
    active: list[tuple[int, list[int]]] = []
    order: list[Step] = []
    while True:
        while len(active) < users and (following := next(waiting, None)) is not None:
            active.append(following)
        if not active:
            return order
        turn = draw.choice(active)
        order.append((turn[0], turn[1].pop(0)))
        if not turn[1]:
            active.remove(turn)


def read_conversations(path: Path) -> list[Conversation]:
    """Reads JSON lines, gzipped where the name ends in ``.gz``.

    A line is a list of OpenAI messages, or an object that holds it as ``messages`` or ``traj``, and perhaps ``tools``.

    Raises:
        InputError: the file cannot be read, or a line of it is no conversation, or there is no model call in it.
    """
    try:
        with _open(path) as file:
            found = [
                _conversation(line, f"{path.name}, line {number}") for number, line in _lines(file)
            ]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not any(conversation.calls for conversation in found):
        raise InputError(
            f"{path.name} has no assistant message, so there is no model call to repeat"
        )
    return found


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _lines(file: IO[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(file, 1) if line.strip())


def _conversation(line: str, where: str) -> Conversation:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    tools = None
    if isinstance(value, dict):
        tools = value.get("tools")
        value = value["messages"] if "messages" in value else value.get("traj")
    if not isinstance(value, list):
        raise InputError(
            f'{where}: neither a list of messages nor an object with "messages" or "traj"'
        )
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError(f"{where}: message {index + 1} is not an object with a role")
    if tools is not None and not isinstance(tools, list):
        raise InputError(f'{where}: "tools" is not a list')
    return Conversation(value, tools or None)

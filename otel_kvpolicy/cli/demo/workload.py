"""Conversations, read from a file, and the order in which concurrent users send their calls."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

_SEED: Final = 20

Step = tuple[int, int]
"""One model call: the index of the conversation, and how many of its messages are sent."""


InputProblem = Literal[
    "unreadable", "not_json", "not_messages", "bad_message", "bad_tools", "no_calls"
]


class InputError(ValueError):
    """A file of conversations cannot be used. The text says where and why, in one line.

    Attributes:
        problem: what is wrong, as a code.
        line: number of the line that is wrong; None if it is not one line's fault.
    """

    def __init__(self, text: str, problem: InputProblem, line: int | None = None) -> None:
        super().__init__(text)
        self.problem = problem
        self.line = line


@dataclass(frozen=True)
class Conversation:
    """A finished conversation. Each assistant message in it was the answer to one model call.

    Attributes:
        messages: OpenAI chat messages.
        tools: tool definitions sent with every call.
        stream: whether the calls are streamed.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    stream: bool = False

    @property
    def calls(self) -> list[int]:
        """The number of messages that each model call sends."""
        return [
            index
            for index, message in enumerate(self.messages)
            if index and message["role"] == "assistant"
        ]


def steps(conversations: Sequence[Conversation], users: int) -> list[Step]:
    """Return all calls of all conversations, interleaved as if ``users`` people were chatting.

    Each user starts the next conversation as soon as theirs is over. Who sends the next call is
    drawn at random from a fixed seed, so two runs send the same calls in the same order.
    """
    draw = random.Random(_SEED)  # noqa: S311 - not used for secrets
    waiting = iter(
        [
            (index, list(conversation.calls))
            for index, conversation in enumerate(conversations)
            if conversation.calls
        ]
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
    """Read JSON lines, gzipped if the name ends in ``.gz``.

    A line is a list of OpenAI messages, or an object that has the list as ``messages`` or ``traj``
    and may have ``tools``.

    Raises:
        InputError: the file cannot be read, a line is not a conversation, or there is no call.
    """
    try:
        with _open(path) as file:
            conversations = [
                _conversation(text, path.name, number) for number, text in _lines(file)
            ]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}", "unreadable") from error
    if not any(conversation.calls for conversation in conversations):
        raise InputError(
            f"{path.name} has no assistant message, so there is no call to send", "no_calls"
        )
    return conversations


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _lines(file: IO[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(file, 1) if line.strip())


def _conversation(text: str, file_name: str, line: int) -> Conversation:
    where = f"{file_name}, line {line}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}", "not_json", line) from error
    tools = None
    if isinstance(value, dict):
        tools = value.get("tools")
        value = value["messages"] if "messages" in value else value.get("traj")
    if not isinstance(value, list):
        expected = 'a list of messages, or an object with "messages" or "traj"'
        raise InputError(f"{where}: expected {expected}", "not_messages", line)
    for number, message in enumerate(value, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError(
                f"{where}: message {number} is not an object with a role", "bad_message", line
            )
    if tools is not None and not isinstance(tools, list):
        raise InputError(f'{where}: "tools" is not a list', "bad_tools", line)
    return Conversation(value, tools or None)

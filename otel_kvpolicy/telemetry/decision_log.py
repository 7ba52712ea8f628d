"""The decision log: one line of JSON for each decided call, linked to its trace and span, without content.

Lines are handed to a writer thread and appended with ``O_APPEND`` in one ``write`` each batch, one process at a time, so that several may
share a file.
A crash loses at most what the thread had not written yet, and may leave a torn last line: the next writer closes it with a newline, and
readers pass over it. Nothing here blocks or fails a call: a full queue drops, a full disk is reported once.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from opentelemetry.trace import Span, format_span_id, format_trace_id

from ..record import CallRecord
from ..requests import Answer
from . import names
from .spans import answer_attributes, decision_attributes
from .worker import Worker

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover - Windows: one process at a time may rotate
    fcntl = None  # type: ignore[assignment]

BACKUPS: Final = 3
"""Rotated files that are kept: ``path.1``, the youngest, to ``path.3``."""

_MAX_QUEUED: Final = 10_000
_EXIT_SECONDS: Final = 2.0

Caught = Callable[[str, Exception], None]


def entry_of(
    span: Span, record: CallRecord, answer: Answer | None, error: BaseException | None
) -> dict[str, Any]:
    """What is logged of a call: when, where in which trace, and the attributes that its span carries."""
    context = span.get_span_context()
    started = getattr(span, "start_time", None) or time.time_ns()
    resource = getattr(getattr(span, "resource", None), "attributes", {})
    attributes: dict[str, Any] = {
        **decision_attributes(record),
        names.REQUEST_MODEL: record.model,
        names.SERVER_ADDRESS: record.address,
        names.SERVER_PORT: record.port,
    }
    if record.agent:
        attributes[names.AGENT_NAME] = record.agent
    conversation = (getattr(span, "attributes", None) or {}).get(names.CONVERSATION_ID)
    if (
        conversation is not None
    ):  # another's span that says so: by it a replay tells which calls continue each other
        attributes[names.CONVERSATION_ID] = conversation
    if answer is not None:
        attributes |= answer_attributes(answer)
    if error is not None:
        attributes[names.ERROR_TYPE] = type(error).__qualname__
    return {
        "timestamp": datetime.fromtimestamp(started / 1e9, timezone.utc)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z"),
        "trace_id": format_trace_id(context.trace_id) if context.is_valid else None,
        "span_id": format_span_id(context.span_id) if context.is_valid else None,
        "name": getattr(span, "name", None) or f"chat {record.model}".rstrip(),
        "service": resource.get("service.name"),
        "attributes": attributes,
    }


class DecisionLog:
    """Appends entries to one file from a thread of its own.

    Args:
        path: the file; its directory is made where it is missing.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._worker = Worker("kvpolicy-decision-log", self._write)
        self._descriptor: int | None = None

    def write(self, entry: Mapping[str, Any], max_bytes: int, caught: Caught) -> None:
        """Queues ``entry``; never waits.

        Args:
            entry: what can be written as JSON.
            max_bytes: size at which the file is rotated.
            caught: told of what fails, here or in the writer.
        """
        if self._worker.waiting >= _MAX_QUEUED:
            caught(
                "decision_log",
                queue.Full("the decision log cannot be written as fast as calls are decided"),
            )
            return
        self._worker.hand((entry, max_bytes, caught))
        self._worker.start()

    def flush(self, seconds: float) -> bool:
        """Waits until all that was queued is written; false where that takes longer than ``seconds``."""
        return self._worker.flush(seconds)

    def _write(self, entries: list[tuple[Mapping[str, Any], int, Caught]]) -> None:
        _, max_bytes, caught = entries[-1]
        try:
            self._append(
                "".join(f"{_json(entry)}\n" for entry, _, _ in entries).encode(), max_bytes
            )
        except Exception as error:  # noqa: BLE001 - the writer outlives whatever the disk does
            self._close()
            caught("decision_log", error)

    def _append(self, lines: bytes, max_bytes: int) -> None:
        descriptor = self._open()
        if self._rotate(descriptor, len(lines), max_bytes):
            descriptor = self._open()
        with _alone(descriptor):
            if not _ends_whole(descriptor):
                lines = b"\n" + lines
            written = os.write(descriptor, lines)
        if written < len(lines):
            raise OSError(f"wrote {written} of {len(lines)} bytes")

    def _open(self) -> int:
        """The open file, opened anew where another process has rotated it away or someone has removed it."""
        if self._descriptor is not None and not _is_at(self._descriptor, self.path):
            self._close()
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = (
                os.O_RDWR
                | os.O_APPEND
                | os.O_CREAT
                | getattr(os, "O_CLOEXEC", 0)
                | getattr(os, "O_BINARY", 0)
            )
            self._descriptor = os.open(self.path, flags, 0o666)
        return self._descriptor

    def _rotate(self, descriptor: int, coming: int, max_bytes: int) -> bool:
        """Moves a full file aside, under a lock on the very file, so that of several processes one does it."""
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_size == 0
            or status.st_size + coming <= max_bytes
        ):
            return False
        with _alone(descriptor):
            if _is_at(descriptor, self.path):
                for number in range(BACKUPS - 1, 0, -1):
                    older = Path(f"{self.path}.{number}")
                    if older.exists():
                        older.replace(f"{self.path}.{number + 1}")
                self.path.replace(f"{self.path}.1")
        self._close()
        return True

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _json(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=str)


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Keeps other writers out: one of them in the middle of its write looks as if it had been torn. Without locks, all write."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _ends_whole(descriptor: int) -> bool:
    """Whether the file is empty or ends with a newline; anything but a plain file is taken to."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return True
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) == b"\n"


_logs: Final[dict[str, DecisionLog]] = {}


def decision_log(path: str) -> DecisionLog:
    """The log at ``path``, one for the process."""
    return _logs.get(path) or _logs.setdefault(path, DecisionLog(path))


def flush(seconds: float = _EXIT_SECONDS) -> bool:
    """Waits until all logs of this process are written; false where one takes longer than ``seconds``."""
    written = [
        log.flush(seconds) for log in list(_logs.values())
    ]  # each, even after one that was too slow
    return all(written)


atexit.register(flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        after_in_child=_logs.clear
    )  # threads do not survive a fork, and what was queued is the parent's to write

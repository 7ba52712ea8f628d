"""The decision log: one line of JSON for each decided call, with its trace and span ids.

It holds no content of prompts or answers.

A writer thread appends the lines with ``O_APPEND``, each batch in one ``write``, one process at a
time, so that several processes can share a file. A crash loses at most what the thread had not
written yet. It may leave a torn last line: the next writer ends it with a newline, and readers skip
it. Nothing here blocks or fails a call: a full queue drops lines, and a full disk is reported once.
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
"""Rotated files to keep: ``path.1``, the newest, to ``path.3``."""

_MAX_QUEUED: Final = 10_000
_EXIT_SECONDS: Final = 2.0

Report = Callable[[str, Exception], None]
"""Called with the place and the error if something fails."""


def entry_of(
    span: Span, record: CallRecord, answer: Answer | None, error: BaseException | None
) -> dict[str, Any]:
    """Return the log entry of a call: time, trace and span ids, and the attributes of its span."""
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
    if conversation is not None:  # replay joins the calls of a conversation by it
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
    """Appends entries to one file, in a background thread.

    Args:
        path: the file. Its directory is created if it is missing.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._worker = Worker("kvpolicy-decision-log", self._write)
        self._descriptor: int | None = None

    def write(self, entry: Mapping[str, Any], max_bytes: int, report: Report) -> None:
        """Queue an entry. Never waits.

        Args:
            entry: a mapping that can be written as JSON.
            max_bytes: size at which the file is rotated.
            report: called if something fails, here or in the writer thread.
        """
        if self._worker.waiting >= _MAX_QUEUED:
            report(
                "decision_log",
                queue.Full("the decision log cannot keep up with the calls"),
            )
            return
        self._worker.hand((entry, max_bytes, report))
        self._worker.start()

    def flush(self, seconds: float) -> bool:
        """Wait until all queued entries are written. Return False after ``seconds``."""
        return self._worker.flush(seconds)

    def _write(self, entries: list[tuple[Mapping[str, Any], int, Report]]) -> None:
        _, max_bytes, report = entries[-1]
        try:
            self._append(
                "".join(f"{_json(entry)}\n" for entry, _, _ in entries).encode(), max_bytes
            )
        except Exception as error:  # noqa: BLE001 - the writer must survive any disk error
            self._close()
            report("decision_log", error)

    def _append(self, lines: bytes, max_bytes: int) -> None:
        descriptor = self._open()
        if self._rotate(descriptor, len(lines), max_bytes):
            descriptor = self._open()
        with _locked(descriptor):
            if not _ends_whole(descriptor):
                lines = b"\n" + lines
            written = os.write(descriptor, lines)
        if written < len(lines):
            raise OSError(f"wrote {written} of {len(lines)} bytes")

    def _open(self) -> int:
        """Return the open file. Reopen it if it was rotated by another process, or removed."""
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
        """Move a full file aside. A lock on the file makes sure that only one process does it."""
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_size == 0
            or status.st_size + coming <= max_bytes
        ):
            return False
        with _locked(descriptor):
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
def _locked(descriptor: int) -> Iterator[None]:
    """Lock the file against other writers, if the platform can.

    Without the lock, a line that another process is writing would look torn.
    """
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
    """Return True if the file is empty, ends with a newline, or is not a regular file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return True
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) == b"\n"


_logs: Final[dict[str, DecisionLog]] = {}


def decision_log(path: str) -> DecisionLog:
    """Return the log at ``path``. There is one for each path in a process."""
    return _logs.get(path) or _logs.setdefault(path, DecisionLog(path))


def flush(seconds: float = _EXIT_SECONDS) -> bool:
    """Wait until all logs of this process are written. Return False if one takes longer."""
    # Every log gets its time, even after a slow one.
    written = [log.flush(seconds) for log in list(_logs.values())]
    return all(written)


atexit.register(flush)
if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork, and the parent writes what was queued.
    os.register_at_fork(after_in_child=_logs.clear)

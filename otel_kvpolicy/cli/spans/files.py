"""Reads spans from files: OTLP JSON lines, the decision log, and saved answers of trace servers.

A line that is not JSON is skipped and noted: the last line of a file that is still being written
may be incomplete.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

from ...telemetry import names
from ...telemetry.decision_log import BACKUPS
from . import jaeger, otlp
from .model import SERVICE_NAME, RecordedSpan, nanoseconds, normal_span_id, normal_trace_id
from .source import Note, OtherCalls, Query, SourceError


class FileSource:
    """A file, a directory of files, or standard input.

    Args:
        path: the file or directory, or ``-`` for standard input. The rotated files of a decision
            log are read too, and ``.gz`` files are decompressed.

    Raises:
        SourceError: there is no such file.
    """

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self.notes: list[Note] = []
        self._paths = _paths(path)
        self._decided: list[RecordedSpan] | None = None

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """Return all spans of a trace. Keeps every decided call for :meth:`other_calls`."""
        return [span for span in self._read(trace_id) if span.trace_id == trace_id]

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Return the newest calls that match ``query``, newest first."""
        return query.newest(self._decided_calls())

    def with_span_id(self, span_id: str) -> list[RecordedSpan]:
        """Return the decided calls with this span id."""
        return [span for span in self._decided_calls() if span.span_id == span_id]

    def other_calls(self, span: RecordedSpan) -> OtherCalls:
        """Return all other decided calls of the source."""
        others = [other for other in self._decided_calls() if other.span_id != span.span_id]
        return OtherCalls(others, "in this source")

    def _decided_calls(self) -> list[RecordedSpan]:
        if self._decided is None:
            self._read(None)
        return self._decided or []

    def _read(self, trace_id: str | None) -> list[RecordedSpan]:
        """Read all decided calls and, if a trace is named, all of its spans."""
        spans = list(chain.from_iterable(self._spans_in(path, trace_id) for path in self._paths))
        self._decided = [span for span in spans if span.decided]
        return spans

    def _spans_in(self, path: Path | None, trace_id: str | None) -> Iterator[RecordedSpan]:
        wanted = (
            None
            if trace_id is None
            else (names.DECISION, trace_id, _without_leading_zeros(trace_id))
        )
        documents = _Documents(path, wanted)
        try:
            for document in documents:
                yield from _spans_of(document)
        except ValueError as error:
            raise SourceError(
                "unknown_format", f"{self.name}, line {documents.line}: {error}"
            ) from None
        if documents.unreadable:
            self._note_unreadable(path, documents)

    def _note_unreadable(self, path: Path | None, documents: _Documents) -> None:
        first, count = documents.unreadable[0], len(documents.unreadable)
        if not documents.read:
            raise SourceError(
                "not_json", f"{self.name} has no JSON lines: line {first} cannot be parsed"
            )
        lines = f"{count} lines" if count > 1 else "1 line"
        self.notes.append(
            Note(
                "unreadable_lines",
                f"skipped {lines} of {path or self.name}: not JSON (line {first})",
                {"lines": count, "first": first},
            )
        )


def _without_leading_zeros(trace_id: str) -> str:
    """Return how some sources write the trace id."""
    return trace_id.lstrip("0") or "0"


def _paths(text: str) -> list[Path | None]:
    if text == "-":
        return [None]
    path = Path(text)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and ".json" in file.name)
        if not files:
            raise SourceError(
                "no_files", f"directory {text} has no .json or .jsonl file; name another one"
            )
        return [*files]
    rotated = [Path(f"{path}.{number}") for number in range(BACKUPS, 0, -1)]
    existing = [file for file in (*rotated, path) if file.is_file()]
    if not existing and not path.exists():
        raise SourceError("no_such_file", f"no such file: {text}")
    return [*existing] or [path]


class _Documents:
    """The JSON documents of a file: one per line, or a single one that fills the file.

    Args:
        path: the file; None for standard input.
        wanted: lower-case strings. A line with none of them is skipped unparsed, so that looking
            for one trace in a large file is fast; None to parse every line.

    Attributes:
        line: number of the line read last.
        read: how many lines were read.
        unreadable: numbers of the lines that are not JSON.
    """

    def __init__(self, path: Path | None, wanted: tuple[str, ...] | None) -> None:
        self._path = path
        self._wanted = wanted
        self.line = 0
        self.read = 0
        self.unreadable: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        try:
            with _open(self._path) as file:
                yield from self._documents(file)
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SourceError("unreadable", f"cannot read {self._path}: {reason}") from error

    def _documents(self, file: IO[str]) -> Iterator[Any]:
        for text in file:
            self.line += 1
            if not text.strip():
                continue
            try:
                document = None if self._is_irrelevant(text) else json.loads(text)
            except (ValueError, RecursionError):
                is_first = not self.read and not self.unreadable
                if is_first and (document := _single_document(text, file)) is not None:
                    self.read = 1
                    yield document
                    return
                self.unreadable.append(self.line)
                continue
            self.read += 1
            if document is not None:
                yield document

    def _is_irrelevant(self, text: str) -> bool:
        """Return whether to skip a line. An incomplete line is kept, so that it is noted."""
        if self._wanted is None or not text.rstrip().endswith("}"):
            return False
        lower = text.lower()
        # In "batches" ids are base64, so that a hex id cannot be searched for.
        return not any(part in lower for part in self._wanted) and '"batches"' not in lower


def _single_document(first: str, rest: IO[str]) -> Any:
    """Return the document that is printed over all lines of a file, or None."""
    if not first.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(first + rest.read())
    except (ValueError, RecursionError):
        return None


def _open(path: Path | None) -> IO[str]:
    if path is None:
        return sys.stdin
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _spans_of(document: Any) -> list[RecordedSpan]:
    if isinstance(document, list):
        return [span for item in document for span in _spans_of(item)]
    if otlp.is_otlp(document):
        return otlp.spans_of(document)
    if jaeger.is_jaeger(document):
        return jaeger.spans_of(document)
    if isinstance(document, Mapping) and isinstance(document.get("attributes"), Mapping):
        return [_span_of_log_entry(document)]
    return []


def _span_of_log_entry(entry: Mapping[str, Any]) -> RecordedSpan:
    service = entry.get("service") or entry.get(SERVICE_NAME)
    return RecordedSpan(
        trace_id=normal_trace_id(str(entry.get("trace_id") or "0")),
        span_id=normal_span_id(str(entry.get("span_id") or "0")),
        name=str(entry.get("name") or "chat"),
        service=service if isinstance(service, str) else None,
        started=_nanoseconds_or_none(entry.get("timestamp")),
        attributes=entry["attributes"],
    )


def _nanoseconds_or_none(timestamp: Any) -> int | None:
    try:
        return nanoseconds(str(timestamp))
    except ValueError:
        return None

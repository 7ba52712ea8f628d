"""Files of OTLP JSON lines, the decision log, and saved answers of trace servers.

A line that is no JSON is passed over and told of: the last line of a file that is being written may be torn.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

from . import jaeger, otlp
from .model import SERVICE_NAME, RecordedSpan, nanoseconds, normal_span_id, normal_trace_id
from .source import Neighbours, Query, SourceError

_MARK: Final = "kvpolicy.decision"
_ROTATED: Final = 3


class FileSource:
    """A file, a directory of files, or ``-`` for standard input.

    Args:
        path: where; a decision log's rotated files beside it are read too, and ``.gz`` is unpacked.

    Raises:
        SourceError: there is no such file.
    """

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self.notes: list[str] = []
        self._paths = _paths(path)
        self._decided: list[RecordedSpan] | None = None

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """All spans of a trace. The whole file's decided calls are kept for :meth:`neighbours`."""
        return [span for span in self._read(trace_id) if span.trace_id == trace_id]

    def recent(self, query: Query) -> list[RecordedSpan]:
        """The file's youngest decided calls."""
        self._read(None)
        return query.youngest(self._decided or [])

    def with_span_id(self, span_id: str) -> list[RecordedSpan]:
        """Decided calls whose own id is ``span_id``."""
        self._read(None)
        return [span for span in self._decided or [] if span.span_id == span_id]

    def neighbours(self, span: RecordedSpan) -> Neighbours:
        """The file's other decided calls."""
        return Neighbours(
            [other for other in self._decided or [] if other.span_id != span.span_id],
            "in this source",
        )

    def _read(self, trace_id: str | None) -> list[RecordedSpan]:
        """Reads the spans that matter: decided ones, and those of one trace."""
        if self._decided is not None and trace_id is None:
            return self._decided
        spans = list(chain.from_iterable(self._spans_in(path, trace_id) for path in self._paths))
        self._decided = [span for span in spans if span.decided]
        return spans

    def _spans_in(self, path: Path | None, trace_id: str | None) -> Iterator[RecordedSpan]:
        documents = _Documents(
            path, None if trace_id is None else (_MARK, trace_id, _short(trace_id))
        )
        try:
            for document in documents:
                yield from _spans_of(document)
        except ValueError as error:
            raise SourceError(f"{self.name}, line {documents.line}: {error}") from None
        if documents.unreadable:
            first = documents.unreadable[0]
            if not documents.read:
                raise SourceError(f"{self.name} holds no JSON lines: line {first} cannot be read")
            many = (
                f"{len(documents.unreadable)} lines" if len(documents.unreadable) > 1 else "a line"
            )
            self.notes.append(
                f"passed over {many} of {path or self.name} that is no JSON (line {first})"
            )


def _short(trace_id: str) -> str:
    """Trace ids may be written without leading zeros."""
    return trace_id.lstrip("0") or "0"


def _paths(text: str) -> list[Path | None]:
    if text == "-":
        return [None]
    path = Path(text)
    if path.is_dir():
        found = sorted(one for one in path.iterdir() if one.is_file() and ".json" in one.name)
        if not found:
            raise SourceError(f"{text} is a directory without a .json or .jsonl file")
        return [*found]
    rotated = [Path(f"{path}.{number}") for number in range(_ROTATED, 0, -1)]
    existing = [one for one in (*rotated, path) if one.is_file()]
    if not existing and not path.exists():
        raise SourceError(f"there is no file {text}")
    return [*existing] or [path]


class _Documents:
    """The JSON documents of a file: one a line, or one that fills it."""

    def __init__(self, path: Path | None, marks: tuple[str, ...] | None) -> None:
        self._path = path
        self._marks = marks
        self.line = 0
        self.read = 0
        self.unreadable: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        try:
            with _open(self._path) as file:
                yield from self._documents(file)
        except (OSError, EOFError) as error:
            raise SourceError(
                f"cannot read {self._path}: {getattr(error, 'strerror', None) or error}"
            ) from error

    def _documents(self, file: IO[str]) -> Iterator[Any]:
        for text in file:
            self.line += 1
            if not text.strip():
                continue
            try:
                document = None if self._passed(text) else json.loads(text)
            except (ValueError, RecursionError):
                if (
                    not self.read
                    and not self.unreadable
                    and (whole := _whole(text, file)) is not None
                ):
                    self.read = 1
                    yield whole
                    return
                self.unreadable.append(self.line)
                continue
            self.read += 1
            if document is not None:
                yield document

    def _passed(self, text: str) -> bool:
        """Whether a line cannot matter, so that large files are not parsed for nothing. A torn line is parsed, to be told of."""
        if self._marks is None or not text.rstrip().endswith("}"):
            return False
        lower = text.lower()
        return not any(mark in lower for mark in self._marks) and '"batches"' not in lower


def _whole(first: str, rest: IO[str]) -> Any:
    """The document that fills the file, printed over several lines."""
    if not first.lstrip().startswith(("{", "[")):
        return None
    remaining = rest.read()
    try:
        return json.loads(first + remaining)
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
        return [span for one in document for span in _spans_of(one)]
    if otlp.is_otlp(document):
        return otlp.spans_of(document)
    if jaeger.is_jaeger(document):
        return jaeger.spans_of(document)
    if isinstance(document, Mapping) and isinstance(document.get("attributes"), Mapping):
        return [_of_log(document)]
    return []


def _of_log(entry: Mapping[str, Any]) -> RecordedSpan:
    """An entry of the decision log."""
    service = entry.get("service") or entry.get(SERVICE_NAME)
    return RecordedSpan(
        trace_id=normal_trace_id(str(entry.get("trace_id") or "0")),
        span_id=normal_span_id(str(entry.get("span_id") or "0")),
        name=str(entry.get("name") or "chat"),
        service=service if isinstance(service, str) else None,
        started=_moment(entry.get("timestamp")),
        attributes=entry["attributes"],
    )


def _moment(timestamp: Any) -> int | None:
    try:
        return nanoseconds(str(timestamp))
    except ValueError:
        return None

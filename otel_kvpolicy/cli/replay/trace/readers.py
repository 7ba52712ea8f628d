"""Read a trace from files and directories, plain or gzipped, one line at a time."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .formats import FORMATS, Format, format_of
from .trace import Request, Trace, TraceBuilder

_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".log")
_MAX_BROKEN_LINES_KEPT: Final = 20
_BLOCK_SIZE_SAMPLE: Final = 64
"""Requests from which the block size is derived if the trace does not state it."""
_BLOCK_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_MAX_LINE_BYTES: Final = 64 << 20

ReadProgress = Callable[[int], None]
"""Receives the number of bytes read since the last call."""


class TraceError(Exception):
    """The input is not a supported trace."""


@dataclass(frozen=True)
class BrokenLine:
    """A line that was skipped.

    Attributes:
        path: the file.
        number: line number, from 1.
        problem: what is wrong with the line.
    """

    path: Path
    number: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.number}: {self.problem}"


@dataclass
class Loaded:
    """A trace, and what happened while it was read.

    Attributes:
        trace: the traffic.
        formats: names of the formats in the files.
        notes: assumptions that were made, and files that were skipped.
        broken: number of lines skipped.
        broken_lines: the first of these lines.
    """

    trace: Trace
    formats: list[str]
    notes: list[str] = field(default_factory=list)
    broken: int = 0
    broken_lines: list[BrokenLine] = field(default_factory=list)


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files in ``paths``.

    A directory stands for the files in it whose suffix is that of JSON lines, with or without
    ``.gz``, sorted by name.

    Raises:
        TraceError: a path does not exist, or a directory has no such file.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                file
                for file in path.iterdir()
                if file.is_file() and file.name.removesuffix(".gz").endswith(_SUFFIXES)
            )
            if not inside:
                raise TraceError(
                    f"{path}: the directory has no file that ends in {', '.join(_SUFFIXES)}"
                    " (or the same with .gz)"
                )
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise TraceError(f"{path}: no such file or directory")
    return files


def load(
    paths: Sequence[Path],
    *,
    block_tokens: int | None = None,
    full_blocks_only: bool = True,
    warm_up: float = 0.0,
    progress: ReadProgress | None = None,
) -> Loaded:
    """Read a trace.

    Args:
        paths: files and directories. All requests are sorted by time.
        block_tokens: tokens in a block, for hashed traces that do not state it. By default it is
            derived from the prompt lengths.
        full_blocks_only: see :class:`~otel_kvpolicy.cli.replay.trace.TraceBuilder`.
        warm_up: share of the requests, 0 to 1, that only warm the cache and do not count.
        progress: called with the number of bytes read.

    Raises:
        TraceError: there is nothing to replay, or the files have different block sizes.
        OSError: a file cannot be read.
    """
    loader = _Loader(block_tokens, full_blocks_only, progress)
    for path in trace_files(paths):
        loader.read(path)
    return loader.finish(warm_up)


class _Loader:
    """Reads files into one trace."""

    def __init__(
        self, block_tokens: int | None, full_blocks_only: bool, progress: ReadProgress | None
    ) -> None:
        self._block_tokens = block_tokens
        self._full_only = full_blocks_only
        self._progress = progress
        self._builder: TraceBuilder | None = None
        self._sample: list[Request] = []
        self._formats: dict[str, Format] = {}
        self._broken_count = 0
        self._broken_lines: list[BrokenLine] = []
        self._not_traces: list[str] = []
        self._notes: list[str] = []

    def read(self, path: Path) -> None:
        broken_before = self._broken_count
        format_: Format | None = None
        lines = documents = 0
        for number, line in self._lines(path):
            lines += 1
            try:
                for document in _documents(json.loads(line)):
                    format_ = format_ or self._format_of(document)
                    for request in format_.read(document, documents):
                        self._add(request, format_, document)
                    documents += 1
            except TraceError:
                raise
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
            ) as error:
                self._skip(BrokenLine(path, number, _problem_of(error)))
        if format_ is None:
            first = next((line.problem for line in self._broken_lines if line.path == path), "")
            problem = f"{first} (first of {lines:,} lines)" if lines else "the file is empty"
            self._not_traces.append(f"{path} is not a trace: {problem}")
            self._broken_count = broken_before
            self._broken_lines = [line for line in self._broken_lines if line.path != path]

    def _format_of(self, document: Any) -> Format:
        format_ = format_of(document)
        if format_ is None:
            raise ValueError(f"unknown format: {_summary(document)}")
        if format_.name not in self._formats:
            self._formats[format_.name] = format_
            if format_.note:
                self._notes.append(format_.note)
        return format_

    def _lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        with _open(path) as (lines, position):
            number = reported = 0
            try:
                while line := lines.readline(_MAX_LINE_BYTES):
                    number += 1
                    if self._progress and not number % 256:
                        now = position()
                        self._progress(now - reported)
                        reported = now
                    if line.strip():
                        yield number, line
            except (EOFError, gzip.BadGzipFile, OSError) as error:
                if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                    raise
                self._skip(BrokenLine(path, number + 1, f"the gzip file is damaged: {error}"))
            if self._progress:
                self._progress(position() - reported)

    def _skip(self, line: BrokenLine) -> None:
        self._broken_count += 1
        if len(self._broken_lines) < _MAX_BROKEN_LINES_KEPT:
            self._broken_lines.append(line)

    def _add(self, request: Request, format_: Format, document: Any) -> None:
        stated = document.get("block_size", document.get("chunk_size"))
        size = format_.block_tokens or (
            stated if type(stated) is int and stated > 0 else self._block_tokens
        )
        if self._builder is None:
            if size is None:
                self._sample.append(request)
                if len(self._sample) >= _BLOCK_SIZE_SAMPLE:
                    self._start(_block_size(self._sample))
                return
            self._start(size)
        assert self._builder is not None
        if size is not None and size != self._builder.block_tokens:
            raise TraceError(
                f"cannot combine chunks of {size} and {self._builder.block_tokens} tokens:"
                " replay these files one at a time"
            )
        self._builder.add(request)

    def _start(self, block_tokens: int) -> None:
        self._builder = TraceBuilder(block_tokens, full_blocks_only=self._full_only)
        for request in self._sample:
            self._builder.add(request)
        self._sample.clear()

    def finish(self, warm_up: float) -> Loaded:
        if self._builder is None and self._sample:
            self._start(_block_size(self._sample))
        if self._builder is None or not len(self._builder):
            reasons = (
                self._not_traces
                or [str(line) for line in self._broken_lines[:3]]
                or ["the input has no calls"]
            )
            formats = ", ".join(format_.name for format_ in FORMATS)
            raise TraceError("\n".join([*reasons, f"replay reads: {formats}"]))
        notes = self._notes + [f"skipped: {reason}" for reason in self._not_traces]
        return Loaded(
            self._builder.build(warm_up=warm_up),
            list(self._formats),
            notes,
            self._broken_count,
            self._broken_lines,
        )


def _documents(parsed: Any) -> Sequence[Any]:
    """Return the documents in a line: one, a list of them, or one conversation's messages."""
    if not isinstance(parsed, list):
        return [parsed]
    messages = parsed and all(isinstance(item, dict) and "role" in item for item in parsed)
    return [{"messages": parsed}] if messages else parsed


def _block_size(sample: list[Request]) -> int:
    """Return the block size that fits the prompt lengths.

    With the right size, each request has as many blocks as its length divided by the size, rounded
    either way.
    """
    for size in _BLOCK_SIZES:
        if all(0 <= len(request.blocks) - request.input_tokens // size <= 1 for request in sample):
            return size
    raise TraceError("cannot derive the tokens per chunk from the lengths: set --block-tokens")


def _problem_of(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg} at column {error.colno})"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    if isinstance(error, AttributeError):
        return "a value has the wrong type"
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__


def _summary(document: Any) -> str:
    return (
        f"keys {', '.join(map(str, list(document)[:6]))}"
        if isinstance(document, dict)
        else f"a {type(document).__name__}"
    )


@contextmanager
def _open(path: Path) -> Iterator[tuple[io.BufferedReader | gzip.GzipFile, Callable[[], int]]]:
    """Open a file and yield its lines, decompressed, and a function for the position in the file.

    The first two bytes tell whether the file is gzipped. The position is that of the compressed
    file.
    """
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if is_gzip:
            with gzip.GzipFile(fileobj=raw) as decompressed:
                yield decompressed, raw.tell
        else:
            yield raw, raw.tell

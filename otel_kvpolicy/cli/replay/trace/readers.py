"""Files, plain or gzip, and directories of them -> a trace. Lines are read one by one; what is kept of them is the trace alone."""

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
_KEPT: Final = 20
_SAMPLE: Final = 64
_FALLBACK_BLOCK: Final = 256
_MAX_LINE: Final = 64 << 20

ReadProgress = Callable[[int], None]
"""Told how many more bytes of the files have been read."""


class TraceError(Exception):
    """What was given is no trace; the text says what it is instead."""


@dataclass(frozen=True)
class BrokenLine:
    """A line that was passed over.

    Attributes:
        path: its file.
        number: its number, from 1.
        problem: what is wrong with it.
    """

    path: Path
    number: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.number}: {self.problem}"


@dataclass
class Loaded:
    """A trace and what was found on the way.

    Attributes:
        trace: the traffic.
        formats: names of the formats read.
        notes: what had to be assumed.
        broken: number of lines passed over.
        broken_lines: the first of them.
    """

    trace: Trace
    formats: list[str]
    notes: list[str] = field(default_factory=list)
    broken: int = 0
    broken_lines: list[BrokenLine] = field(default_factory=list)


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files in ``paths``: of a directory those that end like JSON lines, with or without ``.gz``, by name.

    Raises:
        TraceError: a path does not exist, or a directory holds none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                each
                for each in path.iterdir()
                if each.is_file() and each.name.removesuffix(".gz").endswith(_SUFFIXES)
            )
            if not inside:
                raise TraceError(f"{path}: no file in it ends in {', '.join(_SUFFIXES)} (or .gz)")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise TraceError(f"{path}: no such file")
    return found


def load(
    paths: Sequence[Path],
    *,
    block_tokens: int | None = None,
    full_blocks_only: bool = True,
    warm_up: float = 0.0,
    progress: ReadProgress | None = None,
) -> Loaded:
    """Reads a trace.

    Args:
        paths: files and directories; their requests are put in the order of their times.
        block_tokens: tokens of a block, for hashed traces that do not say; found out from the lengths where it is not given.
        full_blocks_only: see :class:`~otel_kvpolicy.cli.replay.trace.trace.TraceBuilder`.
        warm_up: share of the requests, 0 to 1, that fill the cache before any is counted.
        progress: told of the bytes read.

    Raises:
        TraceError: there is nothing to replay, or the files do not go together.
        OSError: a file cannot be read.
    """
    reading = _Reading(block_tokens, full_blocks_only, progress)
    for path in trace_files(paths):
        reading.file(path)
    return reading.done(warm_up)


class _Reading:
    def __init__(
        self, block_tokens: int | None, full_blocks_only: bool, progress: ReadProgress | None
    ) -> None:
        self._told = block_tokens
        self._full_only = full_blocks_only
        self._progress = progress
        self._builder: TraceBuilder | None = None
        self._sample: list[Request] = []
        self._formats: dict[str, Format] = {}
        self._loaded_broken = 0
        self._broken: list[BrokenLine] = []
        self._alien: list[str] = []
        self._notes: list[str] = []

    def file(self, path: Path) -> None:
        before = self._loaded_broken
        kind: Format | None = None
        lines = documents = 0
        for number, line in self._lines(path):
            lines += 1
            try:
                for document in _documents(json.loads(line)):
                    kind = kind or self._kind(document)
                    for request in kind.read(document, documents):
                        self._add(request, kind, document)
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
                self._passed_over(BrokenLine(path, number, _problem(error)))
        if kind is None:
            first = next((line.problem for line in self._broken if line.path == path), "")
            problem = f"{first} (the first of {lines:,} lines)" if lines else "it is empty"
            self._alien.append(f"{path} is no trace: {problem}")
            self._loaded_broken = before
            self._broken = [line for line in self._broken if line.path != path]

    def _kind(self, document: Any) -> Format:
        kind = format_of(document)
        if kind is None:
            raise ValueError(f"in no format that replay reads: {_glimpse(document)}")
        if kind.name not in self._formats:
            self._formats[kind.name] = kind
            if kind.note:
                self._notes.append(kind.note)
        return kind

    def _lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        with _opened(path) as (lines, position):
            number = at = 0
            try:
                while line := lines.readline(_MAX_LINE):
                    number += 1
                    if self._progress and not number % 256:
                        now = position()
                        self._progress(now - at)
                        at = now
                    if line.strip():
                        yield number, line
            except (EOFError, gzip.BadGzipFile, OSError) as error:
                if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                    raise
                self._passed_over(BrokenLine(path, number + 1, f"the file breaks off: {error}"))
            if self._progress:
                self._progress(position() - at)

    def _passed_over(self, line: BrokenLine) -> None:
        self._loaded_broken += 1
        if len(self._broken) < _KEPT:
            self._broken.append(line)

    def _add(self, request: Request, kind: Format, document: Any) -> None:
        said = document.get("block_size", document.get("chunk_size"))
        size = kind.block_tokens or (said if type(said) is int and said > 0 else self._told)
        if self._builder is None and size is None:
            self._sample.append(request)
            if len(self._sample) >= _SAMPLE:
                self._start(_block_size(self._sample))
            return
        if self._builder is None:
            self._start(size or _FALLBACK_BLOCK)
        builder = self._builder
        if builder is None:
            raise AssertionError  # started above
        if size is not None and size != builder.block_tokens:
            raise TraceError(
                f"blocks of {size} and of {builder.block_tokens} tokens do not go together: replay these files one by one"
            )
        builder.add(request)

    def _start(self, block_tokens: int) -> None:
        self._builder = TraceBuilder(block_tokens, full_blocks_only=self._full_only)
        for request in self._sample:
            self._builder.add(request)
        self._sample.clear()

    def done(self, warm_up: float) -> Loaded:
        if self._builder is None and self._sample:
            self._start(_block_size(self._sample))
        if self._builder is None or not len(self._builder):
            kinds = ", ".join(each.name for each in FORMATS)
            reasons = self._alien or [str(line) for line in self._broken[:3]] or ["no calls in it"]
            raise TraceError("\n".join([*reasons, f"replay reads: {kinds}"]))
        notes = self._notes + [f"passed over: {alien}" for alien in self._alien]
        return Loaded(
            self._builder.build(warm_up=warm_up),
            list(self._formats),
            notes,
            self._loaded_broken,
            self._broken,
        )


def _documents(parsed: Any) -> Sequence[Any]:
    """What a line holds: one document, a list of them, or the messages of a conversation."""
    if not isinstance(parsed, list):
        return [parsed]
    messages = parsed and all(isinstance(item, dict) and "role" in item for item in parsed)
    return [{"messages": parsed}] if messages else parsed


def _block_size(sample: list[Request]) -> int:
    """The size of block that fits the lengths: the number of blocks of each request is its length over it, rounded down or up."""
    for size in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        if all(0 <= len(request.blocks) - request.input_tokens // size <= 1 for request in sample):
            return size
    raise TraceError("the tokens of a block cannot be told from the lengths: give --block-tokens")


def _problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg} at column {error.colno})"
    if isinstance(error, KeyError):
        return f"has no {error.args[0]}"
    if isinstance(error, AttributeError):
        return "a value of another kind than its format has"
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__


def _glimpse(document: Any) -> str:
    return (
        f"keys {', '.join(map(str, list(document)[:6]))}"
        if isinstance(document, dict)
        else f"a {type(document).__name__}"
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedReader | gzip.GzipFile, Callable[[], int]]]:
    """The file's lines, unpacked where it begins like gzip, and the position in the file as it lies."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked, raw.tell
        else:
            yield raw, raw.tell

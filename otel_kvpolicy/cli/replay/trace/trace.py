"""A trace in memory: who asked when, how long the prompt was, and which prefix blocks it was made of.

Prefix blocks form a trie. What is kept of it is its *segments*: runs of blocks that every request in the trace has either all or none of. A
cache that drops the deepest block of the least recent request first always holds a leading part of a segment, so that simulating segments
gives block for block what simulating blocks would, in a fraction of the steps.

Memory: 4 bytes for each block of each request and about 250 bytes for each distinct block while reading; afterwards 8 bytes for each
segment of each request. Requests are taken one by one and not kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ....policy import CallText

NEVER: Final = 2**31 - 1
"""Index of a request that does not come."""

CHARS_PER_TOKEN: Final = 4
"""Traces count tokens, rules count characters: so many stand for one token, as in the rules' own default."""


class Request(NamedTuple):
    """One request of a trace.

    Attributes:
        time: when it came, in seconds since any point.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        blocks: one hashable id for each prefix block, the last of which may be partial. An id need only tell apart blocks that follow the
            same blocks.
        turns: model replies before it; ``None`` where the trace does not say.
        prefix_tokens: tokens of its stable prefix (system prompt and tools); ``None`` where the trace does not say.
        role: kind of call (agent, role, request type); ``None`` where the trace does not say.
    """

    time: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int | str]
    turns: int | None = None
    prefix_tokens: int | None = None
    role: str | None = None


class Trace:
    """What rules and simulators read. Made by :class:`TraceBuilder`.

    Attributes:
        block_tokens: tokens of a full block.
        times: seconds, one for each request.
        input_tokens: prompt tokens of each request.
        output_tokens: answer tokens of each request.
        texts: each request as the rules see it, in characters.
        roles: each request's kind.
        paths: segments of each request, from the start of the prompt.
        seen_blocks: leading blocks of each request that an earlier one had too.
        future_blocks: leading blocks of each request that a later one asks for again.
        next_use: for each segment of each path, the next request that has it, or :data:`NEVER`.
        segment_blocks: length of each segment.
        block_counts: blocks of each request.
        unique_blocks: blocks that differ.
        first_counted: the first request that counts; those before it only fill the cache.
        input_total: prompt tokens of the requests that count.
    """

    def __init__(
        self,
        *,
        block_tokens: int,
        times: list[float],
        input_tokens: list[int],
        output_tokens: list[int],
        texts: list[CallText],
        roles: list[str | None],
        paths: list[tuple[int, ...]],
        segment_blocks: list[int],
        first_counted: int = 0,
    ) -> None:
        self.block_tokens = block_tokens
        self.times = times
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.texts = texts
        self.roles = roles
        self.paths = paths
        self.segment_blocks = segment_blocks
        self.block_counts = [sum(map(segment_blocks.__getitem__, path)) for path in paths]
        self.unique_blocks = sum(segment_blocks)
        self.next_use = _next_use(paths, len(segment_blocks))
        self.future_blocks = [
            sum(
                segment_blocks[segment]
                for segment, use in zip(path, uses, strict=True)
                if use != NEVER
            )
            for path, uses in zip(paths, self.next_use, strict=True)
        ]
        self.seen_blocks = _seen(paths, segment_blocks)
        self.first_counted = first_counted
        self.input_total = sum(input_tokens[first_counted:])

    def __len__(self) -> int:
        return len(self.paths)


def _next_use(paths: list[tuple[int, ...]], segments: int) -> list[tuple[int, ...]]:
    upcoming = [NEVER] * segments
    found: list[tuple[int, ...]] = []
    for at in range(len(paths) - 1, -1, -1):
        path = paths[at]
        found.append(tuple(map(upcoming.__getitem__, path)))
        for segment in path:
            upcoming[segment] = at
    found.reverse()
    return found


def _seen(paths: list[tuple[int, ...]], segment_blocks: list[int]) -> list[int]:
    known = bytearray(len(segment_blocks))
    seen = []
    for path in paths:
        blocks = 0
        for segment in path:
            if known[segment]:
                blocks += segment_blocks[segment]
            known[segment] = 1
        seen.append(blocks)
    return seen


def _guess_turns(paths: list[tuple[int, ...]], segment_blocks: list[int]) -> list[int]:
    """Turns, for traces that do not say.

    A request that shares more than its first block (which all requests with one system prompt share) with an earlier one is taken for the
    next turn of the latest of these.
    """
    latest = [-1] * len(segment_blocks)
    turns: list[int] = []
    for at, path in enumerate(paths):
        blocks, guess = 0, 0
        for segment in path:
            blocks += segment_blocks[segment]
            before = latest[segment]
            if before >= 0 and blocks > 1:
                guess = turns[before] + 1
            latest[segment] = at
        turns.append(guess)
    return turns


class TraceBuilder:
    """Takes requests one by one.

    Args:
        block_tokens: tokens of a full block.
        full_blocks_only: leaves a partial last block out, as LMCache does; ``False`` keeps it, as ``kvcache-simulator`` does.
    """

    def __init__(self, block_tokens: int, *, full_blocks_only: bool = True) -> None:
        if block_tokens < 1:
            raise ValueError(f"a block has at least one token, not {block_tokens}")
        self.block_tokens = block_tokens
        self._full_only = full_blocks_only
        self._names: dict[int | str, int] = {}
        self._children: dict[int, int] = {}
        self._parents = array("i")
        self._nodes = array("i")
        self._ends = array("q")
        self._times = array("d")
        self._input = array("q")
        self._output = array("q")
        self._turns = array("i")
        self._prefix = array("q")
        self._roles: list[str | None] = []

    def add(self, request: Request) -> None:
        """Takes one more request, in any order."""
        blocks: Sequence[int | str] = request.blocks
        if self._full_only:
            blocks = blocks[: request.input_tokens // self.block_tokens]
        self._walk(blocks)
        self._ends.append(len(self._nodes))
        self._times.append(request.time)
        self._input.append(request.input_tokens)
        self._output.append(request.output_tokens)
        self._turns.append(-1 if request.turns is None else request.turns)
        self._prefix.append(-1 if request.prefix_tokens is None else request.prefix_tokens)
        self._roles.append(request.role)

    def __len__(self) -> int:
        return len(self._times)

    def _walk(self, blocks: Sequence[int | str]) -> None:
        """Adds a request's blocks to the trie."""
        names, children, parents, nodes = self._names, self._children, self._parents, self._nodes
        node = 0  # the root; others count from 1
        for block in blocks:
            name = names.setdefault(block, len(names))
            edge = node << 31 | name
            child = children.get(edge)
            if child is None:
                parents.append(node)
                child = children[edge] = len(parents)
            nodes.append(child)
            node = child

    def build(self, *, warm_up: float = 0.0) -> Trace:
        """The trace, in the order of the requests' times; the builder is used up.

        Args:
            warm_up: share of the requests, 0 to 1, that fill the cache before any is counted.
        """
        self._names.clear()
        self._children.clear()
        paths, segment_blocks = self._segments()
        order = np.argsort(
            np.frombuffer(self._times) if len(self) else np.empty(0), kind="stable"
        ).tolist()
        paths = [paths[at] for at in order]
        guessed = _guess_turns(paths, segment_blocks)
        turns = [
            guess if self._turns[at] < 0 else self._turns[at]
            for at, guess in zip(order, guessed, strict=True)
        ]
        return Trace(
            block_tokens=self.block_tokens,
            times=[self._times[at] for at in order],
            input_tokens=[self._input[at] for at in order],
            output_tokens=[self._output[at] for at in order],
            texts=[
                _text(self._input[at], replies, self._prefix[at], self.block_tokens)
                for at, replies in zip(order, turns, strict=True)
            ],
            roles=[self._roles[at] for at in order],
            paths=paths,
            segment_blocks=segment_blocks,
            first_counted=int(len(paths) * warm_up),
        )

    def _segments(self) -> tuple[list[tuple[int, ...]], list[int]]:
        """Joins nodes into segments. A node's only child was made right after it, by the same request: segments are runs of numbers."""
        if not len(self._nodes):
            return [() for _ in self._ends], []
        parents = np.frombuffer(self._parents, dtype=np.int32)
        nodes = np.frombuffer(self._nodes, dtype=np.int32)
        ends = np.frombuffer(self._ends, dtype=np.int64)
        last: npt.NDArray[np.bool_] = np.bincount(parents, minlength=len(parents) + 1) != 1
        last[0] = True
        starts = np.concatenate(([0], ends[:-1]))
        last[nodes[ends[ends > starts] - 1]] = True  # a request ends here, and another may go on
        first = last[parents]
        segment_of = np.cumsum(first) - 1
        lengths = np.bincount(segment_of)
        at_start = first[nodes - 1]
        flat = segment_of[nodes[at_start] - 1].tolist()
        bounds = np.concatenate(([0], np.cumsum(at_start)))[ends].tolist()
        paths, begin = [], 0
        for end in bounds:
            paths.append(tuple(flat[begin:end]))
            begin = end
        return paths, lengths.tolist()


def _text(tokens: int, turns: int, prefix: int, block_tokens: int) -> CallText:
    """A request as the rules see it: what is known of its parts, the rest as history (with turns) or as the user's (without)."""
    known = min(max(prefix, 0), tokens)
    rest = (tokens - known) * CHARS_PER_TOKEN
    new = min(rest, block_tokens * CHARS_PER_TOKEN) if turns else rest
    return CallText(
        prefix_chars=known * CHARS_PER_TOKEN,
        history_chars=rest - new,
        user_chars=new,
        history_turns=turns,
    )


def build_trace(
    requests: Iterable[Request],
    block_tokens: int,
    *,
    full_blocks_only: bool = True,
    warm_up: float = 0.0,
) -> Trace:
    """The trace of ``requests``; see :class:`TraceBuilder`."""
    builder = TraceBuilder(block_tokens, full_blocks_only=full_blocks_only)
    for request in requests:
        builder.add(request)
    return builder.build(warm_up=warm_up)

"""A trace in memory: for each request its time, its length, and the prefix blocks of its prompt.

The prefix blocks of all requests form a trie. A trace keeps only the trie's *segments*: a segment
is a run of blocks of which every request has either all or none. A cache that evicts the deepest
block of the least recently used request first always holds a leading part of a segment. Simulating
segments therefore gives the same result, block for block, as simulating single blocks, in a
fraction of the steps.

Memory while reading: 4 bytes per block of each request, and about 250 bytes per distinct block.
Memory afterwards: 8 bytes per segment of each request. Requests are added one at a time and are
not kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ....policy import CallText

NEVER: Final = 2**31 - 1
"""Stands for the index of a request that never comes."""

CHARS_PER_TOKEN: Final = 4
"""Characters per token, as in the rules' default: traces count tokens, rules count characters."""


class Request(NamedTuple):
    """One request of a trace.

    Attributes:
        time: arrival time in seconds, from any starting point.
        input_tokens: tokens in the prompt.
        output_tokens: tokens in the answer.
        blocks: one hashable id per prefix block; the last block may be partial. Two blocks need
            different ids only if they follow the same blocks.
        turns: model replies in the prompt, or ``None`` if the trace does not have them.
        prefix_tokens: tokens in the stable prefix (system prompt and tools), or ``None`` if the
            trace does not have them.
        role: kind of call (agent, role, request type), or ``None`` if the trace does not have it.
    """

    time: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int | str]
    turns: int | None = None
    prefix_tokens: int | None = None
    role: str | None = None


class Trace:
    """Traffic as rules and simulators read it. Build one with :class:`TraceBuilder`.

    A block is the unit in which the cache stores a prompt; LMCache calls it a chunk. Lists that
    describe requests are in the order of arrival.

    Attributes:
        block_tokens: tokens in a full block.
        times: arrival time of each request, in seconds.
        input_tokens: prompt tokens of each request.
        output_tokens: answer tokens of each request.
        texts: size of each part of each prompt, in characters, as the rules see it.
        roles: kind of each request.
        paths: segments of each request, from the start of the prompt.
        seen_blocks: number of leading blocks of each request that an earlier request had too.
        future_blocks: number of leading blocks of each request that a later request has too.
        next_use: for each segment of each path, the next request that has it, or :data:`NEVER`.
        segment_blocks: number of blocks in each segment.
        block_counts: number of blocks in each request.
        unique_blocks: number of distinct blocks.
        first_counted: index of the first request that counts. Earlier requests only warm the cache.
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
        self.seen_blocks = _seen_blocks(paths, segment_blocks)
        self.first_counted = first_counted
        self.input_total = sum(input_tokens[first_counted:])

    def __len__(self) -> int:
        return len(self.paths)


def _next_use(paths: list[tuple[int, ...]], segments: int) -> list[tuple[int, ...]]:
    upcoming = [NEVER] * segments
    uses: list[tuple[int, ...]] = []
    for request in range(len(paths) - 1, -1, -1):
        path = paths[request]
        uses.append(tuple(map(upcoming.__getitem__, path)))
        for segment in path:
            upcoming[segment] = request
    uses.reverse()
    return uses


def _seen_blocks(paths: list[tuple[int, ...]], segment_blocks: list[int]) -> list[int]:
    seen = bytearray(len(segment_blocks))
    counts = []
    for path in paths:
        blocks = 0
        for segment in path:
            if seen[segment]:
                blocks += segment_blocks[segment]
            seen[segment] = 1
        counts.append(blocks)
    return counts


def _guess_turns(paths: list[tuple[int, ...]], segment_blocks: list[int]) -> list[int]:
    """Guess the turns of each request, for traces that do not have them.

    A request that shares more than one block with earlier requests counts as the next turn of the
    latest of them. One shared block is not enough: it may be a common system prompt.
    """
    latest = [-1] * len(segment_blocks)
    turns: list[int] = []
    for request, path in enumerate(paths):
        blocks, guess = 0, 0
        for segment in path:
            blocks += segment_blocks[segment]
            previous = latest[segment]
            if previous >= 0 and blocks > 1:
                guess = turns[previous] + 1
            latest[segment] = request
        turns.append(guess)
    return turns


class TraceBuilder:
    """Builds a trace from requests that are added one at a time.

    Args:
        block_tokens: tokens in a full block.
        full_blocks_only: drop a partial last block, as LMCache does. ``False`` keeps it, as
            ``kvcache-simulator`` does.
    """

    def __init__(self, block_tokens: int, *, full_blocks_only: bool = True) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
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
        """Add a request. The order does not matter."""
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
        """Add the blocks of one request to the trie."""
        names, children, parents, nodes = self._names, self._children, self._parents, self._nodes
        node = 0  # the root; other nodes are numbered from 1
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
        """Return the trace, with the requests in order of time. Do not use the builder after this.

        Args:
            warm_up: share of the requests, 0 to 1, that only warm the cache and do not count.
        """
        self._names.clear()
        self._children.clear()
        paths, segment_blocks = self._segments()
        order = np.argsort(
            np.frombuffer(self._times) if len(self) else np.empty(0), kind="stable"
        ).tolist()
        paths = [paths[index] for index in order]
        guesses = _guess_turns(paths, segment_blocks)
        turns = [
            guess if self._turns[index] < 0 else self._turns[index]
            for index, guess in zip(order, guesses, strict=True)
        ]
        return Trace(
            block_tokens=self.block_tokens,
            times=[self._times[index] for index in order],
            input_tokens=[self._input[index] for index in order],
            output_tokens=[self._output[index] for index in order],
            texts=[
                _text(self._input[index], replies, self._prefix[index], self.block_tokens)
                for index, replies in zip(order, turns, strict=True)
            ],
            roles=[self._roles[index] for index in order],
            paths=paths,
            segment_blocks=segment_blocks,
            first_counted=int(len(paths) * warm_up),
        )

    def _segments(self) -> tuple[list[tuple[int, ...]], list[int]]:
        """Join the nodes of the trie into segments.

        If a node has one child and no request ends at the node, the same request added the child
        right after it. A segment is therefore a run of consecutive node numbers.
        """
        if not len(self._nodes):
            return [() for _ in self._ends], []
        parents = np.frombuffer(self._parents, dtype=np.int32)
        nodes = np.frombuffer(self._nodes, dtype=np.int32)
        ends = np.frombuffer(self._ends, dtype=np.int64)
        last: npt.NDArray[np.bool_] = np.bincount(parents, minlength=len(parents) + 1) != 1
        last[0] = True
        starts = np.concatenate(([0], ends[:-1]))
        last[nodes[ends[ends > starts] - 1]] = True  # another request may continue
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
    """Return the sizes of a prompt's parts as the rules see them.

    What does not belong to the stable prefix counts as the user's message, or, in a conversation
    with turns, as history except for one last block.
    """
    prefix = min(max(prefix, 0), tokens)
    rest = (tokens - prefix) * CHARS_PER_TOKEN
    new = min(rest, block_tokens * CHARS_PER_TOKEN) if turns else rest
    return CallText(
        prefix_chars=prefix * CHARS_PER_TOKEN,
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
    """Build a trace from ``requests``; for the arguments see :class:`TraceBuilder`."""
    builder = TraceBuilder(block_tokens, full_blocks_only=full_blocks_only)
    for request in requests:
        builder.add(request)
    return builder.build(warm_up=warm_up)

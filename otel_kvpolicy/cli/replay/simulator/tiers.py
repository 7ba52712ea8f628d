"""Cache tiers over the segments of a trace: LRU, and Belady's optimum with bypass.

Both evict the deepest block of a prefix first, so that every cached block can be reached from the
start of a prompt.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final

from ..trace import NEVER, Trace

UNBOUNDED: Final = 2**62
"""A capacity that is never exceeded."""


class LruTier:
    """An LRU cache of prefix blocks.

    Args:
        trace: the trace whose segments it stores.
        capacity: number of blocks it has room for.

    Attributes:
        written: number of blocks written so far.
        evicted: number of blocks evicted so far.
        dead: number of blocks evicted that were never read after they were written.
    """

    def __init__(self, trace: Trace, capacity: int) -> None:
        self.capacity = capacity
        self.written = self.evicted = self.dead = 0
        self._lengths = trace.segment_blocks
        # Number of leading blocks of each segment that are cached, and that were read since.
        self._held = [0] * len(self._lengths)
        self._read = [0] * len(self._lengths)
        # Least recently used first; within a request, deepest first.
        self._order: OrderedDict[int, None] = OrderedDict()
        self._size = 0

    def lookup(self, path: tuple[int, ...]) -> int:
        """Return how many leading blocks of ``path`` are cached, without reading them."""
        held, lengths = self._held, self._lengths
        blocks = 0
        for segment in path:
            in_segment = held[segment]
            blocks += in_segment
            if in_segment != lengths[segment]:
                break
        return blocks

    def access(self, path: tuple[int, ...], hit: int, limit: int) -> int:
        """Read the ``hit`` leading blocks, and write those missing from the first ``limit``.

        Args:
            path: the request's segments.
            hit: the result of :meth:`lookup`.
            limit: number of leading blocks to hold afterwards, if they fit.

        Returns:
            The number of blocks written.
        """
        held, read, order = self._held, self._read, self._order
        touched = 0
        left = hit
        for segment in path:
            if left <= 0:
                break
            touched += 1
            read[segment] = held[segment]
            left -= held[segment]
        if limit <= hit:
            for segment in reversed(path[:touched]):
                order.move_to_end(segment)
            return 0
        return self._write(path, touched, hit, limit)

    def _write(self, path: tuple[int, ...], touched: int, hit: int, limit: int) -> int:
        held, lengths, order = self._held, self._lengths, self._order
        for segment in path[:touched]:
            order.move_to_end(segment)  # protects it from the eviction below
        room = self.capacity - hit
        wanted = limit - hit
        count = min(wanted, room)
        self._evict(self._size + count - self.capacity)
        self._size += count
        self.written += count
        left = count
        deepest = touched
        for depth in range(max(touched - 1, 0), len(path)):
            if left <= 0:
                break
            segment = path[depth]
            added = min(left, lengths[segment] - held[segment])
            held[segment] += added
            left -= added
            if added:
                order[segment] = None
                deepest = depth + 1
        for segment in reversed(path[:deepest]):
            order.move_to_end(segment)
        if wanted > room > 0:
            # The prompt is longer than the cache. The next block could only evict the block before
            # it, after which nothing can follow.
            self._drop(path[deepest - 1], 1)
        return count

    def _evict(self, blocks: int) -> None:
        order, held = self._order, self._held
        while blocks > 0:
            segment = next(iter(order))
            count = min(blocks, held[segment])
            self._drop(segment, count)
            blocks -= count

    def _drop(self, segment: int, count: int) -> None:
        left = self._held[segment] = self._held[segment] - count
        self._size -= count
        self.evicted += count
        unread = left + count - max(self._read[segment], left)
        if unread > 0:
            self.dead += unread
        self._read[segment] = min(self._read[segment], left)
        if not left:
            del self._order[segment]

    @property
    def unread(self) -> int:
        """Number of cached blocks that were never read after they were written."""
        return sum(self._held[segment] - self._read[segment] for segment in self._order)


class BeladyTier:
    """A cache that knows the future: Belady's optimum with bypass.

    It evicts the block whose next use is furthest away, and does not admit a block whose next use
    is further away still. It works on the leaves of the trie. The arguments and counters are those
    of :class:`LruTier`.

    Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM
    Systems Journal 5(2), 1966.
    """

    def __init__(self, trace: Trace, capacity: int) -> None:
        self.capacity = capacity
        self.written = self.evicted = self.dead = 0
        self._next_use = trace.next_use
        self._lengths = trace.segment_blocks
        self._held = [0] * len(self._lengths)
        self._read = [0] * len(self._lengths)
        self._parent = [-1] * len(self._lengths)
        self._children = [0] * len(self._lengths)
        self._due = [0] * len(self._lengths)  # next use of each segment
        # A heap of (-next use, segment). Stale entries stay in it and are skipped.
        self._leaves: list[tuple[int, int]] = []
        self._size = 0

    def access(self, path: tuple[int, ...], request: int) -> tuple[int, int]:
        """Read the cached blocks of ``path``, and admit those that are worth it.

        Args:
            path: the request's segments.
            request: index in the trace.

        Returns:
            The number of leading blocks that were cached, and the number of blocks written.
        """
        uses = self._next_use[request]
        hit, start = self._read_held(path, uses)
        written = 0
        for depth in range(start, len(path)):
            segment = path[depth]
            count = self._admit(segment, path[depth - 1] if depth else -1, uses[depth])
            written += count
            if self._held[segment] < self._lengths[segment]:
                break
        self.written += written
        return hit, written

    def _read_held(self, path: tuple[int, ...], uses: tuple[int, ...]) -> tuple[int, int]:
        """Read the cached blocks of ``path``.

        Returns:
            Their number, and the depth of the first segment that is not completely cached.
        """
        hit = 0
        for depth, segment in enumerate(path):
            held = self._held[segment]
            if held:
                hit += held
                self._read[segment] = held
                self._update(segment, uses[depth])
            if held < self._lengths[segment]:
                return hit, depth
        return hit, len(path)

    def _admit(self, segment: int, parent: int, due: int) -> int:
        if due == NEVER:
            return 0
        wanted = self._lengths[segment] - self._held[segment]
        room = self.capacity - self._size
        while room < wanted:
            freed = self._evict_later_than(due, wanted - room)
            if not freed:
                break
            room += freed
        count = min(wanted, room)
        if count > 0:
            if not self._held[segment]:
                self._parent[segment] = parent
                if parent >= 0:
                    self._children[parent] += 1
            self._held[segment] += count
            self._size += count
            self._update(segment, due)
        return count

    def _update(self, segment: int, due: int) -> None:
        self._due[segment] = due
        if not self._children[segment]:
            heapq.heappush(self._leaves, (-due, segment))

    def _evict_later_than(self, due: int, wanted: int) -> int:
        leaves = self._leaves
        while leaves:
            key, segment = leaves[0]
            if self._children[segment] or not self._held[segment] or self._due[segment] != -key:
                heapq.heappop(leaves)
                continue
            return 0 if -key <= due else self._drop(segment, min(wanted, self._held[segment]))
        return 0

    def _drop(self, segment: int, count: int) -> int:
        left = self._held[segment] = self._held[segment] - count
        self._size -= count
        self.evicted += count
        self.dead += max(left + count - max(self._read[segment], left), 0)
        self._read[segment] = min(self._read[segment], left)
        parent = self._parent[segment]
        if not left and parent >= 0:
            self._children[parent] -= 1
            if not self._children[parent]:
                heapq.heappush(self._leaves, (-self._due[parent], parent))
        return count

    @property
    def unread(self) -> int:
        """Number of cached blocks that were never read after they were written."""
        return sum(map(int.__sub__, self._held, self._read))

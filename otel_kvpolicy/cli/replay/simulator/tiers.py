"""Cache tiers over the segments of a trace: LRU, and Belady's optimum with bypass.

Both evict the deepest block of a prefix first, so that what they hold can always be reached from the start of a prompt.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final

from ..trace.trace import NEVER, Trace

UNBOUNDED: Final = 2**62
"""A capacity that nothing fills."""


class LruTier:
    """An LRU cache of prefix blocks.

    Args:
        trace: whose segments it holds.
        capacity: blocks it has room for.

    Attributes:
        written: blocks written so far.
        evicted: blocks evicted so far.
        dead: blocks evicted that were never read after they were written.
    """

    def __init__(self, trace: Trace, capacity: int) -> None:
        self.capacity = capacity
        self.written = self.evicted = self.dead = 0
        self._lengths = trace.segment_blocks
        self._held = [0] * len(self._lengths)  # leading blocks of each segment
        self._read = [0] * len(
            self._lengths
        )  # of those, how many were read since they were written
        self._order: OrderedDict[int, None] = (
            OrderedDict()
        )  # least recent, and within a request deepest, first
        self._size = 0

    def lookup(self, path: tuple[int, ...]) -> int:
        """Leading blocks of ``path`` that are held; changes nothing."""
        held, lengths = self._held, self._lengths
        blocks = 0
        for segment in path:
            found = held[segment]
            blocks += found
            if found != lengths[segment]:
                break
        return blocks

    def access(self, path: tuple[int, ...], hit: int, limit: int) -> int:
        """Reads the ``hit`` leading blocks and writes what is missing of the first ``limit``.

        Args:
            path: the request's segments.
            hit: what :meth:`lookup` said.
            limit: leading blocks that are to be held afterwards, if they fit.

        Returns:
            Blocks written.
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
            order.move_to_end(segment)  # out of the way of the eviction
        room = self.capacity - hit
        wanted = limit - hit
        count = min(wanted, room)
        self._evict(self._size + count - self.capacity)
        self._size += count
        self.written += count
        left = count
        deepest = touched
        for at in range(max(touched - 1, 0), len(path)):
            if left <= 0:
                break
            segment = path[at]
            added = min(left, lengths[segment] - held[segment])
            held[segment] += added
            left -= added
            if added:
                order[segment] = None
                deepest = at + 1
        for segment in reversed(path[:deepest]):
            order.move_to_end(segment)
        if wanted > room > 0:
            # Longer than the whole cache: looking for room, it finds only its own last block, and cannot follow on what it dropped.
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
        """Blocks held that were never read after they were written."""
        return sum(self._held[segment] - self._read[segment] for segment in self._order)


class BeladyTier:
    """What a cache that knows the future would hold.

    It evicts what is needed last, and does not take in what is needed later still or never.

    L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966; with bypass, over the
    leaves of the trie. Takes and counts the same as :class:`LruTier`, but needs to be told which request it is.
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
        self._due = [0] * len(self._lengths)
        self._leaves: list[
            tuple[int, int]
        ] = []  # (-next use, segment); stale entries are passed over
        self._size = 0

    def access(self, path: tuple[int, ...], request: int) -> tuple[int, int]:
        """Reads what is held of ``path`` and takes in what is worth it.

        Returns:
            Leading blocks that were held, and blocks written.
        """
        uses = self._next_use[request]
        hit, start = self._read_held(path, uses)
        written = 0
        for at in range(start, len(path)):
            segment = path[at]
            count = self._take(segment, path[at - 1] if at else -1, uses[at])
            written += count
            if self._held[segment] < self._lengths[segment]:
                break
        self.written += written
        return hit, written

    def _read_held(self, path: tuple[int, ...], uses: tuple[int, ...]) -> tuple[int, int]:
        """Blocks of ``path`` that are held, and the place of the first segment that is not held whole."""
        hit = 0
        for at, segment in enumerate(path):
            held = self._held[segment]
            if held:
                hit += held
                self._read[segment] = held
                self._update(segment, uses[at])
            if held < self._lengths[segment]:
                return hit, at
        return hit, len(path)

    def _take(self, segment: int, parent: int, due: int) -> int:
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
        """Blocks held that were never read after they were written."""
        return sum(map(int.__sub__, self._held, self._read))

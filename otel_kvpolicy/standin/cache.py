"""LMCache's tiers without their data: where each chunk is, what is evicted, and what is counted."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

Key = bytes
"""Chained hash of a chunk, which identifies the chunk and everything before it."""


class Counts:
    """Counters by metric name and labels.

    As with OpenTelemetry, a series does not exist before its first increment, which may be zero.
    """

    def __init__(self) -> None:
        self.values: dict[str, Counter[tuple[tuple[str, str], ...]]] = {}

    def add(self, name: str, amount: int, **labels: str) -> None:
        """Add ``amount`` to the series ``name`` with ``labels``."""
        series = self.values.setdefault(name, Counter())
        series[tuple(sorted(labels.items()))] += amount

    def total(self, name: str) -> int:
        """Return the sum over all label sets, or 0 if the metric has no series."""
        return sum(self.values.get(name, Counter()).values())


class Lookup(NamedTuple):
    """Number of leading chunks found: those in L1, and those that L2 adds after them."""

    l1: int
    l2: int

    @property
    def hit(self) -> int:
        """Number of leading chunks found in either tier."""
        return self.l1 + self.l2


class Tier:
    """One LRU tier of chunks of equal size.

    Args:
        capacity_bytes: capacity; 0 stores nothing.
        chunk_bytes: size of a chunk.
        watermark: share of the capacity above which an eviction runs.
        ratio: share of the stored chunks that an eviction takes, but at least one chunk.
    """

    def __init__(
        self, capacity_bytes: int, chunk_bytes: int, watermark: float, ratio: float
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.chunk_bytes = chunk_bytes
        self._watermark = watermark
        self._ratio = ratio
        self._order: OrderedDict[Key, None] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._order

    def __len__(self) -> int:
        return len(self._order)

    @property
    def used_bytes(self) -> int:
        """Bytes stored."""
        return len(self._order) * self.chunk_bytes

    def prefix(self, keys: Sequence[Key]) -> int:
        """Return how many leading keys are stored, up to the first that is missing."""
        count = 0
        while count < len(keys) and keys[count] in self._order:
            count += 1
        return count

    def touch(self, keys: Sequence[Key]) -> None:
        """Mark the chunks of one prompt as used.

        The first chunk becomes the most recently used one, so that a prefix is evicted from its
        end, as in LMCache.
        """
        for key in reversed(keys):
            if key in self._order:
                self._order.move_to_end(key)

    def add(self, keys: Sequence[Key]) -> list[Key]:
        """Store the chunks of one prompt as far as they fit. Return the new ones, first to last."""
        room = (self.capacity_bytes - self.used_bytes) // self.chunk_bytes
        new = [key for key in keys if key not in self._order][: max(0, room)]
        for key in new:
            self._order[key] = None
        self.touch(keys)
        return new

    def due(self) -> int:
        """Return how many chunks an eviction would take now: 0 below the watermark."""
        if self.used_bytes < self._watermark * self.capacity_bytes or not self._order:
            return 0
        return max(1, int(len(self._order) * self._ratio))

    def evict(self, count: int) -> int:
        """Drop the ``count`` least recently used chunks. Return ``count``."""
        for _ in range(count):
            self._order.popitem(last=False)
        return count

    def clear(self) -> None:
        """Remove all chunks."""
        self._order.clear()


class TieredCache:
    """L1 in memory and a larger L2 behind it, with the default policies of LMCache 0.5.6.

    Every stored chunk is written through to L2. Chunks that a lookup finds only in L2 are loaded
    into L1 before they are served. Source: ``v1/distributed`` in LMCache 0.5.6.

    Args:
        l1: the memory tier.
        l2: the backend, or None.
        counts: receives the metrics, named as in LMCache without ``lmcache_mp_`` and ``_total``.
    """

    def __init__(self, l1: Tier, l2: Tier | None, counts: Counts) -> None:
        self.l1 = l1
        self.l2 = l2
        self._counts = counts

    def lookup(self, keys: Sequence[Key]) -> Lookup:
        """Find the longest prefix that L1 and L2 have, and load what only L2 has."""
        from_l1 = self.l1.prefix(keys)
        found = from_l1
        while found < len(keys) and (
            keys[found] in self.l1 or (self.l2 is not None and keys[found] in self.l2)
        ):
            found += 1
        if self.l2 is not None:
            self._count("l2_prefetch_lookup_requests", 1)
            self._count("l2_prefetch_lookup_objects_chunks", len(keys))
            self._load(keys[:found])
        self.l1.touch(keys[:found])
        if found:
            self._count("l1_read_chunks", found, l1_tag="_default")
        return Lookup(from_l1, found - from_l1)

    def store(self, keys: Sequence[Key]) -> int:
        """Store the chunks of one prompt. Return how many were written to L1."""
        written = self.l1.add(keys)
        if not written:
            return 0
        self._count("l1_write_chunks", len(written), l1_tag="_default")
        if self.l2 is not None:
            self._write_through(written)
        self._evict()
        return len(written)

    def clear_l1(self) -> None:
        """Empty L1 but not L2, as LMCache's ``POST /cache/clear`` does."""
        self.l1.clear()

    def _load(self, keys: Sequence[Key]) -> None:
        assert self.l2 is not None
        missing = [key for key in keys if key not in self.l1]
        if not missing:
            return
        self._count("l2_prefetch_load_submitted_requests", 1)
        self._count("l2_prefetch_load_submitted_objects_chunks", len(missing))
        self.l2.touch(missing)
        loaded = self.l1.add(missing)
        self._count("l1_write_chunks", len(loaded), l1_tag="_default")
        self._count("l2_load_completed_requests", 1, l2_name="fs")
        self._count("l2_prefetch_load_completed_chunks", len(loaded))
        self._evict()

    def _write_through(self, keys: Sequence[Key]) -> None:
        assert self.l2 is not None
        self._count("l2_store_submitted_requests", 1)
        self._count("l2_store_submitted_objects_chunks", len(keys))
        self._count("l1_read_chunks", len(keys), l1_tag="_default")
        self.l2.add(keys)
        self._count("l2_store_completed_requests", 1, l2_name="fs")
        self._count("l2_store_completed_objects_chunks", len(keys))

    def _evict(self) -> None:
        """Evict from each tier that is above its watermark.

        LMCache does this in a background loop. Here it happens right after each write.
        """
        if due := self.l1.due():
            self._count("l1_eviction_loop_triggered", 1)
            self._count("l1_evicted_chunks", self.l1.evict(due), l1_tag="_default")
        if self.l2 is not None and (due := self.l2.due()):
            self._count("l2_evicted_objects_chunks", self.l2.evict(due))

    def _count(self, name: str, amount: int, **labels: str) -> None:
        self._counts.add(name, amount, **labels)

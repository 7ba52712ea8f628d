"""Caches simulated block by block, in the plainest way: the reference for the fast tiers."""

from __future__ import annotations

from collections.abc import Sequence

Prefix = tuple[int, ...]


class BlockLru:
    """An LRU cache of prefixes. Within a request, the deepest block is the oldest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: list[Prefix] = []  # oldest first
        self.read: set[Prefix] = set()
        self.written = self.evicted = self.dead = 0

    def held(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks of a prompt are cached."""
        return next(
            (end for end in range(len(blocks)) if tuple(blocks[: end + 1]) not in self.order),
            len(blocks),
        )

    def access(self, blocks: Sequence[int], limit: int) -> int:
        """Read the cached blocks of a prompt, and write those missing from its first ``limit``."""
        prefixes = [tuple(blocks[: end + 1]) for end in range(len(blocks))]
        hit = self.held(blocks)
        self.read.update(prefixes[:hit])
        for prefix in reversed(prefixes[:hit]):
            self._touch(prefix)
        held = prefixes[:hit]
        for prefix in prefixes[hit:limit]:
            if len(self.order) == self.capacity and not self._make_room(held, hit):
                break
            self.order.append(prefix)
            held.append(prefix)
            self.written += 1
        for prefix in reversed(held):
            self._touch(prefix)
        return hit

    def _touch(self, prefix: Prefix) -> None:
        self.order.remove(prefix)
        self.order.append(prefix)

    def _make_room(self, held: list[Prefix], hit: int) -> bool:
        """Drop the oldest block of other prompts.

        If there is none, drop the block written last, after which nothing can follow.
        """
        others = [prefix for prefix in self.order if prefix not in held]
        if others:
            self._drop(others[0])
        elif len(held) > hit:
            self._drop(held.pop())
        return bool(others)

    def _drop(self, prefix: Prefix) -> None:
        self.order.remove(prefix)
        self.evicted += 1
        self.dead += prefix not in self.read
        self.read.discard(prefix)

    @property
    def unread(self) -> int:
        return sum(prefix not in self.read for prefix in self.order)


def best_possible(prompts: Sequence[Sequence[int]], capacity: int) -> int:
    """Return the highest possible number of hit blocks, by trying everything a cache could do.

    Only for very small traces.
    """
    states: dict[frozenset[Prefix], int] = {frozenset(): 0}
    for blocks in prompts:
        prefixes = [tuple(blocks[: end + 1]) for end in range(len(blocks))]
        scores: dict[frozenset[Prefix], int] = {}
        for held, score in states.items():
            hit = next(
                (i for i, prefix in enumerate(prefixes) if prefix not in held), len(prefixes)
            )
            for kept in _subtrees(held | set(prefixes), capacity):
                scores[kept] = max(scores.get(kept, -1), score + hit)
        states = scores
    return max(states.values())


def _subtrees(prefixes: frozenset[Prefix] | set[Prefix], capacity: int) -> set[frozenset[Prefix]]:
    """Return every set of up to ``capacity`` prefixes in which each prefix has its parent."""
    subtrees = {frozenset[Prefix]()}
    for prefix in sorted(prefixes, key=len):
        subtrees |= {
            kept | {prefix}
            for kept in subtrees
            if len(kept) < capacity and (len(prefix) == 1 or prefix[:-1] in kept)
        }
    return subtrees

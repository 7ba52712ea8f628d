"""Runs one rule over one trace and one set of cache tiers, and counts.

The tiers are those of vLLM with LMCache: the GPU's own prefix cache (optional; it stores every call), L1 in CPU memory and L2 in a backend
(optional). A lookup takes the longest prefix that L1 holds, then what L2 adds to it, which moves up into L1. A stored call writes its
missing blocks to L1 and to L2; a skipped one writes none but reads, and so refreshes, what is held. All tiers are LRU. Simplified: writes
are instant, and a stored call gives L2 every block that L2 lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..trace.trace import Trace
from .tiers import UNBOUNDED, BeladyTier, LruTier

WHOLE = UNBOUNDED
"""A limit that stores all of a call."""


@dataclass(frozen=True)
class Tiers:
    """Capacities in blocks.

    Attributes:
        l1: LMCache in CPU memory.
        l2: LMCache's backend; 0 for none.
        gpu: vLLM's own prefix cache; 0 for none.
    """

    l1: int
    l2: int = 0
    gpu: int = 0

    def __post_init__(self) -> None:
        if min(self.l1, self.l2, self.gpu) < 0:
            raise ValueError("a capacity is not negative")


class Player(Protocol):
    """A rule at work in one simulation. It holds what it learns; each simulation has its own."""

    def limit(self, request: int, hit: int) -> int:
        """Leading blocks of the request to be held afterwards: 0 skips it, :data:`WHOLE` stores it.

        Args:
            request: index in the trace.
            hit: leading blocks that LMCache holds now; only oracles may look.
        """

    def answered(self, request: int, cached: int) -> None:
        """Told what the server says of the request: leading blocks that came from any cache."""


@dataclass(frozen=True)
class Outcome:
    """What one rule did to one set of tiers. Blocks count writes and evictions in L1 unless said otherwise, from the cold start on.

    Attributes:
        requests: calls that count.
        input_tokens: prompt tokens of these.
        gpu_tokens: of those, found in vLLM's own cache.
        l1_tokens: found in L1 beyond that.
        l2_tokens: found in L2 beyond that.
        written: blocks of stored calls written to L1.
        promoted: blocks written to L1 because L2 had them.
        l2_written: blocks written to L2.
        evicted: blocks evicted from L1.
        l2_evicted: blocks evicted from L2.
        dead: blocks written to L1 and never read, evicted or still there at the end.
        skipped: for each call of the trace, counting or not, whether nothing of it was to be stored.
        skipped_calls: calls that count of which nothing was to be stored.
        skipped_tokens: prompt tokens of these.
        capped: calls that count of which only a prefix was to be stored.
    """

    requests: int
    input_tokens: int
    gpu_tokens: int
    l1_tokens: int
    l2_tokens: int
    written: int
    promoted: int
    l2_written: int
    evicted: int
    l2_evicted: int
    dead: int
    skipped: bytes
    skipped_calls: int
    skipped_tokens: int
    capped: int

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens found in any tier."""
        return self.gpu_tokens + self.l1_tokens + self.l2_tokens

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens found in any tier, from a cold start."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def skip_ratio(self) -> float:
        """Share of the calls of which nothing was to be stored."""
        return self.skipped_calls / self.requests if self.requests else 0.0

    @property
    def skip_token_ratio(self) -> float:
        """Share of the prompt tokens that belong to such calls."""
        return self.skipped_tokens / self.input_tokens if self.input_tokens else 0.0


class _Tally:
    """Counts hits and verdicts call by call."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.gpu = self.l1 = self.l2 = self.capped = self.skipped_calls = self.skipped_tokens = 0
        self.skipped = bytearray(len(trace))

    def hits(self, request: int, gpu: int, l1: int, total: int) -> None:
        if request < self._trace.first_counted:
            return
        tokens, size = self._trace.input_tokens[request], self._trace.block_tokens
        in_gpu, in_l1, in_all = (
            min(gpu * size, tokens),
            min(max(gpu, l1) * size, tokens),
            min(max(gpu, total) * size, tokens),
        )
        self.gpu += in_gpu
        self.l1 += in_l1 - in_gpu
        self.l2 += in_all - in_l1

    def verdict(self, request: int, limit: int) -> None:
        counts = request >= self._trace.first_counted
        if limit <= 0:
            self.skipped[request] = 1
            self.skipped_calls += counts
            self.skipped_tokens += counts * self._trace.input_tokens[request]
        elif limit < self._trace.block_counts[request]:
            self.capped += counts

    def outcome(self, l1: LruTier | BeladyTier, l2: LruTier | None, promoted: int) -> Outcome:
        return Outcome(
            requests=len(self._trace) - self._trace.first_counted,
            input_tokens=self._trace.input_total,
            gpu_tokens=self.gpu,
            l1_tokens=self.l1,
            l2_tokens=self.l2,
            written=l1.written - promoted,
            promoted=promoted,
            l2_written=l2.written if l2 else 0,
            evicted=l1.evicted,
            l2_evicted=l2.evicted if l2 else 0,
            dead=l1.dead + l1.unread,
            skipped=bytes(self.skipped),
            skipped_calls=self.skipped_calls,
            skipped_tokens=self.skipped_tokens,
            capped=self.capped,
        )


def play(trace: Trace, player: Player, tiers: Tiers) -> Outcome:
    """Simulates ``player`` over ``trace`` from a cold start."""
    l1 = LruTier(trace, tiers.l1)
    l2 = LruTier(trace, tiers.l2) if tiers.l2 else None
    gpu = LruTier(trace, tiers.gpu) if tiers.gpu else None
    tally = _Tally(trace)
    promoted = 0
    for request, path in enumerate(trace.paths):
        blocks = trace.block_counts[request]
        in_gpu = _through_gpu(gpu, path, blocks)
        in_l1 = l1.lookup(path)
        in_l2 = l2.lookup(path) if l2 else 0
        hit = max(in_l1, in_l2)
        limit = player.limit(request, hit)
        tally.hits(request, in_gpu, in_l1, hit)
        tally.verdict(request, limit)
        target = min(limit, blocks)
        if l2 is not None:
            if hit > in_l1:
                promoted += l1.access(path, in_l1, hit)
                in_l1 = l1.lookup(path)
            l2.access(path, in_l2, target)
        l1.access(path, in_l1, target)
        player.answered(request, max(in_gpu, hit))
    return tally.outcome(l1, l2, promoted)


def _through_gpu(gpu: LruTier | None, path: tuple[int, ...], blocks: int) -> int:
    if gpu is None:
        return 0
    hit = gpu.lookup(path)
    gpu.access(path, hit, blocks)
    return hit


def play_belady(trace: Trace, tiers: Tiers) -> Outcome:
    """What no rule can beat: Belady's optimum with bypass in one tier as large as all of them together."""
    tier = BeladyTier(trace, tiers.l1 + tiers.l2 + tiers.gpu)
    tally = _Tally(trace)
    for request, path in enumerate(trace.paths):
        hit, written = tier.access(path, request)
        tally.hits(request, 0, hit, hit)
        tally.verdict(request, hit + written)
    return tally.outcome(tier, None, 0)

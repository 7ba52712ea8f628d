"""Simulate one rule over one trace and one set of cache tiers, and count the results.

The tiers are those of vLLM with LMCache: vLLM's own prefix cache on the GPU (optional, stores every
call), L1 in CPU memory, and L2 in a backend (optional). All tiers evict the least recently used
block.

- A lookup takes the longest prefix that L1 has, then the blocks that L2 adds to it. Those move up
  into L1.
- A stored call writes its missing blocks to L1 and L2.
- A skipped call writes nothing. It still reads the blocks that are cached, which makes them the
  most recently used.

Two simplifications: writes take no time, and a stored call writes every block that L2 lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..trace import Trace
from .tiers import UNBOUNDED, BeladyTier, LruTier

WHOLE = UNBOUNDED
"""The limit that stores a whole call."""


@dataclass(frozen=True)
class Tiers:
    """Capacities in blocks.

    Attributes:
        l1: LMCache in CPU memory.
        l2: LMCache's backend, or 0 for none.
        gpu: vLLM's own prefix cache, or 0 for none.

    Raises:
        ValueError: a capacity is negative.
    """

    l1: int
    l2: int = 0
    gpu: int = 0

    def __post_init__(self) -> None:
        if min(self.l1, self.l2, self.gpu) < 0:
            raise ValueError("a capacity must not be negative")


class Player(Protocol):
    """An admission policy at work in one simulation: it decides what a cache may store.

    For each request of the trace, in order, the engine calls :meth:`limit` before the request is
    stored and :meth:`answered` after it. A player may learn from the answers, so each simulation
    needs a new one.
    """

    def limit(self, request: int, hit: int) -> int:
        """Return how many leading blocks of the request LMCache may hold after this call.

        0 skips the call, :data:`WHOLE` stores it, and a number in between stores a prefix.

        Args:
            request: index in the trace.
            hit: leading blocks of the request that LMCache holds now. A real client does not know
                this, so only oracles may use it.
        """

    def answered(self, request: int, cached: int) -> None:
        """Take note of the answer to a request, as a client would.

        Args:
            request: index in the trace.
            cached: leading blocks that came from any cache, as the answer's usage reports them.
        """


@dataclass(frozen=True)
class Outcome:
    """The results of one simulation.

    Calls and tokens are those of the requests that count, which leaves out the warm-up. Blocks are
    counted from the start of the trace.

    Attributes:
        requests: number of calls.
        input_tokens: prompt tokens of the calls.
        gpu_tokens: prompt tokens found in vLLM's own cache.
        l1_tokens: further prompt tokens found in L1.
        l2_tokens: further prompt tokens found in L2.
        written: blocks that stored calls wrote to L1.
        promoted: blocks that moved from L2 to L1.
        l2_written: blocks written to L2.
        evicted: blocks evicted from L1.
        l2_evicted: blocks evicted from L2.
        dead: blocks written to L1 and never read, whether evicted or not.
        skipped: one byte per request of the trace, warm-up included: 1 if the call was skipped.
        skipped_calls: number of calls that were skipped.
        skipped_tokens: prompt tokens of the skipped calls.
        capped: number of calls of which only a prefix was stored.
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
        """Share of the prompt tokens found in any tier."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def skip_ratio(self) -> float:
        """Share of the calls that were skipped."""
        return self.skipped_calls / self.requests if self.requests else 0.0

    @property
    def skip_token_ratio(self) -> float:
        """Share of the prompt tokens in calls that were skipped."""
        return self.skipped_tokens / self.input_tokens if self.input_tokens else 0.0


class _Tally:
    """Counts hits and decisions, call by call."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.gpu = self.l1 = self.l2 = self.capped = self.skipped_calls = self.skipped_tokens = 0
        self.skipped = bytearray(len(trace))

    def count_hits(self, request: int, gpu: int, l1: int, total: int) -> None:
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

    def count_decision(self, request: int, limit: int) -> None:
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
    """Simulate one player over a trace, starting with empty caches."""
    l1 = LruTier(trace, tiers.l1)
    l2 = LruTier(trace, tiers.l2) if tiers.l2 else None
    gpu = LruTier(trace, tiers.gpu) if tiers.gpu else None
    tally = _Tally(trace)
    promoted = 0
    for request, path in enumerate(trace.paths):
        blocks = trace.block_counts[request]
        in_gpu = _read_gpu(gpu, path, blocks)
        in_l1 = l1.lookup(path)
        in_l2 = l2.lookup(path) if l2 else 0
        hit = max(in_l1, in_l2)
        limit = player.limit(request, hit)
        tally.count_hits(request, in_gpu, in_l1, hit)
        tally.count_decision(request, limit)
        target = min(limit, blocks)
        if l2 is not None:
            if hit > in_l1:
                promoted += l1.access(path, in_l1, hit)
                in_l1 = l1.lookup(path)
            l2.access(path, in_l2, target)
        l1.access(path, in_l1, target)
        player.answered(request, max(in_gpu, hit))
    return tally.outcome(l1, l2, promoted)


def _read_gpu(gpu: LruTier | None, path: tuple[int, ...], blocks: int) -> int:
    if gpu is None:
        return 0
    hit = gpu.lookup(path)
    gpu.access(path, hit, blocks)
    return hit


def play_belady(trace: Trace, tiers: Tiers) -> Outcome:
    """Simulate the best possible cache over a trace, starting empty.

    This is Belady's optimum with bypass, in one tier that is as large as all tiers together. No
    rule can have a higher hit rate.
    """
    tier = BeladyTier(trace, tiers.l1 + tiers.l2 + tiers.gpu)
    tally = _Tally(trace)
    for request, path in enumerate(trace.paths):
        hit, written = tier.access(path, request)
        tally.count_hits(request, 0, hit, hit)
        tally.count_decision(request, hit + written)
    return tally.outcome(tier, None, 0)

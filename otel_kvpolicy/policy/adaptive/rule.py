"""The adaptive rule: stores a call if its class comes back often enough to be worth its place.

Its place in the cache has a price: what the calls it displaces would have gained. Both sides of the
comparison are learned from what a client sees in requests and answers.

Reuse. The rule remembers every prompt, stored or not, by hashes of its boundaries
(:mod:`.boundaries`). If a later prompt starts with more of it than was known before it, the class
of the first call has had a return. If none does for twice the usual time, it has had none.
P(reuse) of a class is the share of the new text in its calls that came back.

Pressure. When a prompt asks for the first time for what an earlier call added and stored, the
server's ``cached_tokens`` tells whether the cache still had it. From that follow how long the cache
keeps a prefix, and theta, the price of a place in it (:mod:`.lifetime`). A prefix that comes back
much later than that counts as not returned. Without ``cached_tokens`` theta stays at its floor, and
only classes that never return are skipped.

The rule fails open: it stores what it knows nothing about, theta falls again when no answer reports
pressure, and a prefix that several calls share and the cache has lost is stored again, even if its
class rarely returns.

Pure: the clock is passed in, nothing is read or written, and no text is kept. One lock, held for
microseconds.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final

from ..decision import KVCacheDecision, Verdict
from ..signals import CallText, estimate
from ..thresholds import CHARS_PER_TOKEN, DEFAULT_CHARS_PER_TOKEN
from .boundaries import NO_BOUNDARIES, Boundaries
from .lifetime import Lifetime
from .reuse_table import MAX_CLASSES, CallClass, ReuseTable, Tally
from .why import REUSE_EXPECTED, REUSE_UNLIKELY, RULE, SHARED_PREFIX_LOST, Why

DEFAULT_FLOOR: Final = 0.005
DEFAULT_MAX_CALLS: Final = 4096
DEFAULT_CHUNK_TOKENS: Final = 256
"""LMCache's default chunk. It stores whole chunks only, so a missing partial chunk says nothing."""

_CEILING: Final = 0.5
"""Highest theta: a class that comes back more often is stored under any pressure."""

_MEMORY: Final = 0.02
"""Weight of one more observation in a moving average."""

_WAIT_GAPS: Final = 2.0
_MIN_WAIT: Final = 20.0
_MAX_WAIT: Final = 900.0
_FIRST_GAP: Final = 60.0
"""A call counts as not returned after this many usual gaps (a moving average), within these bounds
in seconds."""

_IN_TIME: Final = 2.0
_LEAST_WAIT: Final = 5.0
"""A return counts, and a call waits to be counted as not returned, up to this many cache lifetimes.
The factor is above 1 so that an estimate that is too low can recover."""

_DOUBTS: Final = 0.75
"""Standard errors that are added to P(reuse) as the benefit of the doubt."""

DEFAULT_SLACK: Final = 0.1
"""Error allowed for the end of a message, in chunks: its position in tokens is estimated from its
share of the characters."""

_ROUNDING: Final = 1e-6

_VERSION: Final = 2

_MIN_VISIBLE: Final = 1 / 64
_MAX_RESTORES: Final = 3
"""How often a lost prefix is stored again without being found cached afterwards. After that it is
left to its class: the server may not keep it at all."""


class _Memory:
    """What the rule remembers about one call."""

    __slots__ = (
        "at",
        "base",
        "chars",
        "counted",
        "hashes",
        "restores",
        "returned",
        "stored",
        "tally",
        "touched",
    )

    def __init__(
        self, at: float, base: float, chars: float, tally: Tally, hashes: tuple[int, ...]
    ) -> None:
        self.at = self.touched = at
        self.base = base  # characters of its prompt that an earlier call had
        self.chars = chars
        self.tally = tally
        self.hashes = hashes
        self.stored: bool | None = None  # unknown until the outcome is reported
        self.returned = 0.0
        self.counted = False
        self.restores = 0


class AdaptiveCall:
    """A decided call, for :meth:`AdaptiveRule.settle` and :meth:`AdaptiveRule.observe`.

    Attributes:
        why: the numbers behind the decision.
        keep_chars: characters of the leading part of the prompt that was seen before, which is
            worth keeping even if the rest is not.
        total_chars: characters of the prompt.
    """

    __slots__ = (
        "gap",
        "keep_chars",
        "known",
        "memory",
        "stored",
        "total_chars",
        "was_stored",
        "why",
    )

    def __init__(
        self,
        *,
        why: Why,
        known: _Memory | None,
        keep_chars: float,
        total_chars: float,
        memory: _Memory | None,
        gap: float | None,
    ) -> None:
        self.why = why
        self.keep_chars = keep_chars
        self.total_chars = total_chars
        # The rest belongs to the rule.
        self.known = known
        self.memory = memory
        # Seconds since the prefix was stored, if finding it cached or not tells of the lifetime.
        self.gap = gap
        self.was_stored = known.stored if known is not None else None
        self.stored: bool | None = None

    def keep_tokens(
        self,
        chars_per_token: float = DEFAULT_CHARS_PER_TOKEN,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    ) -> int:
        """Return the leading tokens that a partial store keeps of a skipped call.

        That is the prefix seen before, rounded down to whole chunks; 0 for none.

        Args:
            chars_per_token: characters that count as one token.
            chunk_tokens: tokens in a chunk of the cache.
        """
        return int(self.keep_chars / chars_per_token) // chunk_tokens * chunk_tokens


class AdaptiveRule:
    """Learn which calls come back and what a place in the cache is worth.

    Memory: ``max_calls`` calls with at most six boundaries each, and 2,048 classes: about 5 MiB at
    most with the defaults.

    Args:
        clock: returns seconds since any point; never goes back.
        floor: lowest theta. Classes that come back less often are skipped even without pressure; 0
            stores everything until there is some.
        max_calls: calls to remember; the oldest are forgotten first.
        chars_per_token: characters that count as one token.
        chunk_tokens: smallest piece that the cache keeps.
        slack: error allowed for the end of a message, in chunks; 0 if characters stand for tokens
            exactly.

    Attributes:
        key: secret for :func:`~otel_kvpolicy.policy.adaptive.boundaries.boundaries_of`, made for
            each rule.
        lock: held for microseconds while the rule learns. Hold it while the process forks, so that
            the child's copy is whole.

    Raises:
        ValueError: a number is out of range.
    """

    rule: Final = RULE

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        floor: float = DEFAULT_FLOOR,
        max_calls: int = DEFAULT_MAX_CALLS,
        chars_per_token: float = DEFAULT_CHARS_PER_TOKEN,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        slack: float = DEFAULT_SLACK,
    ) -> None:
        if not 0 <= floor <= _CEILING:
            raise ValueError(f"floor must be between 0 and {_CEILING}, not {floor!r}")
        if max_calls < 1 or chunk_tokens < 1 or not chars_per_token > 0 or not slack >= 0:
            raise ValueError(
                "max_calls, chunk_tokens and chars_per_token must be above 0, and slack at least 0"
            )
        self.key = secrets.randbits(64)
        self.chars_per_token = chars_per_token
        self.chunk_tokens = chunk_tokens
        self._clock = clock
        self._floor = floor
        self._margin = _ROUNDING - slack
        self._max_calls = max_calls
        self.lock = threading.RLock()  # a signal handler may interrupt it, and make a call or fork
        self._table = ReuseTable()
        self._known: dict[int, _Memory] = {}
        self._calls: deque[_Memory] = deque()
        self._pending: deque[_Memory] = deque()
        self._lifetime = Lifetime()
        self._gap = _FIRST_GAP
        self._wait = _WAIT_GAPS * _FIRST_GAP
        self._visible = 1.0
        self._continued = 0

    def decide(
        self,
        text: CallText,
        role: str | None = None,
        boundaries: Boundaries = NO_BOUNDARIES,
        *,
        settled: bool = True,
        chars_per_token: float | None = None,
    ) -> tuple[KVCacheDecision, AdaptiveCall]:
        """Decide a call and remember it.

        Args:
            text: characters and turns of the call.
            role: agent or role of the call; it is part of the class.
            boundaries: boundaries of its prompt. Without them nothing is learned from the call.
            settled: True if the decision is sure to be carried out. Otherwise nothing counts as
                stored until :meth:`settle` says so: a call may fail, and similar calls may arrive
                while it is in flight.
            chars_per_token: characters that count as one token of this call; by default those of
                the rule.

        Returns:
            The decision, and the call for :meth:`observe`. If a settled decision is not carried out
            after all, report that with :meth:`settle`.
        """
        signals = estimate(text, chars_per_token or self.chars_per_token)
        now = self._clock()
        with self.lock:
            call = self._decide(
                now, text.history_turns, signals["total_tokens"], role or "", boundaries
            )
            if settled:
                _follow(call, call.why.stores)
            else:
                call.was_stored = None
        why = call.why
        decision = KVCacheDecision.trusted(
            cache_worthy=why.stores,
            score=round(why.reuse, 4),
            reasons=[why.reason],
            signals=signals,
        )
        return decision, call

    def verdict(self, decision: KVCacheDecision, call: AdaptiveCall) -> Verdict:
        """Add the sentence and the numbers to a decision of :meth:`decide`."""
        why = call.why
        attributes = {**why.attributes, CHARS_PER_TOKEN: self.chars_per_token}
        return Verdict(decision, self.rule, why.sentence, attributes)

    def _decide(
        self, now: float, turns: int, tokens: int, label: str, boundaries: Boundaries
    ) -> AdaptiveCall:
        self._give_up(now)
        known, new = self._find(boundaries)
        total = boundaries.total_chars
        if boundaries.parent is not None:
            self._see(found=known is not None and -1 - len(new) >= boundaries.parent)
        depth: float = 0
        first = shared = False
        if known is not None:
            depth, shared = boundaries.chars_before(-1 - len(new)), known.returned > 0
            first = self._returns(now, known, depth)
        tally = self._table.tally_of(label, turns, tokens, depth / total if depth else 0.0)
        lifetime = self._lifetime
        lifetime.called()
        why = self._why(tally)
        gap = None
        if known is not None:
            why = self._restore(why, known, now, shared=shared)
            gap = now - known.at if first and known.stored else None
        memory = None
        if new:
            memory = _Memory(now, depth, total, tally, tuple(new))
            self._remember(memory)
        if why.stores:
            lifetime.stored(why.reuse)
        return AdaptiveCall(
            why=why, known=known, keep_chars=depth, total_chars=total, memory=memory, gap=gap
        )

    def _give_up(self, now: float) -> None:
        """Count the calls that have not come back in time."""
        limit = now - self._wait
        pending = self._pending
        while pending and (pending[0].at < limit or pending[0].counted):
            self._count(pending.popleft())

    def _restore(self, why: Why, known: _Memory, now: float, *, shared: bool) -> Why:
        """Store a shared prefix again if the cache has probably lost it.

        That is the case if the server said so, or if no call asked for the prefix for a lifetime.
        """
        lifetime = self._lifetime.seconds
        lost = known.stored is False or (lifetime is not None and now - known.touched > lifetime)
        if shared and lost and not why.stores and known.restores < _MAX_RESTORES:
            known.restores += 1
            why = why._replace(code=SHARED_PREFIX_LOST)
        if not lost or why.stores:
            known.touched = now
        return why

    def _count(self, memory: _Memory) -> None:
        if not memory.counted:
            memory.counted = True
            self._table.count(memory.tally, 1.0, 0.0)

    def _find(self, boundaries: Boundaries) -> tuple[_Memory | None, list[int]]:
        """Return the last call that shares a boundary, and this call's boundaries after it."""
        known = self._known
        new: list[int] = []
        for hash_ in boundaries.backwards():
            memory = known.get(hash_)
            if memory is not None:
                return memory, new
            new.append(hash_)
        return None, new

    def _see(self, *, found: bool) -> None:
        """Estimate the share of the traffic that this process sees.

        Args:
            found: True if this process sent the previous call of the same conversation.
        """
        self._continued += 1
        self._visible += max(_MEMORY, 1 / self._continued) * (found - self._visible)

    def _returns(self, now: float, known: _Memory, depth: float) -> bool:
        """Count what has come back of an earlier call. Return True if nothing of it had before."""
        new = known.chars - known.base
        if depth <= known.base or new <= 0:
            return False
        first, gap = not known.returned, now - known.at
        lifetime = self._lifetime.seconds
        # Seconds within which a return is worth something.
        in_time = inf if lifetime is None else _IN_TIME * lifetime
        if first:
            self._gap += _MEMORY * (gap - self._gap)
            self._wait = max(
                _LEAST_WAIT, min(_MAX_WAIT, max(_MIN_WAIT, _WAIT_GAPS * self._gap), in_time)
            )
            self._lifetime.returned(gap)
            self._count(known)
        share = min(1.0, (depth - known.base) / new)
        if share > known.returned:
            if gap <= in_time:
                self._table.count(
                    known.tally, 0.0, (share - known.returned) / max(self._visible, _MIN_VISIBLE)
                )
            known.returned = share
        return first

    def _why(self, tally: Tally) -> Why:
        visible = self._visible if self._visible > _MIN_VISIBLE else _MIN_VISIBLE
        reuse, error = self._table.reuse(tally, visible)
        doubt = _DOUBTS * error
        lifetime = self._lifetime
        price = lifetime.price
        theta = self._floor if price < self._floor else price if price < _CEILING else _CEILING
        code = REUSE_EXPECTED if reuse + doubt >= theta else REUSE_UNLIKELY
        return Why(
            code,
            tally.group,
            reuse,
            doubt,
            theta,
            lifetime.survival,
            lifetime.seconds,
            tally.calls,
            visible,
        )

    def _remember(self, memory: _Memory) -> None:
        for hash_ in memory.hashes:
            self._known[hash_] = memory
        self._calls.append(memory)
        self._pending.append(memory)
        if len(self._calls) > self._max_calls:
            oldest = self._calls.popleft()
            self._count(oldest)
            for hash_ in oldest.hashes:
                if self._known.get(hash_) is oldest:
                    del self._known[hash_]

    def settle(self, call: AdaptiveCall, *, stored: bool, kept: bool = False) -> None:
        """Report what actually happened to a call.

        It can differ from the decision: the rule may be shadowing, or the caller may have
        overridden it.

        Args:
            call: from :meth:`decide`.
            stored: True if the server was to store the whole call.
            kept: True if the server was to store at least the prefix seen before (a partial store).
        """
        with self.lock:
            _follow(call, stored)
            if kept and call.known is not None:
                call.known.stored = True

    def observe(
        self,
        call: AdaptiveCall,
        cached_tokens: int,
        prompt_tokens: int,
        lmcache_tokens: int | None = None,
    ) -> None:
        """Learn from the usage that the server reports for a call.

        Args:
            call: from :meth:`decide`.
            cached_tokens: prompt tokens that came from any cache.
            prompt_tokens: prompt tokens of the call.
            lmcache_tokens: prompt tokens that LMCache had, if the server reports them. They take
                precedence, because the pressure is LMCache's.
        """
        known, total = call.known, call.total_chars
        if known is None or total <= 0 or prompt_tokens <= 0:
            return
        scale = prompt_tokens / (total * self.chunk_tokens)
        # What the earlier call added and this one asks for. The cache keeps whole chunks only.
        expected, before = (
            int(call.keep_chars * scale + self._margin),
            int(known.base * scale + _ROUNDING),
        )
        if expected <= before:
            return
        held = (cached_tokens if lmcache_tokens is None else lmcache_tokens) >= (
            expected + before
        ) / 2 * self.chunk_tokens
        with self.lock:
            if call.gap is not None:
                self._lifetime.found(call.gap, held=held)
            if held:
                known.stored, known.restores = True, 0
            elif not call.stored:
                known.stored = False

    def export(self) -> dict[str, Any]:
        """Return what was learned, ready for JSON and free of prompt content.

        :meth:`restore` loads it into the rule of another process.
        """
        with self.lock:
            return {
                "version": _VERSION,
                "gap_seconds": self._gap,
                "visible": self._visible,
                "classes": self._table.export(),
                "lifetime": self._lifetime.export(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load the state that :meth:`export` returned.

        Raises:
            ValueError: ``state`` is of another version or makes no sense. Nothing was loaded.
        """
        try:
            if state["version"] != _VERSION:
                raise ValueError(f"version {state['version']!r}, not {_VERSION}")
            gap, visible = (
                _within(state["gap_seconds"], 0.0, 1e6),
                _within(state["visible"], 0.0, 1.0),
            )
            classes = [
                (
                    CallClass(str(label), *map(_bucket, (turns, length, seen))),
                    _within(calls, 0.0, 1e9),
                    _within(returned, 0.0, 1e9),
                )
                for label, turns, length, seen, calls, returned in state["classes"][:MAX_CLASSES]
            ]
            lifetime = Lifetime.restored(state["lifetime"])
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not the state of an adaptive rule: {error!r}") from error
        with self.lock:
            self._gap, self._visible, self._lifetime = gap, visible, lifetime
            self._table.adopt(classes)

    def take_new(self) -> dict[CallClass, tuple[float, float]]:
        """Return and reset the counts since the last call: (calls, returns) by class.

        They are to be added to the counts of a fleet.
        """
        with self.lock:
            return self._table.take_new()

    def give_back(self, new: Mapping[CallClass, tuple[float, float]]) -> None:
        """Put back counts of :meth:`take_new` that could not be shared."""
        with self.lock:
            self._table.give_back(new)

    def adopt(self, counts: Iterable[tuple[CallClass, float, float]]) -> None:
        """Replace the counts with those of a fleet: (class, calls, returns)."""
        counts = list(counts)
        with self.lock:
            self._table.adopt(counts)


def _follow(call: AdaptiveCall, stored: bool) -> None:
    """Note what happens to a call: what it adds, and what it shares with the call it continues."""
    call.stored = stored
    if call.memory is not None:
        call.memory.stored = stored
    if call.known is not None:
        call.known.stored = stored or (
            call.known.stored if call.was_stored is None else call.was_stored
        )


def _within(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{value!r} is not between {low:g} and {high:g}")
    return float(value)


def _bucket(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 16:
        raise ValueError(f"{value!r} is not a bucket from 0 to 16")
    return value

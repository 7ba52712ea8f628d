"""The learned rule: stores the calls whose class comes back often enough for what a place in the cache is worth just now.

Both sides are learned from what a client sees anyway.

Reuse. Every prompt, stored or not, is remembered by hashes of its boundaries (:mod:`.chain`). When a later prompt starts with more of it
than was known before it, its class has had a return; when none does for twice the usual time, it has had none. P(reuse) of a class is the
share of what was new in its calls that came back.

Pressure. When what a stored call was the first to say is asked for again for the first time, the server's ``cached_tokens`` tell whether
the cache still had it. From that follows how long the cache keeps a prefix and the price theta of a place in it (:mod:`.lifetime`). What
comes back much later than that counts as not returned. Without ``cached_tokens`` theta stays at its floor, at which only classes that never
return are skipped.

It fails open: what is not known is stored; theta sinks again where nothing tells of pressure; a prefix that several calls share and the
cache has lost is stored again whatever its class.

Pure: the clock and the key are given, nothing is read or written, no text is kept. One lock, held for microseconds.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from ..decision import KVCacheDecision
from ..reasons import REUSE_EXPECTED, REUSE_UNLIKELY, SHARED_PREFIX_LOST
from ..signals import CallText, estimate
from ..thresholds import DEFAULT_CHARS_PER_TOKEN
from .boundaries import EMPTY_CHAIN, Chain
from .lifetime import Lifetime
from .reuse_table import MAX_CLASSES, CallClass, ReuseTable, Tally

DEFAULT_FLOOR: Final = 0.005
DEFAULT_MAX_CALLS: Final = 4096
DEFAULT_CHUNK_TOKENS: Final = 256
"""LMCache's default chunk: less than that is never stored, so that its absence says nothing."""

_CEILING: Final = 0.5
"""Highest theta: a class of which more comes back is stored under any pressure."""

_MEMORY: Final = 0.02
"""Weight of one more observation in a moving average."""

_WAIT_GAPS: Final = 2.0
_MIN_WAIT: Final = 20.0
_MAX_WAIT: Final = 900.0
_FIRST_GAP: Final = 60.0
"""A call counts as not returned after so many usual gaps (a moving average), within these bounds, in seconds."""

_IN_TIME: Final = 2.0
_LEAST_WAIT: Final = 5.0
"""A return counts up to so many lifetimes of the cache, and a call as not returned after as many: beyond the lifetime itself, so that the
estimate of it cannot talk itself down."""

_DOUBTS: Final = 0.75
"""Standard errors that P(reuse) is given the benefit of."""

DEFAULT_SLACK: Final = 0.1
"""Chunks by which the end of a message may be misjudged, since its tokens are worked out from its share of the characters."""

_ROUNDING: Final = 1e-6

_VERSION: Final = 2

_MIN_VISIBLE: Final = 1 / 64
_MAX_RESTORES: Final = 3
"""Stores of a lost prefix without it being found cached afterwards, before it is left to its class: the server may not keep it at all."""

_SIGNS: Final = {REUSE_UNLIKELY: "<", REUSE_EXPECTED: ">="}


def reason_of(code: str, reuse: float, doubt: float, theta: float) -> str:
    """A reason code with its numbers: P(reuse) and what was added for doubt, against theta."""
    return "%s(%.3f%s%.3f)" % (code, reuse + doubt, _SIGNS.get(code, "|"), theta)  # noqa: UP031 - half the time of an f-string


class Why(NamedTuple):
    """What a verdict rests on.

    Attributes:
        code: reason code.
        group: class of the call.
        reuse: P(reuse) of the class, 0 to 1.
        doubt: what was added to it because little is known yet.
        theta: price: the lowest P(reuse) that is stored.
        survival: share of the lately returned prefixes that the cache still had; ``None`` while nothing is known.
        keeps_seconds: how long the cache keeps a prefix; ``None`` while nothing tells, or it keeps everything.
        calls: calls of the class whose fate is known.
        visible: share of the returns that this process sees: low where many processes share the traffic.
    """

    code: str
    group: CallClass
    reuse: float
    doubt: float
    theta: float
    survival: float | None
    keeps_seconds: float | None
    calls: float
    visible: float

    @property
    def stores(self) -> bool:
        """Whether the call is stored."""
        return self.code != REUSE_UNLIKELY

    @property
    def reason(self) -> str:
        """The reason as it stands in a decision, with its numbers."""
        return reason_of(self.code, self.reuse, self.doubt, self.theta)

    @property
    def sentence(self) -> str:
        """The verdict in words, with what would change it."""
        basis = (
            f"calls like this ({self.group}) come back with P = {self.reuse:.2f} (from {self.calls:.0f} calls, "
            f"{self.doubt:.2f} added for doubt); storing asks for theta = {self.theta:.2f}"
        )
        return f"{basis}; {self._pressure}. {self._change}"

    @property
    def _pressure(self) -> str:
        if self.survival is None:
            return "no cached_tokens seen lately, so theta is at its floor"
        held = f"the cache still had {self.survival:.0%} of the prefixes that returned"
        return (
            held
            if self.keeps_seconds is None
            else f"{held} and keeps one for about {self.keeps_seconds:.0f} s"
        )

    @property
    def _change(self) -> str:
        if self.code == SHARED_PREFIX_LOST:
            return "Stored all the same: several calls share its prefix and the cache had lost it."
        if self.code == REUSE_UNLIKELY:
            least = max(self.theta - self.doubt, 0)
            return f"It would be stored if its class came back more often than {least:.2f}, or with a larger cache."
        return f"It would be skipped if theta rose above {self.reuse + self.doubt:.2f}: if many more returning prefixes were evicted first."


class _Memory:
    """What is remembered of one call."""

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
        self.base = base  # characters of its prompt that were known before it
        self.chars = chars
        self.tally = tally
        self.hashes = hashes
        self.stored: bool | None = None  # nobody has said yet
        self.returned = 0.0
        self.counted = False
        self.restores = 0


class AdaptiveCall:
    """A decided call, to be given to :meth:`AdaptiveRule.settle` and :meth:`AdaptiveRule.observe`.

    Attributes:
        why: what the verdict rests on.
        keep_chars: characters of the leading part of the prompt that was seen before, worth keeping even where the rest is not.
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

    def __init__(  # noqa: PLR0917 - by keyword it takes half as long again
        self,
        why: Why,
        known: _Memory | None,
        keep: float,
        total: float,
        memory: _Memory | None,
        gap: float | None,
    ) -> None:
        self.why = why
        self.keep_chars = keep
        self.total_chars = total
        self.known = known  # the rule's own, like all below
        self.memory = memory
        self.gap = gap  # seconds since what it continues was stored, where finding that cached or not tells of the lifetime
        self.was_stored = known.stored if known is not None else None
        self.stored: bool | None = None

    def keep_tokens(
        self,
        chars_per_token: float = DEFAULT_CHARS_PER_TOKEN,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    ) -> int:
        """Tokens that a partial store is to keep of a skipped call: the prefix seen before, down to whole chunks; 0 for none."""
        return int(self.keep_chars / chars_per_token) // chunk_tokens * chunk_tokens


class AdaptiveRule:
    """Learns which calls come back and what a place in the cache is worth.

    Memory: ``max_calls`` calls with at most six boundaries each, and 2,048 classes: about 5 MiB at the most with the defaults.

    Args:
        clock: seconds, from any point, never going back.
        floor: lowest theta: classes that come back less often are skipped even without pressure; 0 stores everything until there is some.
        max_calls: calls remembered, the oldest forgotten first.
        chars_per_token: characters taken for one token.
        chunk_tokens: smallest piece that the cache keeps.
        slack: chunks by which the end of a message may be misjudged; 0 where characters stand for tokens exactly.

    Attributes:
        key: secret for :func:`~otel_kvpolicy.policy.adaptive.boundaries.chain_of`.
        lock: held for microseconds while something is learned; whoever forks holds it, so that the child's copy is whole.

    Raises:
        ValueError: a number is out of its range.
    """

    rule: Final = "adaptive"

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
            raise ValueError(f"floor must be from 0 to {_CEILING}, not {floor!r}")
        if max_calls < 1 or chunk_tokens < 1 or not chars_per_token > 0 or not slack >= 0:
            raise ValueError(
                "max_calls, chunk_tokens and chars_per_token must be above zero, slack not below"
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
        chain: Chain = EMPTY_CHAIN,
        *,
        settled: bool = True,
    ) -> tuple[KVCacheDecision, AdaptiveCall]:
        """Decides for a call and remembers it.

        Args:
            text: what was counted of it.
            role: its agent or role; classes are told apart by it.
            chain: its boundaries; without them nothing is learned from the call.
            settled: whether the decision is as good as carried out. Else nothing is taken for stored until :meth:`settle` says so: a call
                may fail, and others like it may come while it is on its way.

        Returns:
            The decision, and the call for :meth:`observe`. Where a settled decision is not followed, tell :meth:`settle`.
        """
        signals = estimate(text, self.chars_per_token)
        now = self._clock()
        with self.lock:
            call = self._decide(now, text.history_turns, signals["total_tokens"], role or "", chain)
            if settled:
                _follow(call, call.why.stores)
            else:
                call.was_stored = None
        why = call.why
        decision = KVCacheDecision.trusted(
            cache_worthy=why.stores,
            score=int(why.reuse * 10_000 + 0.5) / 10_000,
            reasons=[why.reason],
            signals=signals,
        )
        return decision, call

    def _decide(
        self, now: float, turns: int, tokens: int, label: str, chain: Chain
    ) -> AdaptiveCall:
        self._give_up(now)
        known, new = self._find(chain)
        total = chain.total_chars
        if chain.parent is not None:
            self._see(found=known is not None and -1 - len(new) >= chain.parent)
        depth: float = 0
        first = shared = False
        if known is not None:
            depth, shared = chain.chars_before(-1 - len(new)), known.returned > 0
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
        return AdaptiveCall(why, known, depth, total, memory, gap)

    def _give_up(self, now: float) -> None:
        """Counts the calls that have had their time and did not come back."""
        limit = now - self._wait
        pending = self._pending
        while pending and (pending[0].at < limit or pending[0].counted):
            self._count(pending.popleft())

    def _restore(self, why: Why, known: _Memory, now: float, *, shared: bool) -> Why:
        """Stores a shared prefix again where the cache has probably dropped it: it said so, or was not asked for it in a lifetime."""
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

    def _find(self, chain: Chain) -> tuple[_Memory | None, list[int]]:
        """The last call that had a boundary of this one, and the boundaries beyond it, which none had."""
        known = self._known
        new: list[int] = []
        for each in chain.backwards():
            found = known.get(each)
            if found is not None:
                return found, new
            new.append(each)
        return None, new

    def _see(self, *, found: bool) -> None:
        """How much of the traffic this process sees: whether the call before this one of the same conversation was its own."""
        self._continued += 1
        self._visible += max(_MEMORY, 1 / self._continued) * (found - self._visible)

    def _returns(self, now: float, known: _Memory, depth: float) -> bool:
        """Counts what of an earlier call has come back; true where nothing had before."""
        new = known.chars - known.base
        if depth <= known.base or new <= 0:
            return False
        first, gap = not known.returned, now - known.at
        lifetime = self._lifetime.seconds
        in_time = (
            inf if lifetime is None else _IN_TIME * lifetime
        )  # seconds within which a return is worth something
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
        for each in memory.hashes:
            self._known[each] = memory
        self._calls.append(memory)
        self._pending.append(memory)
        if len(self._calls) > self._max_calls:
            oldest = self._calls.popleft()
            self._count(oldest)
            for each in oldest.hashes:
                if self._known.get(each) is oldest:
                    del self._known[each]

    def settle(self, call: AdaptiveCall, *, stored: bool, kept: bool = False) -> None:
        """Tells what was really done with a call: the rule may only watch, or the caller have chosen.

        Args:
            call: from :meth:`decide`.
            stored: whether all of it was to be stored.
            kept: whether at least what came before it was (a partial store).
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
        """Learns from what the server says of a call's prompt.

        Args:
            call: from :meth:`decide`.
            cached_tokens: prompt tokens that came from any cache.
            prompt_tokens: prompt tokens of the call.
            lmcache_tokens: of the prompt, what LMCache had, where the server says: the pressure is LMCache's.
        """
        known, total = call.known, call.total_chars
        if known is None or total <= 0 or prompt_tokens <= 0:
            return
        scale = prompt_tokens / (total * self.chunk_tokens)
        # What was new in the call that came back, in whole chunks, for the cache keeps no others.
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
        """What was learned, fit for JSON, without anything of any prompt: :meth:`restore` takes it in another process."""
        with self.lock:
            return {
                "version": _VERSION,
                "gap_seconds": self._gap,
                "visible": self._visible,
                "classes": self._table.export(),
                "lifetime": self._lifetime.export(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what :meth:`export` gave.

        Raises:
            ValueError: ``state`` is of another version or makes no sense; nothing was taken from it.
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
        """What was counted since this was last asked, to be added to a fleet's counts: calls and returns by class."""
        with self.lock:
            return self._table.take_new()

    def give_back(self, new: Mapping[CallClass, tuple[float, float]]) -> None:
        """Takes back what :meth:`take_new` gave and could not be shared; the next one gives it again."""
        with self.lock:
            self._table.give_back(new)

    def adopt(self, counts: Iterable[tuple[CallClass, float, float]]) -> None:
        """Goes on from a fleet's counts: class, calls and returns."""
        counts = list(counts)
        with self.lock:
            self._table.adopt(counts)


def _follow(call: AdaptiveCall, stored: bool) -> None:
    """Notes what becomes of a call: what it adds, and what it shares with the call that it continues."""
    call.stored = stored
    if call.memory is not None:
        call.memory.stored = stored
    if call.known is not None:
        call.known.stored = stored or (
            call.known.stored if call.was_stored is None else call.was_stored
        )


def _within(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{value!r} is not from {low:g} to {high:g}")
    return float(value)


def _bucket(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 16:
        raise ValueError(f"{value!r} is no bucket")
    return value

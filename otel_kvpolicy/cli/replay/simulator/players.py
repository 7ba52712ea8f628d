"""The rules that a replay compares, and the players that carry them out.

A rule decides what a cache may store, which cache research calls an admission policy:

- ``always`` and ``never`` store every call or none.
- ``thresholds`` is the thresholds rule. It takes the thresholds as settings.
- ``turns`` stores a call if it has enough model replies before it.
- ``seen`` stores the part of a call that an earlier call had too.
- ``adaptive`` is the adaptive rule. With ``partial=true``, it stores the part of a skipped call
  that an earlier call had too.
- ``oracle`` stores a call if a later call needs a block of it that is not cached now. It knows the
  future.
- ``oracle-cap`` does the same, but stores only the part that a later call needs.
- ``belady`` is the best possible cache: it admits and evicts single blocks, and knows the future.

On the command line a rule may have settings: ``thresholds:prefix=512,context=off,turns=2``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Final

from ....policy import ThresholdsRule
from ....policy.adaptive.boundaries import TraceBoundaries
from ....policy.adaptive.rule import DEFAULT_FLOOR, AdaptiveCall, AdaptiveRule
from ....policy.thresholds import SETTINGS
from ..trace import CHARS_PER_TOKEN, Trace
from .engine import WHOLE, Outcome, Player, Tiers, play, play_belady

OFF: Final = float(2**31 - 1)
"""A threshold that no call reaches, so that its signal has no effect."""


class _FixedPlayer:
    """Stores what a list says: its decision on a call depends on that call alone.

    Args:
        limits: for each request of the trace, the number of leading blocks to store.
    """

    def __init__(self, limits: list[int]) -> None:
        self._limits = limits

    def limit(self, request: int, hit: int) -> int:
        return self._limits[request]

    def answered(self, request: int, cached: int) -> None:
        """Ignore the answer."""


class _OraclePlayer(_FixedPlayer):
    """Stores a call if a later call needs a block of it that is not cached now.

    Args:
        future: for each request, the number of leading blocks that a later request has too.
        cap: store only these blocks, not the whole call.
    """

    def __init__(self, future: list[int], *, cap: bool) -> None:
        super().__init__(future)
        self._cap = cap

    def limit(self, request: int, hit: int) -> int:
        needed = self._limits[request]
        if needed <= hit:
            return 0
        return needed if self._cap else WHOLE


class _AdaptivePlayer:
    """Asks the adaptive rule about each call, and reports each answer back to it.

    Args:
        trace: the traffic.
        clients: number of client processes. Calls go to them in turn, and each has its own
            rule, which sees only its calls.
        partial: store the part of a skipped call that an earlier call had too.
        floor: lowest theta; classes that come back less often are always skipped.
    """

    def __init__(self, trace: Trace, *, clients: int, partial: bool, floor: float) -> None:
        self._trace = trace
        self._boundaries = _boundaries(trace)
        self._partial = partial
        self._now = 0.0
        size = trace.block_tokens
        self._clients = [
            AdaptiveRule(
                clock=self._clock,
                floor=floor,
                chars_per_token=CHARS_PER_TOKEN,
                chunk_tokens=size,
                slack=0,
            )
            for _ in range(clients)
        ]
        self._call: AdaptiveCall | None = None

    def _clock(self) -> float:
        return self._now

    def limit(self, request: int, hit: int) -> int:
        trace = self._trace
        self._now = trace.times[request]
        client = self._clients[request % len(self._clients)]
        decision, call = client.decide(
            trace.texts[request], trace.roles[request], self._boundaries[request]
        )
        self._call = call
        if not decision.skip_save:
            return WHOLE
        return (
            call.keep_tokens(CHARS_PER_TOKEN, trace.block_tokens) // trace.block_tokens
            if self._partial
            else 0
        )

    def answered(self, request: int, cached: int) -> None:
        trace = self._trace
        if self._call is not None:
            size = trace.block_tokens
            self._clients[request % len(self._clients)].observe(
                self._call, cached * size, trace.block_counts[request] * size
            )


@lru_cache(maxsize=4)
def _boundaries(trace: Trace) -> list[TraceBoundaries]:
    """Return the boundaries of each prompt: the ends of its segments, where prompts diverge."""
    scale = trace.block_tokens * CHARS_PER_TOKEN
    boundaries = []
    for request, path in enumerate(trace.paths):
        ends = list(accumulate(trace.segment_blocks[segment] for segment in path))
        seen = trace.seen_blocks[request]
        parent = (
            ends.index(seen) - len(ends) if seen and trace.texts[request].history_turns else None
        )
        boundaries.append(TraceBoundaries(path, [blocks * scale for blocks in ends], parent))
    return boundaries


def _always(trace: Trace, _: Mapping[str, float]) -> list[int]:
    return [WHOLE] * len(trace)


def _never(trace: Trace, _: Mapping[str, float]) -> list[int]:
    return [0] * len(trace)


def _turns(trace: Trace, settings: Mapping[str, float]) -> list[int]:
    least = settings.get("turns", 1)
    return [WHOLE if text.history_turns >= least else 0 for text in trace.texts]


def _seen(trace: Trace, _: Mapping[str, float]) -> list[int]:
    return trace.seen_blocks


def _thresholds(trace: Trace, settings: Mapping[str, float]) -> list[int]:
    thresholds: dict[str, int | None] = {
        name: int(settings[threshold.replay])
        for name, threshold in SETTINGS.items()
        if threshold.replay in settings
    }
    policy = ThresholdsRule(thresholds, chars_per_token=CHARS_PER_TOKEN)
    return [
        0 if policy.judge(text, role).skip_save else WHOLE
        for text, role in zip(trace.texts, trace.roles, strict=True)
    ]


_FIXED_LIMITS: Final[Mapping[str, Callable[[Trace, Mapping[str, float]], list[int]]]] = {
    "always": _always,
    "never": _never,
    "thresholds": _thresholds,
    "turns": _turns,
    "seen": _seen,
}

RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "always": (),
    "never": (),
    "thresholds": tuple(threshold.replay for threshold in SETTINGS.values()),
    "turns": ("turns",),
    "seen": (),
    "adaptive": ("partial", "floor"),
    "oracle": (),
    "oracle-cap": (),
    "belady": (),
}
"""The settings of each rule."""

DEFAULT_RULES: Final = ("always", "never", "thresholds", "adaptive", "turns", "oracle", "belady")


@dataclass(frozen=True)
class Rule:
    """A rule with its settings.

    Attributes:
        name: a key of :data:`RULES`.
        settings: values by setting name; settings that are left out have their defaults.
    """

    name: str
    settings: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = ",".join(
            f"{key}={'off' if value == OFF else f'{value:g}'}"
            for key, value in self.settings.items()
        )
        return f"{self.name}:{settings}" if settings else self.name

    def runner(self, trace: Trace, *, clients: int = 1) -> Callable[[Tiers], Outcome]:
        """Return a function that simulates this rule over ``trace`` with the tiers it is given.

        Work that does not depend on the capacity is done once, here.

        Args:
            trace: the traffic.
            clients: number of client processes; see :func:`~.comparison.compare`.
        """
        if self.name == "belady":
            return lambda tiers: play_belady(trace, tiers)
        player = self._player(trace, clients)
        return lambda tiers: play(trace, player(), tiers)

    def _player(self, trace: Trace, clients: int) -> Callable[[], Player]:
        if self.name == "adaptive":
            partial = bool(self.settings.get("partial", 0))
            floor = self.settings.get("floor", DEFAULT_FLOOR)
            return lambda: _AdaptivePlayer(trace, clients=clients, partial=partial, floor=floor)
        if self.name.startswith("oracle"):
            return lambda: _OraclePlayer(trace.future_blocks, cap=self.name == "oracle-cap")
        limits = self.limits(trace)
        return lambda: _FixedPlayer(limits)

    def limits(self, trace: Trace) -> list[int]:
        """Return how many leading blocks of each request the rule stores.

        Raises:
            KeyError: the rule's decision does not depend on the call alone.
        """
        return _FIXED_LIMITS[self.name](trace, self.settings)


def parse_rule(text: str) -> Rule:
    """Parse a rule, such as ``thresholds:prefix=512,turns=2``.

    Raises:
        ValueError: the rule or a setting is unknown, or a value is not a number.
    """
    name, _, settings_text = text.strip().partition(":")
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}: choose from {', '.join(RULES)}")
    settings: dict[str, float] = {}
    for pair in filter(None, settings_text.split(",")):
        key, _, value = pair.partition("=")
        if key not in RULES[name]:
            allowed = f"it takes {', '.join(RULES[name])}" if RULES[name] else "it takes none"
            raise ValueError(f"rule {name} has no setting {key!r}: {allowed}")
        settings[key] = _number(name, key, value)
    return Rule(name, settings)


def _number(rule: str, key: str, value: str) -> float:
    words = {"true": 1.0, "false": 0.0, "off": OFF}
    try:
        number = words[value.lower()] if value.lower() in words else float(value)
    except ValueError:
        raise ValueError(f"rule {rule}: {key}={value!r} is not a number") from None
    if not 0 <= number < float("inf"):
        raise ValueError(f"rule {rule}: {key} must be a finite number of at least 0")
    return number

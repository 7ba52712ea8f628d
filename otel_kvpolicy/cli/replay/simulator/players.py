"""The rules that a replay compares, by the names the command line gives them.

``always``, ``never``; ``thresholds`` (the fixed rule, with settings); ``turns`` (prior turns alone); ``seen`` (a prefix is stored when it
is asked for the second time, capped at it); ``adaptive`` (the learned rule; ``partial=true`` caps what it skips at the prefix seen before);
``oracle`` (stores a call when a block that is missing now will be asked for again), ``oracle-cap`` (only as much of it as will be asked for
again), and ``belady``. The last three know the future: they bound what a rule can do.

A name may carry settings: ``thresholds:prefix=512,context=off,turns=2``.
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
from ..trace.trace import CHARS_PER_TOKEN, Trace
from .engine import WHOLE, Outcome, Player, Tiers, play, play_belady

OFF: Final = float(2**31 - 1)
"""A threshold that no call reaches: its signal stores nothing."""


class _Fixed:
    """A rule whose verdict depends on the call alone."""

    def __init__(self, limits: list[int]) -> None:
        self._limits = limits

    def limit(self, request: int, hit: int) -> int:
        return self._limits[request]

    def answered(self, request: int, cached: int) -> None:
        """Learns nothing."""


class _Oracle(_Fixed):
    """Stores, whole or capped, what will be asked for again and is not there."""

    def __init__(self, future: list[int], *, cap: bool) -> None:
        super().__init__(future)
        self._cap = cap

    def limit(self, request: int, hit: int) -> int:
        future = self._limits[request]
        return 0 if future <= hit else future if self._cap else WHOLE


class _Adaptive:
    """The learned rule behind ``clients`` processes that take turns and share nothing."""

    def __init__(self, trace: Trace, *, clients: int, partial: bool, floor: float) -> None:
        self._trace = trace
        self._chains = _chains(trace)
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
            trace.texts[request], trace.roles[request], self._chains[request]
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
def _chains(trace: Trace) -> list[TraceBoundaries]:
    """Segments end where prompts part, as messages do."""
    scale = trace.block_tokens * CHARS_PER_TOKEN
    chains = []
    for request, path in enumerate(trace.paths):
        ends = list(accumulate(trace.segment_blocks[segment] for segment in path))
        seen = trace.seen_blocks[request]
        parent = (
            ends.index(seen) - len(ends) if seen and trace.texts[request].history_turns else None
        )
        chains.append(TraceBoundaries(path, [blocks * scale for blocks in ends], parent))
    return chains


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


_FIXED: Final[Mapping[str, Callable[[Trace, Mapping[str, float]], list[int]]]] = {
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
"""The rules and the settings that each takes."""

DEFAULT_RULES: Final = ("always", "never", "thresholds", "adaptive", "turns", "oracle", "belady")


@dataclass(frozen=True)
class Rule:
    """A rule and its settings.

    Attributes:
        name: a key of :data:`RULES`.
        settings: numbers by setting.
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
        """What simulates this rule over ``trace``; what does not depend on the capacity is worked out once.

        Args:
            trace: the traffic.
            clients: processes that share it, for rules that learn.
        """
        if self.name == "belady":
            return lambda tiers: play_belady(trace, tiers)
        player = self._player(trace, clients)
        return lambda tiers: play(trace, player(), tiers)

    def _player(self, trace: Trace, clients: int) -> Callable[[], Player]:
        if self.name == "adaptive":
            partial, floor = (
                bool(self.settings.get("partial", 0)),
                self.settings.get("floor", DEFAULT_FLOOR),
            )
            return lambda: _Adaptive(trace, clients=clients, partial=partial, floor=floor)
        if self.name.startswith("oracle"):
            return lambda: _Oracle(trace.future_blocks, cap=self.name == "oracle-cap")
        limits = self.limits(trace)
        return lambda: _Fixed(limits)

    def limits(self, trace: Trace) -> list[int]:
        """Of a rule whose verdict depends on the call alone: the leading blocks of each request that it stores.

        Raises:
            KeyError: the rule learns, or knows the future.
        """
        return _FIXED[self.name](trace, self.settings)


def parse_rule(text: str) -> Rule:
    """``thresholds:prefix=512,turns=2`` as a rule.

    Raises:
        ValueError: there is no such rule or setting, or its value is no number.
    """
    name, _, given = text.strip().partition(":")
    if name not in RULES:
        raise ValueError(f"no rule {name!r}: there are {', '.join(RULES)}")
    settings: dict[str, float] = {}
    for pair in filter(None, given.split(",")):
        key, _, value = pair.partition("=")
        if key not in RULES[name]:
            raise ValueError(
                f"{name} has no setting {key!r}: it takes {', '.join(RULES[name]) or 'none'}"
            )
        try:
            number = {"true": 1.0, "false": 0.0, "off": OFF}.get(value.lower())
            settings[key] = float(value) if number is None else number
        except ValueError:
            raise ValueError(f"{name}: {key}={value!r} is no number") from None
        if not 0 <= settings[key] < float("inf"):
            raise ValueError(f"{name}: {key} must be a finite number of at least 0")
    return Rule(name, settings)

"""What would have turned a decision: the smallest change of one signal, of one setting, or of what was learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ...policy import REUSE_HEAVY_ROLES
from ...settings import env_name
from ...telemetry import names
from ..spans.model import Thresholds, policy_of, text_of

_PARTS: Final = {
    "prefix_tokens": "prefix",
    "history_tokens": "history",
    "rag_tokens": "retrieved context",
    "user_tokens": "user",
}
_KNOBS: Final = {
    "prefix_tokens": "min_prefix_tokens",
    "context_tokens": "min_context_tokens",
    "history_turns": "min_history_turns",
}


class Change(NamedTuple):
    """One change that turns the verdict.

    Attributes:
        kind: ``signal``, ``role``, ``setting`` or ``learned``.
        name: the signal, the environment variable, or the attribute that says what was learned.
        value: what it would have to be; None for a role.
        text: in words.
    """

    kind: str
    name: str
    value: float | None
    text: str


class _Case(NamedTuple):
    signals: Mapping[str, int]
    thresholds: Thresholds
    role: str | None

    @property
    def stores(self) -> bool:
        return policy_of(self.thresholds).judge(text_of(self.signals), self.role).cache_worthy

    def with_signal(self, name: str, value: int) -> _Case:
        changed = {**self.signals, name: value}
        changed["tool_tokens"] = min(changed["tool_tokens"], changed["prefix_tokens"])
        return self._replace(signals=changed)

    def with_threshold(self, name: str, value: int) -> _Case:
        return self._replace(thresholds=Thresholds(**{**self.thresholds.__dict__, name: value}))


def changes(signals: Mapping[str, int], thresholds: Thresholds, role: str | None) -> list[Change]:
    """All single changes that turn the verdict: of signals, smallest first, then a role, then of settings, smallest first in proportion."""
    case = _Case(signals, thresholds, role)
    found = [*_of_tokens(case), *_of_turns(case)]
    if not case.stores and case._replace(role=min(REUSE_HEAVY_ROLES)).stores:
        found.append(
            Change(
                "role",
                "role",
                None,
                f"a reuse-heavy role ({', '.join(sorted(REUSE_HEAVY_ROLES))}), for it is half long enough",
            )
        )
    return [*found, *_of_settings(case)]


def learned_changes(reuse: float, doubt: float, theta: float, *, stores: bool) -> list[Change]:
    """What would have turned a verdict of the learned rule: how often the class comes back, or what a place in the cache is worth."""
    enough, chance = max(theta - doubt, 0.0), reuse + doubt
    if stores:
        sooner = Change(
            "learned",
            names.ADAPTIVE_THETA,
            chance,
            f"theta above {chance:.3f} (it was {theta:.3f}): a cache that forgets sooner",
        )
        rarer = Change(
            "learned",
            names.ADAPTIVE_REUSE,
            enough,
            f"P(reuse) of its class below {enough:.3f} (it was {reuse:.3f})",
        )
        return [sooner, rarer] if enough else [sooner]  # at 0 its doubt alone stores the call
    return [
        Change(
            "learned",
            names.ADAPTIVE_REUSE,
            enough,
            f"P(reuse) of its class at {enough:.3f} (it was {reuse:.3f})",
        ),
        Change(
            "learned",
            names.ADAPTIVE_THETA,
            chance,
            f"theta at {chance:.3f} (it was {theta:.3f}): a larger cache, or less traffic",
        ),
    ]


def _of_tokens(case: _Case) -> list[Change]:
    """The smallest change of one part of the prompt. The parts that change nothing but the total need the same: they are one change."""
    sign = -1 if case.stores else 1
    steps: dict[str, int] = {}
    for name in _PARTS:
        now = case.signals[name]
        if name == "rag_tokens" and not now:
            continue  # a call without retrieved context does not get any by being longer

        def turned(by: int, name: str = name, now: int = now) -> bool:
            return case.with_signal(name, now + sign * by).stores != case.stores

        limit = (
            now
            if case.stores
            else 2 * max(case.thresholds.context_tokens, case.thresholds.prefix_tokens) + 1
        )
        by = _smallest(limit, turned)
        if by is not None:
            steps[name] = by
    found = []
    for name, by in sorted(steps.items(), key=lambda step: step[1]):
        word = "fewer" if case.stores else "more"
        value = case.signals[name] + sign * by
        found.append(
            Change(
                "signal",
                name,
                value,
                f"{by} {word} {_PARTS[name]} token{'s' if by > 1 else ''} ({value} in all)",
            )
        )
    if not case.stores and len(set(steps.values())) == 1 and len(steps) > 1:
        by = next(iter(steps.values()))
        total = case.signals["total_tokens"] + by
        return [
            Change(
                "signal",
                "total_tokens",
                total,
                f"{by} more token{'s' if by > 1 else ''} of any kind ({total} in all)",
            )
        ]
    return found[:1] if not case.stores else found


def _of_turns(case: _Case) -> list[Change]:
    now = case.signals["history_turns"]
    sign = -1 if case.stores else 1
    limit = now if case.stores else max(1, case.thresholds.history_turns)
    by = _smallest(
        limit, lambda by: case.with_signal("history_turns", now + sign * by).stores != case.stores
    )
    if by is None:
        return []
    word = f"{by} {'fewer' if case.stores else 'more'} earlier {'reply' if by == 1 else 'replies'} of the model"
    return [Change("signal", "history_turns", now + sign * by, word)]


def _smallest(limit: int, turned: Callable[[int], bool]) -> int | None:
    """The smallest step from 1 to ``limit`` at which ``turned`` holds; it holds from some step on, or never."""
    if limit < 1 or not turned(limit):
        return None
    low, high = 1, limit
    while low < high:
        middle = (low + high) // 2
        if turned(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _of_settings(case: _Case) -> list[Change]:
    counted = case.signals
    measured = {
        "prefix_tokens": max(counted["prefix_tokens"], counted["rag_tokens"]),
        "context_tokens": counted["total_tokens"],
        "history_turns": counted["history_turns"],
    }
    found: list[tuple[float, Change]] = []
    for name, value in measured.items():
        now = getattr(case.thresholds, name)
        wanted = _nearest(case, name, value)
        if wanted is not None:
            knob = env_name(_KNOBS[name])
            found.append(
                (
                    abs(wanted - now) / max(now, 1),
                    Change("setting", knob, wanted, f"{knob}={wanted}"),
                )
            )
    return [change for _, change in sorted(found, key=lambda one: one[0])]


def _nearest(case: _Case, name: str, value: int) -> int | None:
    """The threshold nearest to the present one that turns the verdict on ``value``. A role tips from half the context threshold on."""
    edges = [value, 2 * value] if name == "context_tokens" else [value]
    wanted = [edge + 1 for edge in edges] if case.stores else edges[::-1]
    return next(
        (edge for edge in wanted if case.with_threshold(name, edge).stores != case.stores), None
    )

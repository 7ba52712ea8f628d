"""Finds the smallest single changes that would have reversed a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ...policy import REUSE_HEAVY_ROLES, THRESHOLDS, Priority
from ...policy.adaptive import why
from ...policy.thresholds import SETTINGS
from ...settings import env_name
from ...telemetry import names
from ..spans.model import stores

_PARTS: Final = {
    "prefix_tokens": "prefix",
    "history_tokens": "history",
    "rag_tokens": "retrieved context",
    "user_tokens": "user",
}
"""The parts of a prompt that can grow or shrink on their own."""


class Change(NamedTuple):
    """One change that reverses the decision.

    Attributes:
        kind: ``signal``, ``role``, ``priority``, ``setting`` or ``adaptive``.
        name: the signal, the environment variable, or the attribute of the adaptive rule.
        value: the value that reverses the decision; None for a role or a priority.
        text: the change in words.
    """

    kind: str
    name: str
    value: float | None
    text: str


class _Case(NamedTuple):
    signals: Mapping[str, int]
    thresholds: Mapping[str, int]
    role: str | None
    priority: Priority | None = None

    @property
    def stores(self) -> bool:
        return stores(self.signals, self.thresholds, self.role, self.priority)

    def with_signal(self, name: str, value: int) -> _Case:
        changed = {**self.signals, name: value}
        changed["tool_tokens"] = min(changed["tool_tokens"], changed["prefix_tokens"])
        return self._replace(signals=changed)

    def with_threshold(self, name: str, value: int) -> _Case:
        return self._replace(thresholds={**self.thresholds, name: value})


def changes(
    signals: Mapping[str, int],
    thresholds: Mapping[str, int],
    role: str | None,
    priority: Priority | None = None,
) -> list[Change]:
    """Return all single changes that reverse a decision of the thresholds rule.

    Signals come first, smallest change first. Role and priority are next. Settings come last,
    smallest relative change first.

    Args:
        signals: all signals, by the names that a decision uses.
        thresholds: thresholds in force, by settings field.
        role: role of the caller.
        priority: priority of the call.
    """
    case = _Case(signals, thresholds, role, priority)
    found = [*_of_tokens(case), *_of_turns(case)]
    if not case.stores and case._replace(role=min(REUSE_HEAVY_ROLES)).stores:
        roles = ", ".join(sorted(REUSE_HEAVY_ROLES))
        text = f"a reuse-heavy role ({roles}), because the prompt is long enough for one"
        found.append(Change("role", "role", None, text))
    if priority is not None and case._replace(priority=None).stores != case.stores:
        text = f"without the priority {priority}"
        found.append(Change("priority", "priority", None, text))
    return [*found, *_of_settings(case)]


def adaptive_changes(reuse: float, doubt: float, theta: float, *, stored: bool) -> list[Change]:
    """Return the single changes that reverse a decision of the adaptive rule.

    Args:
        reuse: P(reuse) of the class.
        doubt: what was added to it because little is known.
        theta: lowest P(reuse) that was stored.
        stored: True if the call was stored.
    """
    enough, chance = max(theta - doubt, 0.0), reuse + doubt
    price, share = names.NAMESPACE + why.THETA, names.NAMESPACE + why.REUSE
    if not stored:
        return [
            Change(
                "adaptive",
                share,
                enough,
                f"P(reuse) of its class at {enough:.3f} (it was {reuse:.3f})",
            ),
            Change(
                "adaptive",
                price,
                chance,
                f"theta at {chance:.3f} (it was {theta:.3f}): a larger cache, or less traffic",
            ),
        ]
    found = [
        Change(
            "adaptive",
            price,
            chance,
            f"theta above {chance:.3f} (it was {theta:.3f}): a cache that evicts sooner",
        )
    ]
    if enough:  # at 0, the doubt alone stores the call
        text = f"P(reuse) of its class below {enough:.3f} (it was {reuse:.3f})"
        found.append(Change("adaptive", share, enough, text))
    return found


def _of_tokens(case: _Case) -> list[Change]:
    """Return the smallest change of each part of the prompt.

    To store a call, only the smallest counts. Parts that only add to the total all need the same
    change, which is then one change of any part.
    """
    sign = -1 if case.stores else 1
    steps: dict[str, int] = {}
    for name in _PARTS:
        now = case.signals[name]
        if name == "rag_tokens" and not now:
            continue  # a longer call does not get retrieved context

        def reverses(step: int, name: str = name, now: int = now) -> bool:
            return case.with_signal(name, now + sign * step).stores != case.stores

        limit = now if case.stores else 2 * max(case.thresholds.values()) + 1
        step = _smallest(limit, reverses)
        if step is not None:
            steps[name] = step
    if not case.stores and len(set(steps.values())) == 1 and len(steps) > 1:
        step = next(iter(steps.values()))
        total = case.signals["total_tokens"] + step
        text = f"{step} more token{_s(step)} of any kind ({total} in all)"
        return [Change("signal", "total_tokens", total, text)]
    found = []
    for name, step in sorted(steps.items(), key=lambda item: item[1]):
        word = "fewer" if case.stores else "more"
        value = case.signals[name] + sign * step
        text = f"{step} {word} {_PARTS[name]} token{_s(step)} ({value} in all)"
        found.append(Change("signal", name, value, text))
    return found if case.stores else found[:1]


def _of_turns(case: _Case) -> list[Change]:
    now = case.signals["history_turns"]
    sign = -1 if case.stores else 1
    limit = now if case.stores else max(1, case.thresholds["min_history_turns"])
    step = _smallest(
        limit,
        lambda step: case.with_signal("history_turns", now + sign * step).stores != case.stores,
    )
    if step is None:
        return []
    word = "fewer" if case.stores else "more"
    replies = "reply" if step == 1 else "replies"
    text = f"{step} {word} earlier {replies} of the model"
    return [Change("signal", "history_turns", now + sign * step, text)]


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _smallest(limit: int, reverses: Callable[[int], bool]) -> int | None:
    """Return the smallest step from 1 to ``limit`` that reverses the decision, or None.

    Args:
        limit: largest step to try.
        reverses: whether a step reverses the decision; if one does, all larger ones do.
    """
    if limit < 1 or not reverses(limit):
        return None
    low, high = 1, limit
    while low < high:
        middle = (low + high) // 2
        if reverses(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _of_settings(case: _Case) -> list[Change]:
    found: list[tuple[float, Change]] = []
    for name, now in case.thresholds.items():
        measured = max(case.signals[each.signal] for each in THRESHOLDS if each.setting == name)
        wanted = _nearest(case, name, measured)
        if wanted is not None:
            variable = env_name(name)
            change = Change("setting", variable, wanted, f"{variable}={wanted}")
            found.append((abs(wanted - now) / max(now, 1), change))
    return [change for _, change in sorted(found, key=lambda item: item[0])]


def _nearest(case: _Case, name: str, value: int) -> int | None:
    """Return the threshold nearest to the recorded one that reverses the decision.

    The candidates are at ``value``, the measured signal. For the context threshold twice that plus
    one is another candidate: a reuse-heavy role needs only half of the threshold, rounded down.
    """
    half = SETTINGS[name].signal == "total_tokens"
    edges = [value, 2 * value + 1] if half else [value]
    wanted = [edge + 1 for edge in edges] if case.stores else edges[::-1]
    return next(
        (edge for edge in wanted if case.with_threshold(name, edge).stores != case.stores), None
    )

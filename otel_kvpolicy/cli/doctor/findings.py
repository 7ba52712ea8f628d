"""Trials -> for each hint: honoured, ignored, refused, without effect, or inconclusive, and by which evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from .trial import CONTROL, STORE, Trial

Outcome = Literal["honoured", "ignored", "refused", "no_connector", "inconclusive"]

_ENOUGH: Final = 2  # windows; one may be a late counter


@dataclass(frozen=True)
class Evidence:
    """What one way of knowing says.

    Attributes:
        way: ``told``, ``salted`` or ``counted``.
        outcome: what it comes to.
        text: in words, with numbers.
    """

    way: str
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Finding:
    """What is known of one hint.

    Attributes:
        arm: the hint.
        outcome: the verdict.
        evidence: what it rests on.
    """

    arm: str
    outcome: Outcome
    evidence: tuple[Evidence, ...]


def judge(arm: str, trials: Sequence[Trial], *, connector: bool | None) -> Finding:
    """The verdict on one hint.

    Args:
        arm: the hint.
        trials: all of them, of every arm and of the control.
        connector: whether vLLM asked a KV connector about the prompts; None where that cannot be seen.
    """
    mine = _of(arm, trials)
    refused = [trial.refused for trial in mine if trial.refused]
    if refused:
        return Finding(arm, "refused", (Evidence("answer", "refused", refused[0]),))
    if connector is False:
        text = "vLLM asked no KV connector about any prompt, so nothing could store or skip"
        return Finding(arm, "no_connector", (Evidence("connector", "no_connector", text),))
    evidence = tuple(
        one
        for one in (_attributed(mine, _of(STORE, trials)), _counted(mine, trials))
        if one is not None
    )
    clear = {one.outcome for one in evidence} - {"inconclusive"}
    return Finding(arm, clear.pop() if len(clear) == 1 else "inconclusive", evidence)


def stores_when_asked(trials: Sequence[Trial]) -> bool | None:
    """Whether trials that were to be stored were; None where that cannot be seen."""
    stored = _of(STORE, trials)
    if any((trial.attributed or 0) > 0 or _moved(trial) for trial in stored):
        return True
    # that another salt finds nothing says nothing: LMCache's multi-process server keeps salts apart
    return (
        False
        if any(trial.told is not None or trial.counted is not None for trial in stored)
        else None
    )


def other_traffic(trials: Sequence[Trial]) -> bool:
    """Whether chunks were stored while this program sent nothing."""
    return any((trial.counted or 0) > 0 for trial in _of(CONTROL, trials))


def _of(arm: str, trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.arm == arm]


def _moved(trial: Trial) -> bool:
    return trial.counted is not None and trial.counted >= trial.chunks > 0


def _attributed(mine: list[Trial], stored: list[Trial]) -> Evidence | None:
    """By what LMCache holds of the very prompts. Only worth something where the same way sees the prompts that were to be stored."""
    way = "told" if any(trial.told is not None for trial in stored) else "salted"
    seen = [trial for trial in mine if getattr(trial, way) is not None]
    if not seen or not any(getattr(trial, way) for trial in stored):
        return None
    held = sum(getattr(trial, way) > 0 for trial in seen)
    control = sum((getattr(trial, way) or 0) > 0 for trial in stored)
    text = f"LMCache held {held} of {len(seen)} prompts sent with the hint, and {control} of {len(stored)} to be stored"
    outcome: Outcome = "inconclusive"
    if held == len(seen):
        outcome = "ignored"
    elif held == 0 and control == len(stored):
        outcome = "honoured"
    return Evidence(way, outcome, text)


def _counted(mine: list[Trial], trials: Sequence[Trial]) -> Evidence | None:
    """By the server's counter of stored chunks, which only rises: a window in which it moved less than the prompt has was no store."""
    stored, idle = _of(STORE, trials), _of(CONTROL, trials)
    seen = [trial for trial in mine if trial.counted is not None]
    if not seen or not all(map(_moved, stored)):
        return None
    moved, noise = sum(map(_moved, seen)), sum(map(_moved, idle))
    text = (
        f"{_range(seen)} chunks were stored for a prompt with the hint, {_range(stored)} for one to be stored, {_range(idle)} when idle; "
        f"a prompt has {max(trial.chunks for trial in seen)}"
    )
    outcome: Outcome = "inconclusive"
    if noise:  # others may have moved the counter for the prompts to be stored too, so how late a store shows is not known
        outcome = "inconclusive"
    elif len(seen) - moved >= min(_ENOUGH, len(seen)):
        outcome = (
            "honoured"
            if moved == 0 or any((trial.counted or 0) > 0 for trial in idle)
            else "inconclusive"
        )
    elif moved == len(seen):
        outcome = "ignored"
    return Evidence("counted", outcome, text)


def _range(trials: list[Trial]) -> str:
    values = sorted(trial.counted or 0 for trial in trials)
    if not values:
        return "nothing"
    return f"{values[0]:g}" if values[0] == values[-1] else f"{values[0]:g} to {values[-1]:g}"

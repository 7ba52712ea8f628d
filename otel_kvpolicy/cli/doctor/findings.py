"""Conclude from trials what a server does with each hint, and on which evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from .probe import CONTROL, STORE, Trial

Outcome = Literal["honoured", "ignored", "refused", "no_connector", "inconclusive"]
"""What the server does with a hint: follows it, stores anyway, refuses the request, has no KV
connector that could follow it; or the trials do not tell."""

EvidenceKind = Literal["lmcache_report", "cached_tokens", "store_counter", "answer", "connector"]
"""How something is known: see ``probe.py`` for the first three."""

_WAYS: Final = {
    "lmcache_report": "told",
    "cached_tokens": "salted",
    "store_counter": "counted",
}
"""Kinds that have another name in the JSON output, so that scripts keep working."""

_ENOUGH_WINDOWS: Final = 2
"""Windows in which the counter must stay low; in a single one, it may just have been late."""


@dataclass(frozen=True)
class Evidence:
    """What one kind of evidence shows about a hint.

    Attributes:
        kind: how it is known.
        outcome: the outcome it speaks for.
        text: one sentence with numbers.
    """

    kind: EvidenceKind
    outcome: Outcome
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return the evidence for scripts."""
        way = _WAYS.get(self.kind, self.kind)
        return {"way": way, "outcome": self.outcome, "text": self.text}


@dataclass(frozen=True)
class Finding:
    """The conclusion on one hint.

    Attributes:
        arm: name of the hint.
        outcome: what the server does with it.
        evidence: what the conclusion rests on.
    """

    arm: str
    outcome: Outcome
    evidence: tuple[Evidence, ...]


def conclude(arm: str, trials: Sequence[Trial], *, connector: bool | None) -> Finding:
    """Return the conclusion on one hint.

    Args:
        arm: name of the hint.
        trials: all trials, of every hint and of the control.
        connector: whether vLLM asked a KV connector about the prompts; None if unknown.
    """
    hinted, stored = _of(arm, trials), _of(STORE, trials)
    refused = [trial.refused for trial in hinted if trial.refused]
    if refused:
        return Finding(arm, "refused", (Evidence("answer", "refused", refused[0]),))
    if connector is False:
        text = "vLLM asked no KV connector about any prompt, so nothing could be stored or skipped"
        return Finding(arm, "no_connector", (Evidence("connector", "no_connector", text),))
    evidence = tuple(
        one
        for one in (_by_holding(hinted, stored), _by_counter(hinted, stored, trials))
        if one is not None
    )
    clear = {one.outcome for one in evidence} - {"inconclusive"}
    return Finding(arm, clear.pop() if len(clear) == 1 else "inconclusive", evidence)


def stores_when_asked(trials: Sequence[Trial]) -> bool | None:
    """Return whether prompts that were to be stored were; None if the trials do not tell."""
    stored = _of(STORE, trials)
    if any((trial.held_chunks or 0) > 0 or _counted_all(trial) for trial in stored):
        return True
    # A miss under a new salt means nothing: LMCache's multi-process server keeps salts apart.
    knowable = any(
        trial.reported_chunks is not None or trial.counted_chunks is not None for trial in stored
    )
    return False if knowable else None


def other_traffic(trials: Sequence[Trial]) -> bool:
    """Return whether chunks were stored while no trial was running."""
    return any((trial.counted_chunks or 0) > 0 for trial in _of(CONTROL, trials))


def _of(arm: str, trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.arm == arm]


def _counted_all(trial: Trial) -> bool:
    """Return whether the counter rose by at least the prompt's chunks."""
    return trial.counted_chunks is not None and trial.counted_chunks >= trial.chunks > 0


def _by_holding(hinted: list[Trial], stored: list[Trial]) -> Evidence | None:
    """Conclude from what LMCache had of the very prompts that were sent.

    None unless the same kind of evidence shows prompts that were to be stored.
    """
    kind: EvidenceKind
    if any(trial.reported_chunks is not None for trial in stored):
        kind = "lmcache_report"
        held = [trial.reported_chunks for trial in hinted if trial.reported_chunks is not None]
        expected = [trial.reported_chunks or 0 for trial in stored]
    else:
        kind = "cached_tokens"
        held = [trial.cached_chunks for trial in hinted if trial.cached_chunks is not None]
        expected = [trial.cached_chunks or 0 for trial in stored]
    if not held or not any(expected):
        return None
    kept, kept_expected = sum(map(bool, held)), sum(map(bool, expected))
    text = (
        f"LMCache had {kept} of {len(held)} prompts sent with the hint, and {kept_expected} of "
        f"{len(expected)} prompts sent to be stored"
    )
    outcome: Outcome = "inconclusive"
    if kept == len(held):
        outcome = "ignored"
    elif kept == 0 and kept_expected == len(expected):
        outcome = "honoured"
    return Evidence(kind, outcome, text)


def _by_counter(
    hinted: list[Trial], stored: list[Trial], trials: Sequence[Trial]
) -> Evidence | None:
    """Conclude from the server's counter of stored chunks.

    The counter only rises. If it rose by less than the prompt's chunks, the prompt was not stored.
    """
    idle = _of(CONTROL, trials)
    counted = [trial for trial in hinted if trial.counted_chunks is not None]
    if not counted or not all(map(_counted_all, stored)):
        return None
    text = (
        f"{_range(counted)} chunks after a prompt with the hint, {_range(stored)} after a prompt "
        f"to be stored, {_range(idle)} while idle; a prompt has "
        f"{max(trial.chunks for trial in counted)} chunks"
    )
    return Evidence("store_counter", _outcome_of_counts(counted, idle), text)


def _outcome_of_counts(counted: list[Trial], idle: list[Trial]) -> Outcome:
    if any(map(_counted_all, idle)):
        # Other traffic may have moved the counter for the prompts to be stored, too. Then it is not
        # known how late a store shows.
        return "inconclusive"
    stored = sum(map(_counted_all, counted))
    if len(counted) - stored >= min(_ENOUGH_WINDOWS, len(counted)):
        explained = stored == 0 or any((trial.counted_chunks or 0) > 0 for trial in idle)
        return "honoured" if explained else "inconclusive"
    return "ignored" if stored == len(counted) else "inconclusive"


def _range(trials: list[Trial]) -> str:
    values = sorted(trial.counted_chunks or 0 for trial in trials)
    if not values:
        return "unknown"
    return f"{values[0]:g}" if values[0] == values[-1] else f"{values[0]:g} to {values[-1]:g}"

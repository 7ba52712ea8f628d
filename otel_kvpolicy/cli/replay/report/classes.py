"""Kinds of calls, by which a report tells whom a rule skips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ....policy.adaptive.reuse_table import class_of
from ..trace.trace import Trace

_MAX_ROLES: Final = 8


def classes_of(trace: Trace) -> Mapping[str, list[int]]:
    """The requests of each class: by turns, by length, and by role where the trace tells several. A request is in one of each."""
    turns: dict[str, list[int]] = {}
    lengths: dict[str, list[int]] = {}
    roles: dict[str, list[int]] = {}
    for request, text in enumerate(trace.texts):
        found = class_of("", text.history_turns, trace.input_tokens[request], 0.0)
        turns.setdefault(found.turns_text, []).append(request)
        lengths.setdefault(found.length_text, []).append(request)
        roles.setdefault(trace.roles[request] or "no role", []).append(request)
    common = sorted(roles.items(), key=lambda item: -len(item[1]))[:_MAX_ROLES]
    in_order = [*sorted(turns.items(), key=_number), *sorted(lengths.items(), key=_number)]
    return dict(in_order + (common if len(roles) > 1 else []))


def _number(item: tuple[str, list[int]]) -> tuple[bool, float]:
    """Sorts ``under 1k tokens``, ``2k-4k tokens`` and ``no turns``, ``1 turn``, ``2-3 turns`` as people would."""
    first = item[0].split("-")[0].split()[0].rstrip("k+turns")
    return first.isdigit(), float(first) if first.isdigit() else 0.0

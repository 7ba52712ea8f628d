"""Measure every pair of instrumentations and write the table in docs/cohabitation.md.

Run it with ``python -m tests.cohabitation.table``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from .others import OTHERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cohabitation.md"
ORDERS = ("before", "after")
OURS = "otel_kvpolicy"

_HEAD = (
    "| other instrumentation | calls | chat spans | the decision stands on | decisions a call "
    "| `traceparent` sent |\n"
    "| --- | --- | --- | --- | --- | --- |"
)
_PLACE = re.compile(r"(<!-- table -->\n).*?(\n<!-- /table -->)", re.DOTALL)

Phases = dict[str, dict[str, dict[str, Any]]]


@cache
def measure(other: str, order: str) -> Phases:
    """Run a process with both instrumentations and return what it saw: phase, call, observation.

    Args:
        other: key of the other instrumentation.
        order: ``before`` or ``after``: when the other one is switched on, relative to ours.
    """
    command = [sys.executable, "-m", "tests.cohabitation.worker", other, order]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    phases: Phases = json.loads(done.stdout.splitlines()[-1])
    return phases


def chat_spans(call: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the spans of a call, without those of the HTTP client and of agents."""
    return [
        span
        for span in call["spans"]
        if "httpx" not in span["scope"] and "agent" not in span["name"]
    ]


def rows(other: str) -> list[str]:
    """Return the table's rows for ``other``; calls with the same outcome share a row."""
    phase = measure(other, "before")["both"]
    outcomes: dict[tuple[str, str, int, str], list[str]] = {}
    for name, call in phase.items():
        spans = chat_spans(call)
        names = " and ".join(dict.fromkeys(f"`{span['name']}` ({_whose(span)})" for span in spans))
        decided = " and ".join(_whose(span) for span in spans if span["decision"])
        joined = "yes" if all(call["traceparents"]) else "no"
        outcomes.setdefault((names, decided, call["decisions"], joined), []).append(name)
    return [
        f"| {OTHERS[other].title} | {_summary(calls, list(phase))} | {names} | {decided} "
        f"| {decisions} | {joined} |"
        for (names, decided, decisions, joined), calls in outcomes.items()
    ]


def _summary(calls: list[str], every: list[str]) -> str:
    """Shorten ``chat sync, chat async, …``."""
    if calls == every:
        return "all"
    words = []
    for kind in ("chat", "responses"):
        some, whole = (
            {name for name in names if name.startswith(kind)} for names in (calls, every)
        )
        streamed = {name for name in whole if name.endswith("stream")}
        names = {
            frozenset(whole): kind,
            frozenset(streamed): f"{kind}, streamed",
            frozenset(whole - streamed): f"{kind}, not streamed",
        }
        if some:
            words.append(names.get(frozenset(some), ", ".join(sorted(some))))
    return "; ".join(words)


def _whose(span: dict[str, Any]) -> str:
    return "ours" if span["scope"] == OURS else "theirs"


def table() -> str:
    """Return the whole table."""
    return "\n".join([_HEAD, *(row for other in OTHERS for row in rows(other))])


def printed(page: Path = PAGE) -> str:
    """Return the table that the page holds."""
    match = _PLACE.search(page.read_text(encoding="utf-8"))
    assert match, f"{page} has no markers for the table"
    return match[0].removeprefix(match[1]).removesuffix(match[2])


if __name__ == "__main__":
    PAGE.write_text(
        _PLACE.sub(lambda match: match[1] + table() + match[2], PAGE.read_text(encoding="utf-8")),
        encoding="utf-8",
    )

"""Explanations for a terminal: a table of calls, and the account of each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..telemetry import names
from .account import Explanation
from .spans import RecordedSpan

__all__ = ["show", "show_table"]

_STYLE: Final = {names.STORE: "bold green", names.SKIP: "bold yellow", "none": "bold"}
_WORD: Final = {names.STORE: "STORED", names.SKIP: "SKIPPED", "none": "NOT DECIDED"}
_WIDE: Final = 110


def show_table(console: Console, spans: Iterable[RecordedSpan], *, by_trace: bool) -> None:
    """Lists calls, one a line.

    Args:
        console: where to.
        spans: decided calls, in the order to show them.
        by_trace: whether they are of different traces, whose ids are then shown.
    """
    wide = console.width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, width in (("began", 14 if wide else 8), ("verdict", 7), ("total", 6), ("cached", 6), ("trace" if by_trace else "span", 16)):
        table.add_column(
            title, justify="right" if title in {"total", "cached"} else "left", no_wrap=True, min_width=32 if title == "trace" else width
        )
    if wide or not by_trace:
        table.add_column("reason", no_wrap=True, overflow="ellipsis")
    if wide:
        table.add_column("service", no_wrap=True, overflow="ellipsis")
    if wide or by_trace:
        table.add_column("model", no_wrap=True, overflow="ellipsis", min_width=8)
    for span in spans:
        verdict = names.SKIP if span.skipped else names.STORE
        cells: list[str | Text] = [
            _when(span.when, short=not wide),
            Text(verdict, _STYLE[verdict]),
            _number(span.count(names.SIGNAL_TOTAL_TOKENS)),
            _number(span.count(names.USAGE_CACHE_READ_INPUT_TOKENS)),
            span.trace_id if by_trace else span.span_id,
        ]
        if wide or not by_trace:
            cells.append(next(iter(span.texts(names.REASONS)), "-"))
        if wide:
            cells.append(span.service or "-")
        if wide or by_trace:
            cells.append(span.text(names.REQUEST_MODEL) or "-")
        table.add_row(*cells)
    console.print(table)


def show(console: Console, explanation: Explanation) -> None:
    """Prints the account of one call."""
    span = explanation.span
    console.print(Text.assemble((_WORD[explanation.verdict], _STYLE[explanation.verdict]), "  ", span.name))
    console.print(Text(explanation.headline))
    _grid(console, _facts(explanation))
    reading = explanation.reading
    if reading.measures:
        _grid(console, [(measure.name, Text(measure.text, "green" if measure.met else "")) for measure in reading.measures], "signals")
    if reading.facts:
        rows = [(fact.name.removeprefix("kvpolicy."), f"{fact.value}  {fact.meaning}".rstrip()) for fact in reading.facts]
        _grid(console, rows, "also recorded")
    _list(console, *_changes(explanation))
    _list(console, "afterwards", explanation.afterwards)
    _list(console, "bear in mind", explanation.caveats)


def _facts(explanation: Explanation) -> list[tuple[str, str]]:
    span = explanation.span
    rows = []
    if span.trace_id.strip("0"):
        rows.append(("trace", f"{span.trace_id}, span {span.span_id}"))
    address = span.text(names.SERVER_ADDRESS)
    port = span.count(names.SERVER_PORT)
    known = (
        f"{span.when:%Y-%m-%d %H:%M:%S} UTC" if span.when else None,
        f"{span.seconds:.3g} s" if span.seconds is not None else None,
        f"service {span.service}" if span.service else None,
        f"model {span.text(names.REQUEST_MODEL)}" if span.text(names.REQUEST_MODEL) else None,
        f"agent {span.text(names.AGENT_NAME)}" if span.text(names.AGENT_NAME) else None,
        f"server {address}" + (f":{port}" if port else "") if address else None,
    )
    if call := ", ".join(part for part in known if part):
        rows.append(("call", call))
    score = span.number(names.SCORE)
    rule = f"{explanation.rule}, {explanation.mode} mode" + (f", score {score:g}" if score is not None else "")
    rows.append(("rule", f"{rule}: {', '.join(explanation.reasons) or 'no reason recorded'}"))
    if counted := span.signals:
        parts = {"prefix": "prefix_tokens", "history": "history_tokens", "retrieved": "rag_tokens", "user": "user_tokens"}
        made = ", ".join(f"{word} {counted[name]}" for word, name in parts.items() if counted.get(name))
        tools = f" ({counted['tool_tokens']} of the prefix are tools)" if counted.get("tool_tokens") else ""
        rows.append(("prompt", f"{made or 'nothing counted'} tokens{tools}"))
    return rows


def _changes(explanation: Explanation) -> tuple[str, list[str]]:
    changes = explanation.reading.changes
    other = "skipped" if explanation.span.flag(names.CACHE_WORTHY) else "stored"
    if changes:
        return f"it would have been {other} with any one of", [change.text for change in changes]
    if explanation.rule == "thresholds" and explanation.verdict == names.STORE and explanation.span.text(names.HINT_OUTCOME) != "caller":
        return f"it would have been {other} with", ["no single change: more than one signal holds it"]
    return "", []


def _grid(console: Console, rows: Iterable[tuple[str, str | Text]], title: str = "") -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=13)
    grid.add_column()
    for name, value in rows:
        grid.add_row(name, value)
    console.print()
    if title:
        console.print(Text(title, "bold"))
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _list(console: Console, title: str, lines: Iterable[str]) -> None:
    lines = list(lines)
    if not lines:
        return
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", Text(line))
    console.print()
    console.print(Text(title, "bold"))
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _when(when: datetime | None, *, short: bool) -> str:
    if when is None:
        return "-"
    today = when.date() == datetime.now(timezone.utc).date()
    return when.strftime(("%H:%M:%S" if today else "%b %d") if short else "%m-%d %H:%M:%S")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)

"""Explanations for a terminal: a table of calls, and the account of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Final, Literal, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...telemetry import names
from ..spans.model import RecordedSpan
from .explanation import Explanation
from .rules import Fact

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
    wanted = {
        "trace": by_trace,
        "span": not by_trace,
        "reason": wide or not by_trace,
        "service": wide,
        "model": wide or by_trace,
    }
    columns = [column for column in _COLUMNS if wanted.get(column.title, True)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column.title,
            justify=column.justify,
            no_wrap=True,
            overflow="ellipsis",
            min_width=column.width,
        )
    for span in spans:
        table.add_row(
            *(Text(column.cell(span), _STYLE.get(column.cell(span), "")) for column in columns)
        )
    console.print(table)


class _Column(NamedTuple):
    title: str
    width: int
    justify: Literal["left", "right"]
    cell: Callable[[RecordedSpan], str]


_COLUMNS: Final = (
    _Column("began", 8, "left", lambda span: _when(span.when)),
    _Column("verdict", 7, "left", lambda span: names.SKIP if span.skipped else names.STORE),
    _Column("total", 6, "right", lambda span: _number(span.count(names.SIGNAL_TOTAL_TOKENS))),
    _Column(
        "cached", 6, "right", lambda span: _number(span.count(names.USAGE_CACHE_READ_INPUT_TOKENS))
    ),
    _Column("trace", 32, "left", lambda span: span.trace_id),
    _Column("span", 16, "left", lambda span: span.span_id),
    _Column("reason", 10, "left", lambda span: next(iter(span.texts(names.REASONS)), "-")),
    _Column("service", 7, "left", lambda span: span.service or "-"),
    _Column("model", 8, "left", lambda span: span.text(names.REQUEST_MODEL) or "-"),
)


def show(console: Console, explanation: Explanation) -> None:
    """Prints the account of one call."""
    span = explanation.span
    console.print(
        Text.assemble((_WORD[explanation.verdict], _STYLE[explanation.verdict]), "  ", span.name)
    )
    console.print(Text(explanation.headline))
    _grid(console, _facts(explanation))
    reading = explanation.reading
    if reading.measures:
        _grid(
            console,
            [
                (measure.name, Text(measure.text, "green" if measure.met else ""))
                for measure in reading.measures
            ],
            "signals",
        )
    if reading.facts:
        _grid(
            console,
            [(fact.name.removeprefix("kvpolicy."), _told(fact)) for fact in reading.facts],
            "also recorded",
        )
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
    rule = f"{explanation.rule}, {explanation.mode} mode" + (
        f", score {score:g}" if score is not None else ""
    )
    rows.append(("rule", f"{rule}: {', '.join(explanation.reasons) or 'no reason recorded'}"))
    if counted := span.signals:
        parts = {
            "prefix": "prefix_tokens",
            "history": "history_tokens",
            "retrieved": "rag_tokens",
            "user": "user_tokens",
        }
        made = ", ".join(
            f"{word} {counted[name]}" for word, name in parts.items() if counted.get(name)
        )
        tools = (
            f" ({counted['tool_tokens']} of the prefix are tools)"
            if counted.get("tool_tokens")
            else ""
        )
        rows.append(("prompt", f"{made} tokens{tools}" if made else "less than a token of text"))
    return rows


def _changes(explanation: Explanation) -> tuple[str, list[str]]:
    changes = explanation.reading.changes
    other = "skipped" if explanation.span.flag(names.CACHE_WORTHY) else "stored"
    if changes:
        return f"it would have been {other} with any one of", [change.text for change in changes]
    if (
        explanation.rule == "thresholds"
        and explanation.verdict == names.STORE
        and explanation.span.text(names.HINT_OUTCOME) != "caller"
    ):
        return f"it would have been {other} with", [
            "no single change: more than one signal holds it"
        ]
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


def _when(when: datetime | None) -> str:
    if when is None:
        return "-"
    today = when.date() == datetime.now(timezone.utc).date()
    return when.strftime("%H:%M:%S" if today else "%b %d")


def _told(fact: Fact) -> str:
    value = f"{fact.value:.4g}" if isinstance(fact.value, float) else str(fact.value)
    return f"{value} ({fact.meaning})" if fact.meaning else value


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)

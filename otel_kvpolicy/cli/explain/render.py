"""Prints explanations to a terminal: a table of calls and the details of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Final, Literal, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...policy import ThresholdsRule
from ...telemetry import names
from ..spans.model import RecordedSpan
from .explanation import NO_DECISION, Explanation
from .rules import Fact

_STYLE: Final = {names.STORE: "bold green", names.SKIP: "bold yellow", NO_DECISION: "bold"}
_WORD: Final = {names.STORE: "STORED", names.SKIP: "SKIPPED", NO_DECISION: "NOT DECIDED"}
_WIDE: Final = 110


def show_table(console: Console, spans: Iterable[RecordedSpan], *, by_trace: bool) -> None:
    """Print a table with one call on each line.

    Args:
        console: where to print.
        spans: decided calls, in the order to print them.
        by_trace: whether to show trace ids instead of span ids.
    """
    is_wide = console.width >= _WIDE
    visible = {
        "trace": by_trace,
        "span": not by_trace,
        "reason": is_wide or not by_trace,
        "service": is_wide,
        "model": is_wide or by_trace,
    }
    columns = [column for column in _COLUMNS if visible.get(column.title, True)]
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
    _Column("started", 8, "left", lambda span: _when(span.when)),
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
    """Print the details of one call."""
    span = explanation.span
    console.print(
        Text.assemble((_WORD[explanation.verdict], _STYLE[explanation.verdict]), "  ", span.name)
    )
    console.print(Text(explanation.headline))
    _grid(console, _summary(explanation))
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
            [(fact.name.removeprefix(names.NAMESPACE), _fact_text(fact)) for fact in reading.facts],
            "also recorded",
        )
    _list(console, *_changes(explanation))
    _list(console, "afterwards", [note.text for note in explanation.afterwards])
    _list(console, "caveats", [note.text for note in explanation.caveats])


def _summary(explanation: Explanation) -> list[tuple[str, str]]:
    span = explanation.span
    rows = []
    if span.trace_id.strip("0"):
        rows.append(("trace", f"{span.trace_id}, span {span.span_id}"))
    if call := _call(span):
        rows.append(("call", call))
    rows.append(("rule", _rule(explanation)))
    if span.signals:
        rows.append(("prompt", _prompt(span.signals)))
    return rows


def _call(span: RecordedSpan) -> str:
    model, agent = span.text(names.REQUEST_MODEL), span.text(names.AGENT_NAME)
    address, port = span.text(names.SERVER_ADDRESS), span.count(names.SERVER_PORT)
    parts = (
        f"{span.when:%Y-%m-%d %H:%M:%S} UTC" if span.when else None,
        f"{span.seconds:.3g} s" if span.seconds is not None else None,
        f"service {span.service}" if span.service else None,
        f"model {model}" if model else None,
        f"agent {agent}" if agent else None,
        f"server {address}" + (f":{port}" if port else "") if address else None,
    )
    return ", ".join(part for part in parts if part)


def _rule(explanation: Explanation) -> str:
    score = explanation.span.number(names.SCORE)
    shown_score = f", score {score:g}" if score is not None else ""
    reasons = ", ".join(explanation.reasons) or "no reason recorded"
    return f"{explanation.rule}, {explanation.mode} mode{shown_score}: {reasons}"


_PROMPT_PARTS: Final = {
    "prefix": "prefix_tokens",
    "history": "history_tokens",
    "retrieved": "rag_tokens",
    "user": "user_tokens",
}


def _prompt(signals: Mapping[str, int]) -> str:
    parts = [f"{word} {signals[name]}" for word, name in _PROMPT_PARTS.items() if signals.get(name)]
    if not parts:
        return "less than a token of text"
    tools = signals.get("tool_tokens")
    return f"{', '.join(parts)} tokens" + (f" ({tools} of the prefix are tools)" if tools else "")


def _changes(explanation: Explanation) -> tuple[str, list[str]]:
    changes = explanation.reading.changes
    other = "skipped" if explanation.span.flag(names.CACHE_WORTHY) else "stored"
    if changes:
        return f"any one of these would have {other} it", [change.text for change in changes]
    if (
        explanation.rule == ThresholdsRule.rule
        and explanation.verdict == names.STORE
        and explanation.span.text(names.HINT_OUTCOME) != "caller"
    ):
        return f"what would have {other} it", [
            "no single change: more than one signal reaches its threshold"
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


def _fact_text(fact: Fact) -> str:
    value = f"{fact.value:.4g}" if isinstance(fact.value, float) else str(fact.value)
    return f"{value} ({fact.meaning})" if fact.meaning else value


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)

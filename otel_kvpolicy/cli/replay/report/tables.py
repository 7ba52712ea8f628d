"""The tables that replay prints, one per size, narrow enough for 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from ..simulator import Result, Rule, Tiers
from ..simulator.sweep import Best
from ..trace import Loaded

Column = tuple[str, Callable[[Result], str]]
"""The heading of a column, and a function that returns the text of a cell."""


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}"


def _of_input(tokens: int, result: Result) -> str:
    return _percent(tokens / result.outcome.input_tokens if result.outcome.input_tokens else 0.0)


_GPU: Final[Column] = ("gpu %", lambda result: _of_input(result.outcome.gpu_tokens, result))
_L1: Final[Column] = ("L1 %", lambda result: _of_input(result.outcome.l1_tokens, result))
_L2: Final[Column] = ("L2 %", lambda result: _of_input(result.outcome.l2_tokens, result))
_WRITES: Final[Sequence[Column]] = (
    ("written", lambda result: f"{result.outcome.written:,}"),
    ("dead", lambda result: f"{result.outcome.dead:,}"),
    ("evicted", lambda result: f"{result.outcome.evicted:,}"),
)
_L2_WRITES: Final[Sequence[Column]] = (
    ("to L2", lambda result: f"{result.outcome.l2_written:,}"),
    ("evicted", lambda result: f"{result.outcome.l2_evicted:,}"),
    ("L2 to L1", lambda result: f"{result.outcome.promoted:,}"),
)
_SKIPS: Final[Sequence[Column]] = (
    ("skip\ncalls %", lambda result: f"{100 * result.outcome.skip_ratio:.1f}"),
    ("skip\ntok. %", lambda result: f"{100 * result.outcome.skip_token_ratio:.1f}"),
)


def trace_text(loaded: Loaded) -> str:
    """Summarize a trace in one line."""
    trace = loaded.trace
    warm_up = f" ({trace.first_counted:,} of them warm-up)" if trace.first_counted else ""
    return (
        f"{', '.join(loaded.formats)}: {len(trace):,} requests{warm_up},"
        f" {sum(trace.input_tokens):,} prompt tokens,"
        f" {trace.unique_blocks:,} distinct chunks of {trace.block_tokens} tokens"
    )


def tiers_text(tiers: Tiers) -> str:
    """Return the sizes of the tiers as text."""
    parts = [f"L1 {tiers.l1:,} {'chunk' if tiers.l1 == 1 else 'chunks'}"]
    parts += [f"L2 {tiers.l2:,}"] if tiers.l2 else []
    parts += [f"gpu {tiers.gpu:,}"] if tiers.gpu else []
    return ", ".join(parts)


def result_tables(results: Sequence[Result], unique_blocks: int) -> list[Table]:
    """Return the tables of a comparison: one per size, with one row per rule.

    If there are several tiers, a size has two tables: one for hits and one for writes.

    Args:
        results: results in any order.
        unique_blocks: distinct chunks of the trace, to which a title relates the size of L1.
    """
    tables = []
    for tiers in dict.fromkeys(result.tiers for result in results):
        rows = [result for result in results if result.tiers == tiers]
        title = f"{tiers_text(tiers)} ({tiers.l1 / max(unique_blocks, 1):.1%} of all)"
        first, *others = _columns(tiers)
        tables += [_table(rows, title, first), *(_table(rows, "", columns) for columns in others)]
    return tables


def _columns(tiers: Tiers) -> list[Sequence[Column]]:
    hits: Column = ("hit %", lambda result: _percent(result.outcome.hit_rate))
    if not tiers.gpu and not tiers.l2:
        return [(hits, *_WRITES, *_SKIPS)]
    by_tier = [*([_GPU] if tiers.gpu else []), _L1, *([_L2] if tiers.l2 else [])]
    return [(hits, *by_tier, *_SKIPS), (*_WRITES, *(_L2_WRITES if tiers.l2 else ()))]


def _table(results: Sequence[Result], title: str, columns: Sequence[Column]) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("rule", min_width=12)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(escape(_spaced(result.rule)), *(cell(result) for _, cell in columns))
    return table


def _spaced(rule: Rule) -> str:
    """Return the rule's text with spaces, so that a long one can wrap."""
    return str(rule).replace(":", ": ").replace(",", ", ")


def best_table(best_by_size: Sequence[Best]) -> Table:
    """Return the table of a sweep: the best thresholds for each size."""
    table = Table(
        title="Best thresholds: most hits, and fewest writes within half a point of that",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("L1", justify="right")
    table.add_column("best for")
    table.add_column("prefix, context, turns", overflow="fold")
    table.add_column("hit %", justify="right")
    table.add_column("written", justify="right")
    for best in best_by_size:
        for name, result in (("hits", best.hits), ("writes", best.writes)):
            settings = _spaced(result.rule).removeprefix("thresholds: ")
            table.add_row(
                f"{result.tiers.l1:,}",
                name,
                settings,
                _percent(result.outcome.hit_rate),
                f"{result.outcome.written:,}",
            )
    return table

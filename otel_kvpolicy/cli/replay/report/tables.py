"""What replay prints: one table for each size, narrow enough for 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from ..simulator.comparison import Result
from ..simulator.engine import Tiers
from ..simulator.players import Rule
from ..simulator.sweep import Best
from ..trace.readers import Loaded

Column = tuple[str, Callable[[Result], str]]


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}"


def _of_input(tokens: int, result: Result) -> str:
    return _percent(tokens / result.outcome.input_tokens if result.outcome.input_tokens else 0.0)


_GPU: Final[Column] = ("gpu %", lambda each: _of_input(each.outcome.gpu_tokens, each))
_L1: Final[Column] = ("L1 %", lambda each: _of_input(each.outcome.l1_tokens, each))
_L2: Final[Column] = ("L2 %", lambda each: _of_input(each.outcome.l2_tokens, each))
_WRITES: Final[Sequence[Column]] = (
    ("written", lambda each: f"{each.outcome.written:,}"),
    ("dead", lambda each: f"{each.outcome.dead:,}"),
    ("evicted", lambda each: f"{each.outcome.evicted:,}"),
)
_L2_WRITES: Final[Sequence[Column]] = (
    ("to L2", lambda each: f"{each.outcome.l2_written:,}"),
    ("evicted", lambda each: f"{each.outcome.l2_evicted:,}"),
    ("L2 to L1", lambda each: f"{each.outcome.promoted:,}"),
)
_SKIPS: Final[Sequence[Column]] = (
    ("skip\ncalls %", lambda each: f"{100 * each.outcome.skip_ratio:.1f}"),
    ("skip\ntok. %", lambda each: f"{100 * each.outcome.skip_token_ratio:.1f}"),
)


def trace_text(loaded: Loaded) -> str:
    """A trace in one line."""
    trace = loaded.trace
    counted = f", the first {trace.first_counted:,} uncounted" if trace.first_counted else ""
    return (
        f"{', '.join(loaded.formats)}: {len(trace):,} requests{counted}, {sum(trace.input_tokens):,} prompt tokens, "
        f"{trace.unique_blocks:,} distinct chunks of {trace.block_tokens} tokens"
    )


def sizes_text(tiers: Tiers) -> str:
    """Sizes of tiers in words."""
    parts = [f"L1 {tiers.l1:,} chunks"]
    parts += [f"L2 {tiers.l2:,}"] if tiers.l2 else []
    parts += [f"gpu {tiers.gpu:,}"] if tiers.gpu else []
    return ", ".join(parts)


def result_tables(results: Sequence[Result], unique_blocks: int) -> list[Table]:
    """A table for each size, a row for each rule; with several tiers two: one of hits, one of writes.

    Args:
        results: in any order.
        unique_blocks: distinct chunks of the trace, for the pressure.
    """
    tables = []
    for tiers in dict.fromkeys(each.tiers for each in results):
        rows = [each for each in results if each.tiers == tiers]
        title = f"{sizes_text(tiers)} ({tiers.l1 / max(unique_blocks, 1):.1%} of all)"
        tables += [
            _table(rows, title if not at else "", columns)
            for at, columns in enumerate(_columns(tiers))
        ]
    return tables


def _columns(tiers: Tiers) -> list[Sequence[Column]]:
    hits: Column = ("hit %", lambda each: _percent(each.outcome.hit_rate))
    if not tiers.gpu and not tiers.l2:
        return [(hits, *_WRITES, *_SKIPS)]
    by_tier = [*([_GPU] if tiers.gpu else []), _L1, *([_L2] if tiers.l2 else [])]
    return [(hits, *by_tier, *_SKIPS), (*_WRITES, *(_L2_WRITES if tiers.l2 else ()))]


def _table(results: Sequence[Result], title: str, columns: Sequence[Column]) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("rule", min_width=12)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for each in results:
        table.add_row(escape(_spaced(each.rule)), *(show(each) for _, show in columns))
    return table


def _spaced(rule: Rule) -> str:
    """A rule as it was given, with room to break the line."""
    return str(rule).replace(":", ": ").replace(",", ", ")


def best_table(found: Sequence[Best]) -> Table:
    """The best thresholds for each size."""
    table = Table(
        title="Best thresholds: for hits, and for few writes within half a point of them",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("L1", justify="right")
    table.add_column("best for")
    table.add_column("prefix, context, turns", overflow="fold")
    table.add_column("hit %", justify="right")
    table.add_column("written", justify="right")
    for best in found:
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

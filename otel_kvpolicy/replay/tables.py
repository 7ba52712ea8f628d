"""What replay prints: one table for each size, narrow enough for 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .comparison import Result
from .engine import Tiers
from .readers import Loaded
from .sweep import Best

__all__ = ["best_table", "result_tables", "sizes_text", "trace_text"]

Column = tuple[str, Callable[[Result], str]]


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}"


def _of_input(tokens: int, result: Result) -> str:
    return _percent(tokens / result.outcome.input_tokens if result.outcome.input_tokens else 0.0)


_GPU: Final[Column] = ("gpu %", lambda each: _of_input(each.outcome.gpu_tokens, each))
_L1: Final[Column] = ("L1 %", lambda each: _of_input(each.outcome.l1_tokens, each))
_L2: Final[Column] = ("L2 %", lambda each: _of_input(each.outcome.l2_tokens, each))
_COUNTS: Final[Sequence[Column]] = (
    ("written", lambda each: f"{each.outcome.written:,}"),
    ("dead", lambda each: f"{each.outcome.dead:,}"),
    ("evicted", lambda each: f"{each.outcome.evicted:,}"),
    ("skip\ncalls %", lambda each: f"{100 * each.outcome.skip_ratio:.1f}"),
    ("skip\ntok. %", lambda each: f"{100 * each.outcome.skip_token_ratio:.1f}"),
)
_L2_COUNTS: Final[Sequence[Column]] = (("to L2", lambda each: f"{each.outcome.l2_written:,}"),)


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
    """A table for each size, a row for each rule.

    Args:
        results: in any order.
        unique_blocks: distinct chunks of the trace, for the pressure.
    """
    by_size = groupby(sorted(results, key=_size), key=_size)
    return [_table([*group], f"{sizes_text(Tiers(*size))} ({size[0] / max(unique_blocks, 1):.1%} of all)") for size, group in by_size]


def _size(result: Result) -> tuple[int, int, int]:
    return result.tiers.l1, result.tiers.l2, result.tiers.gpu


def _columns(tiers: Tiers) -> list[Column]:
    by_tier = [*([_GPU] if tiers.gpu else []), *([_L1, _L2] if tiers.l2 else [_L1] if tiers.gpu else [])]
    return [("hit %", lambda each: _percent(each.outcome.hit_rate)), *by_tier, *_COUNTS, *(_L2_COUNTS if tiers.l2 else ())]


def _table(results: Sequence[Result], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("rule", overflow="fold", min_width=10)
    columns = _columns(results[0].tiers)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap="\n" not in name)
    for each in results:
        table.add_row(escape(str(each.rule)), *(show(each) for _, show in columns))
    return table


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
            settings = str(result.rule).removeprefix("thresholds:").replace(",", ", ")
            table.add_row(f"{result.tiers.l1:,}", name, settings, _percent(result.outcome.hit_rate), f"{result.outcome.written:,}")
    return table

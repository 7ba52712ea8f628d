"""The command ``otel-kvpolicy replay``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .report.export import WRITERS
from .report.tables import best_table, result_tables, trace_text
from .simulator import (
    DEFAULT_RULES,
    MODELS,
    RULES,
    Result,
    Rule,
    SizeError,
    Tiers,
    blocks_of,
    compare,
    default_capacities,
    parse_rule,
)
from .simulator.comparison import Finished
from .simulator.sweep import grid, sweep
from .trace import Loaded, TraceError, load, trace_files

NO_TRACE: Final = 2


def _rules(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[Rule]:
    try:
        rules = {str(rule): rule for rule in map(parse_rule, values or DEFAULT_RULES)}
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return [*rules.values()]


def _outputs(
    ctx: click.Context, param: click.Parameter, values: tuple[Path, ...]
) -> tuple[Path, ...]:
    for path in values:
        if path.suffix not in WRITERS:
            raise click.BadParameter(f"{path.name!r} must end in {', '.join(WRITERS)}", ctx, param)
    return values


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    callback=_rules,
    metavar="RULE",
    help=f"A rule to compare; may be repeated. One of {', '.join(RULES)}. Some take settings, as in"
    " thresholds:prefix=512,context=off,turns=2.",
)
@click.option(
    "--l1",
    "l1",
    multiple=True,
    metavar="SIZE,…",
    help="Sizes of L1, in chunks (5000) or bytes (64GiB). By default, from 1/64 of the trace's"
    " distinct chunks up to all of them.",
)
@click.option(
    "--l2",
    default="0",
    metavar="SIZE",
    show_default="none",
    help="Size of L2, LMCache's backend.",
)
@click.option(
    "--gpu",
    default="0",
    metavar="SIZE",
    show_default="none",
    help="Size of vLLM's own prefix cache.",
)
@click.option(
    "--model",
    type=click.Choice([*MODELS]),
    help="The model whose KV size per token converts bytes to chunks.",
)
@click.option(
    "--kv-bytes-per-token",
    type=click.IntRange(1),
    metavar="N",
    help="KV size per token in bytes, for models not in --model.",
)
@click.option(
    "--block-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens per chunk, if a hashed trace does not state it.",
)
@click.option(
    "--partial-blocks",
    is_flag=True,
    help="Keep a partial last chunk of a prompt. LMCache drops it.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Share of the requests that only warm the cache and do not count.",
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of client processes that share the traffic, each with its own adaptive rule.",
)
@click.option(
    "--sweep",
    "sweeping",
    is_flag=True,
    help="Instead of comparing rules, find the best thresholds for each size.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="number of CPUs",
    help="Number of processes that simulate.",
)
@click.option(
    "--out",
    "outputs",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_outputs,
    help="Write the results to a .html, .csv or .json file; may be repeated.",
)
def command(
    *,
    traces: tuple[Path, ...],
    rules: list[Rule],
    l1: tuple[str, ...],
    l2: str,
    gpu: str,
    model: str | None,
    kv_bytes_per_token: int | None,
    block_tokens: int | None,
    partial_blocks: bool,
    warm_up: float,
    clients: int,
    sweeping: bool,
    jobs: int,
    outputs: tuple[Path, ...],
) -> None:
    """Replay traffic against simulated cache tiers and compare rules.

    \b
    otel-kvpolicy replay trace.jsonl.gz --out report.html
    otel-kvpolicy replay traces/ --l1 64GiB,256GiB --l2 2TiB --model qwen3-32b
    otel-kvpolicy replay chats.jsonl --rule always --rule thresholds:prefix=512,context=off
    otel-kvpolicy replay trace.jsonl.gz --l1 5000 --sweep

    TRACE is a file or a directory of files, plain or gzipped. Each file has JSON lines in one of
    these formats, which replay recognizes by their content: Mooncake and Qwen-Bailian traces,
    OpenAI messages, LMCache's lookup-hash log, recorded spans (OTLP JSON), or the decision log.

    Exit codes: 0 success, 1 an output file cannot be written, 2 no supported trace or wrong usage.
    """
    if model and kv_bytes_per_token:
        raise click.UsageError("pass either --model or --kv-bytes-per-token, not both")
    loaded = _load(traces, block_tokens, partial_blocks, warm_up)
    _print_notes(loaded)
    kv_bytes = MODELS[model].bytes_per_token if model else kv_bytes_per_token
    tiers = _tiers(loaded, l1, l2, gpu, kv_bytes)
    console = Console()
    console.print(trace_text(loaded), highlight=False)
    if sweeping:
        results = _sweep(console, loaded, tiers, jobs)
    else:
        with _progress_bar("simulating", len(rules) * len(tiers)) as advance:
            results = compare(
                loaded.trace, rules, tiers, clients=clients, jobs=jobs, finished=_by_one(advance)
            )
        console.print(*result_tables(results, loaded.trace.unique_blocks), sep="")
    name = traces[0].name + (f" and {len(traces) - 1} more" if len(traces) > 1 else "")
    for path in outputs:
        _write(path, WRITERS[path.suffix](loaded, results, name))


def _load(
    traces: Sequence[Path], block_tokens: int | None, partial_blocks: bool, warm_up: float
) -> Loaded:
    try:
        total = sum(path.stat().st_size for path in trace_files(traces))
        with _progress_bar("reading", total, counting=False) as advance:
            return load(
                traces,
                block_tokens=block_tokens,
                full_blocks_only=not partial_blocks,
                warm_up=warm_up,
                progress=advance,
            )
    except (TraceError, OSError) as error:
        click.echo(f"replay: {error}", err=True)
        raise click.exceptions.Exit(NO_TRACE) from None


def _print_notes(loaded: Loaded) -> None:
    for note in loaded.notes:
        click.echo(f"replay: {note}", err=True)
    if loaded.broken:
        lines, shown = "line" if loaded.broken == 1 else "lines", len(loaded.broken_lines)
        first = f", the first {shown} are" if loaded.broken > shown else ""
        click.echo(f"replay: skipped {loaded.broken:,} broken {lines}{first}:", err=True)
        for line in loaded.broken_lines:
            click.echo(f"  {line}", err=True)


def _tiers(
    loaded: Loaded, l1: Sequence[str], l2: str, gpu: str, kv_bytes_per_token: int | None
) -> list[Tiers]:
    def blocks(text: str) -> int:
        return blocks_of(text, loaded.trace.block_tokens, kv_bytes_per_token)

    try:
        sizes = [blocks(text) for option in l1 for text in option.split(",")]
        tiers = [
            Tiers(size, blocks(l2), blocks(gpu))
            for size in sizes or default_capacities(loaded.trace)
        ]
    except SizeError as error:
        raise click.UsageError(str(error)) from None
    return list(dict.fromkeys(tiers))


def _sweep(console: Console, loaded: Loaded, tiers: Sequence[Tiers], jobs: int) -> list[Result]:
    candidates = grid(loaded.trace)
    with _progress_bar("sweeping", len(candidates) * len(tiers)) as advance:
        best_by_size = sweep(loaded.trace, tiers, candidates, jobs=jobs, finished=_by_one(advance))
    console.print(best_table(best_by_size))
    results = [result for best in best_by_size for result in (best.hits, best.writes)]
    rules = list({str(result.rule): result.rule for result in results}.values())
    return compare(loaded.trace, rules, tiers, jobs=jobs)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"replay: wrote {path}", err=True)


def _by_one(advance: Callable[[int], None]) -> Finished:
    return lambda: advance(1)


@contextmanager
def _progress_bar(
    what: str, total: int, *, counting: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if that is a terminal.

    Yields:
        A function that advances the bar.
    """
    columns = [
        TextColumn("{task.description:>10}"),
        BarColumn(),
        *([MofNCompleteColumn()] if counting else []),
        TimeElapsedColumn(),
    ]
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.advance(task, more)

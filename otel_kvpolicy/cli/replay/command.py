"""``otel-kvpolicy replay``."""

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
from .simulator.comparison import Finished, Result, compare, default_capacities
from .simulator.engine import Tiers
from .simulator.players import DEFAULT_RULES, RULES, Rule, parse_rule
from .simulator.sizes import MODELS, SizeError, blocks_of
from .simulator.sweep import grid, sweep
from .trace.readers import Loaded, TraceError, load, trace_files

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
            raise click.BadParameter(
                f"{path.name!r} ends in none of {', '.join(WRITERS)}", ctx, param
            )
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
    help=f"May be repeated. {', '.join(RULES)}.",
)
@click.option(
    "--l1",
    "l1",
    multiple=True,
    metavar="SIZE,…",
    help="Chunks (5000) or bytes (64GiB). Shares of the trace by default.",
)
@click.option("--l2", default="0", metavar="SIZE", help="LMCache's backend; none by default.")
@click.option(
    "--gpu", default="0", metavar="SIZE", help="vLLM's own prefix cache; none by default."
)
@click.option(
    "--model", type=click.Choice([*MODELS]), help="Whose KV a token takes, for sizes in bytes."
)
@click.option(
    "--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="The same, in bytes."
)
@click.option(
    "--block-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of a hashed chunk, where the trace does not say.",
)
@click.option(
    "--partial-blocks",
    is_flag=True,
    help="Keep last chunks that are not full, which LMCache does not.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="Share of the requests that fill the cache uncounted.",
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=1,
    help="Processes that share the traffic, and learn each on its own.",
)
@click.option(
    "--sweep",
    "sweeping",
    is_flag=True,
    help="Find the best thresholds for each size instead of comparing rules.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    help="Processes that simulate; as many as there are CPUs.",
)
@click.option(
    "--out",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_outputs,
    help=".html, .csv or .json.",
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
    """Replays traffic against simulated cache tiers and compares rules.

    \b
    otel-kvpolicy replay trace.jsonl.gz --out report.html
    otel-kvpolicy replay traces/ --l1 64GiB,256GiB --l2 2TiB --model qwen3-32b
    otel-kvpolicy replay chats.jsonl --rule always --rule thresholds:prefix=512,context=off
    otel-kvpolicy replay trace.jsonl.gz --l1 5000 --sweep

    A TRACE is a file, plain or gzip, or a directory: JSON lines of Mooncake or Qwen-Bailian traces, OpenAI messages, LMCache's lookup-hash
    log, recorded spans (OTLP JSON) or the decision log, told apart by what is in them.

    Exit codes: 0 done, 2 no trace or wrong usage.
    """
    if model and kv_bytes_per_token:
        raise click.UsageError("--model and --kv-bytes-per-token say the same: give one of them")
    loaded = _load(traces, block_tokens, partial_blocks, warm_up)
    _tell(loaded)
    size = MODELS[model].bytes_per_token if model else kv_bytes_per_token
    tiers = _tiers(loaded, l1, l2, gpu, size)
    console = Console()
    console.print(trace_text(loaded), highlight=False)
    if sweeping:
        results = _sweep(console, loaded, tiers, jobs)
    else:
        with _bar("simulating", len(rules) * len(tiers)) as advance:
            results = compare(
                loaded.trace, rules, tiers, clients=clients, jobs=jobs, finished=_one(advance)
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
        with _bar("reading", total, counting=False) as advance:
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


def _tell(loaded: Loaded) -> None:
    for note in loaded.notes:
        click.echo(f"replay: {note}", err=True)
    if loaded.broken:
        more = (
            f" (the first {len(loaded.broken_lines)})"
            if loaded.broken > len(loaded.broken_lines)
            else ""
        )
        click.echo(
            f"replay: {loaded.broken:,} broken {'line' if loaded.broken == 1 else 'lines'} passed over{more}:",
            err=True,
        )
        for line in loaded.broken_lines:
            click.echo(f"  {line}", err=True)


def _tiers(
    loaded: Loaded, l1: Sequence[str], l2: str, gpu: str, kv_bytes_per_token: int | None
) -> list[Tiers]:
    def blocks(text: str) -> int:
        return blocks_of(text, loaded.trace.block_tokens, kv_bytes_per_token)

    try:
        asked = [blocks(text) for given in l1 for text in given.split(",")]
        sizes = [
            Tiers(size, blocks(l2), blocks(gpu))
            for size in asked or default_capacities(loaded.trace)
        ]
    except SizeError as error:
        raise click.UsageError(str(error)) from None
    return list(dict.fromkeys(sizes))


def _sweep(console: Console, loaded: Loaded, tiers: Sequence[Tiers], jobs: int) -> list[Result]:
    tried = grid(loaded.trace)
    with _bar("sweeping", len(tried) * len(tiers)) as advance:
        found = sweep(loaded.trace, tiers, tried, jobs=jobs, finished=_one(advance))
    console.print(best_table(found))
    best = [result for each in found for result in (each.hits, each.writes)]
    rules = list({str(each.rule): each.rule for each in best}.values())
    return compare(loaded.trace, rules, tiers, jobs=jobs)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"replay: wrote {path}", err=True)


def _one(advance: Callable[[int], None]) -> Finished:
    return lambda: advance(1)


@contextmanager
def _bar(what: str, total: int, *, counting: bool = True) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, where that is a terminal."""
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

"""The command ``otel-kvpolicy demo``."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .conversations import built_in
from .report import print_report, summary
from .runner import DemoError, Side, Sizes, run_side
from .workload import InputError, read_conversations, steps

_SIDES = (("policy", True), ("store everything", False))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    help="Your own conversations as JSON lines, gzipped or not.",
)
@click.option(
    "--users", type=click.IntRange(1), default=16, help="Number of conversations at the same time."
)
@click.option(
    "--l1-mib",
    type=click.IntRange(64),
    default=4096,
    help="Size of LMCache's memory tier, at 128 KiB of KV cache per token.",
)
@click.option(
    "--l2-mib", type=click.IntRange(0), default=16384, help="Size of LMCache's backend; 0 for none."
)
@click.option(
    "--gpu-tokens",
    type=click.IntRange(0),
    default=16384,
    help="Tokens that vLLM's own prefix cache holds.",
)
@click.option(
    "--lmcache-mode",
    "mode",
    type=click.Choice(["mp", "in_process"]),
    default="mp",
    help="How vLLM reaches LMCache.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def command(
    *,
    source: Path | None,
    users: int,
    l1_mib: int,
    l2_mib: int,
    gpu_tokens: int,
    mode: str,
    as_json: bool,
) -> None:
    """Compare the policy with storing everything, without a key, a network or a GPU.

    Sends conversations through the real OpenAI client, instrumented by opentelemetry-instrument, to
    an embedded stand-in for vLLM with LMCache: once with the policy, once storing everything.

    Each line of --input is a list of OpenAI messages, or an object that has the list as "messages"
    or "traj". Every assistant message in it is one call, sent with all messages before it.
    """
    try:
        conversations = built_in() if source is None else read_conversations(source)
        order = steps(conversations, users)
        sizes = Sizes("mp" if mode == "mp" else "in_process", l1_mib, l2_mib, gpu_tokens)
        sides: list[Side] = []
        with _progress() as progress:
            for name, layering in _SIDES:
                task = progress.add_task(name, total=len(order))
                sides.append(
                    run_side(
                        conversations,
                        order,
                        sizes,
                        layering=layering,
                        advance=partial(progress.advance, task),
                    )
                )
    except (InputError, DemoError) as error:
        raise click.ClickException(str(error)) from error
    name = "the built-in workload" if source is None else source.name
    if as_json:
        numbers = {
            "source": name,
            "sizes": asdict(sizes),
            "policy": summary(sides[0]),
            "store_everything": summary(sides[1]),
        }
        click.echo(json.dumps(numbers, indent=2))
    else:
        print_report(Console(), sides[0], sides[1], sizes, name)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:>16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )

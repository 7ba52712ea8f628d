"""The command ``otel-kvpolicy doctor``."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from typing import Final

import click
import httpx2
from rich.console import Console

from ..http import Http
from .advice import advice
from .environment import check_process
from .examination import Examination, Options, examine
from .render import show

_INTERRUPTED: Final = 130
_KEY_HINT: Final = "pass --api-key or set OPENAI_API_KEY"
_NO_KEY_HINT: Final = "LMCache needs none, so check --lmcache-url"


def _url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the URL without a slash at its end.

    Raises:
        click.BadParameter: the value is not an http or https URL with a host.
    """
    if value is None:
        return None
    try:
        url = httpx2.URL(value)
        usable = (
            url.scheme in {"http", "https"}
            and url.host
            and (url.port is None or 0 < url.port < 1 << 16)
        )
    except (ValueError, httpx2.InvalidURL):
        usable = False
    if not usable:
        raise click.BadParameter(f"{value!r} is not an http or https URL", ctx, param)
    return value.rstrip("/")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--base-url",
    required=True,
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    callback=_url,
    help="vLLM's API, such as http://host:8000/v1.",
)
@click.option(
    "--lmcache-url",
    envvar="LMCACHE_URL",
    show_envvar=True,
    callback=_url,
    help="HTTP address of LMCache's multi-process server, such as http://host:8080.",
)
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Bearer token for vLLM.")
@click.option("--model", help="Model to ask; by default, the first one vLLM serves.")
@click.option(
    "--chunk-tokens",
    type=click.IntRange(min=1),
    help="Tokens of an LMCache chunk; by default, what LMCache says, or 256.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    help="Trials of each hint; up to twice as many while they are inconclusive.",
)
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=1.0,
    help="Seconds to wait until a store shows.",
)
@click.option(
    "--refresh",
    type=click.FloatRange(min=0),
    help="Seconds between updates of the counters; by default, 10 for LMCache inside vLLM, else 0.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    help="Seconds for each request.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    base_url: str,
    lmcache_url: str | None,
    api_key: str | None,
    model: str | None,
    chunk_tokens: int | None,
    rounds: int,
    settle: float,
    refresh: float | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Find out on a live vLLM and LMCache whether the hint has an effect.

    Sends a few dozen random prompts of three chunks and checks which of them were stored. Otherwise
    it only reads; it clears no cache.

    Exit codes: 0 honoured, 1 ignored, refused or without effect, 3 inconclusive, 2 wrong usage.
    """
    options = Options(model, chunk_tokens, rounds, rounds, settle, refresh)
    with ExitStack() as stack:
        vllm = stack.enter_context(closing(_vllm(base_url, api_key, timeout)))
        lmcache = (
            stack.enter_context(closing(_lmcache(lmcache_url, timeout))) if lmcache_url else None
        )
        status = stack.enter_context(Console(stderr=True).status("checking this process"))
        try:
            exam = examine(vllm, lmcache, options, check_process(base_url), status.update)
        except KeyboardInterrupt:  # click would exit with 1, which means "ignored" here
            ctx.exit(_INTERRUPTED)
    _print(exam, as_json=as_json)
    ctx.exit(exam.exit_code)


def _vllm(base_url: str, api_key: str | None, timeout: float) -> Http:
    return Http(
        base_url.removesuffix("/v1"),
        timeout=timeout,
        wanted_credentials=f"{'another' if api_key else 'an'} API key: {_KEY_HINT}",
        headers={"authorization": f"Bearer {api_key}"} if api_key else None,
    )


def _lmcache(url: str, timeout: float) -> Http:
    return Http(url, timeout=timeout, wanted_credentials=f"an API key: {_NO_KEY_HINT}")


def _print(exam: Examination, *, as_json: bool) -> None:
    if not as_json:
        show(Console(highlight=False), exam)
        return
    notes = advice(exam)
    found = exam.as_json() | {
        "notes": [note.text for note in notes],
        "advice": [note.as_json() for note in notes],
    }
    click.echo(json.dumps(found, indent=2))

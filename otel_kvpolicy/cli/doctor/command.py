"""``otel-kvpolicy doctor``."""

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
from .examination import Examination, Wish, examine
from .render import show

_INTERRUPTED: Final = 130
_KEY_HINT: Final = "give --api-key or set OPENAI_API_KEY"
_NO_KEY_HINT: Final = "LMCache's own server asks for none, so is this its address (--lmcache-url)?"


def _url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
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
        raise click.BadParameter(f"{value!r} is no http or https URL", ctx, param)
    return value.rstrip("/")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--base-url",
    required=True,
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    callback=_url,
    help="vLLM's API: http://host:8000/v1.",
)
@click.option(
    "--lmcache-url",
    envvar="LMCACHE_URL",
    show_envvar=True,
    callback=_url,
    help="HTTP side of LMCache's multi-process server: http://host:8080.",
)
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Bearer token for vLLM.")
@click.option("--model", help="Model to ask; the first one served by default.")
@click.option(
    "--chunk-tokens",
    type=click.IntRange(min=1),
    help="Tokens of an LMCache chunk, where its server does not tell (256).",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    help="Trials of each hint; twice as many while inconclusive.",
)
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=1.0,
    help="Seconds to wait for a store to show.",
)
@click.option(
    "--refresh",
    type=click.FloatRange(min=0),
    help="Seconds between updates of the counters (10 for LMCache inside vLLM, 0 otherwise).",
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
    """Proves on a live vLLM and LMCache whether the hint is honoured.

    Sends a few dozen random prompts of three chunks and reads what became of them. Beyond that it only reads, and clears no cache.

    Exit codes: 0 honoured, 1 ignored, refused or without effect, 3 inconclusive, 2 wrong usage.
    """
    wish = Wish(model, chunk_tokens, rounds, rounds, settle, refresh)
    with ExitStack() as stack:
        vllm = stack.enter_context(closing(_vllm(base_url, api_key, timeout)))
        lmcache = (
            stack.enter_context(closing(_lmcache(lmcache_url, timeout))) if lmcache_url else None
        )
        status = stack.enter_context(Console(stderr=True).status("looking at this process"))
        try:
            found = examine(vllm, lmcache, wish, check_process(base_url), status.update)
        except KeyboardInterrupt:  # click would end with 1, which says "ignored" here
            ctx.exit(_INTERRUPTED)
    _print(found, as_json=as_json)
    ctx.exit(found.exit_code)


def _vllm(base_url: str, api_key: str | None, timeout: float) -> Http:
    return Http(
        base_url.removesuffix("/v1"),
        timeout=timeout,
        wanted_credentials=f"{'another' if api_key else 'an'} API key: {_KEY_HINT}",
        headers={"authorization": f"Bearer {api_key}"} if api_key else None,
    )


def _lmcache(url: str, timeout: float) -> Http:
    return Http(url, timeout=timeout, wanted_credentials=f"an API key: {_NO_KEY_HINT}")


def _print(found: Examination, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**found.as_json(), "notes": advice(found)}, indent=2))
    else:
        show(Console(highlight=False), found)

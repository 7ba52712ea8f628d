"""The command ``python -m otel_kvpolicy.standin``: run a stand-in in the foreground."""

from __future__ import annotations

from typing import Any, get_args

import click

from .options import Mode, StrictStyle
from .server import StandIn

_DEFAULT_PORT = 8000
_DEFAULT_LMCACHE_PORT = 8080


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--host", default="127.0.0.1", help="Loopback address to listen on.")
@click.option("--port", default=_DEFAULT_PORT, help="Port of vLLM's server; 0 picks a free one.")
@click.option(
    "--lmcache-port",
    default=_DEFAULT_LMCACHE_PORT,
    help="Port of LMCache's server; 0 picks a free one.",
)
@click.option(
    "--lmcache-mode",
    "mode",
    type=click.Choice(get_args(Mode)),
    default="mp",
    help="How vLLM is connected to LMCache.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("stand-in",),
    help="Served model name; may be repeated.",
)
@click.option("--l1-mib", default=4096, help="Size of LMCache's memory tier in MiB.")
@click.option("--l2-mib", default=16384, help="Size of LMCache's backend in MiB; 0 for none.")
@click.option("--gpu-tokens", default=32768, help="Size of vLLM's own cache in tokens.")
@click.option("--latency", default=0.0, help="Seconds before the first token.")
@click.option(
    "--strict",
    type=click.Choice(get_args(StrictStyle)),
    is_flag=False,
    flag_value="openai",
    help="Reject unknown fields as this vendor does.",
)
@click.option("--api-key", help="Require this bearer token.")
@click.option("--fail-first", default=0, help="Number of calls to fail before the first success.")
@click.option("--fail-status", default=500, help="HTTP status of the failed calls.")
@click.option(
    "--no-prompt-tokens-details",
    is_flag=True,
    help="Leave the cached tokens out of chat usage.",
)
@click.option(
    "--ignore-hints",
    is_flag=True,
    help="Store every call, as LMCache before 0.5.6 does.",
)
@click.option(
    "--vendored-connector",
    is_flag=True,
    help="Behave like vLLM's own copy of the multi-process connector, which ignores hints.",
)
@click.option("--no-metrics", is_flag=True, help="Serve no metrics.")
def main(
    *,
    host: str,
    port: int,
    lmcache_port: int,
    l1_mib: int,
    l2_mib: int,
    no_prompt_tokens_details: bool,
    ignore_hints: bool,
    no_metrics: bool,
    **options: Any,
) -> None:
    """Run a stand-in for vLLM with LMCache that runs no model."""
    try:
        server = StandIn(
            host=host,
            port=port,
            lmcache_port=lmcache_port,
            l1_bytes=l1_mib << 20,
            l2_bytes=l2_mib << 20,
            prompt_tokens_details=not no_prompt_tokens_details,
            honour_hints=not ignore_hints,
            serve_metrics=not no_metrics,
            **options,
        )
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"OPENAI_BASE_URL={server.base_url}")
    if server.lmcache_url:
        click.echo(f"LMCACHE_URL={server.lmcache_url}")
    server.serve()


if __name__ == "__main__":
    main()

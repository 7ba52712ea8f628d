"""``python -m otel_kvpolicy.standin``: a stand-in in the foreground."""

from __future__ import annotations

from typing import Any, get_args

import click

from .options import Mode, StrictStyle
from .server import StandIn

_DEFAULT_PORT = 8000
_DEFAULT_LMCACHE_PORT = 8080


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--host", default="127.0.0.1", help="Loopback address.")
@click.option("--port", default=_DEFAULT_PORT, help="Port of vLLM's server, 0 for any.")
@click.option(
    "--lmcache-port", default=_DEFAULT_LMCACHE_PORT, help="Port of LMCache's server, 0 for any."
)
@click.option(
    "--lmcache-mode",
    "mode",
    type=click.Choice(get_args(Mode)),
    default="mp",
    help="How vLLM reaches LMCache.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("stand-in",),
    help="Served model name; may be repeated.",
)
@click.option("--l1-mib", default=4096, help="LMCache's memory tier, MiB.")
@click.option("--l2-mib", default=16384, help="LMCache's backend, MiB; 0 for none.")
@click.option("--gpu-tokens", default=32768, help="Tokens that fit in vLLM's own cache.")
@click.option("--latency", default=0.0, help="Seconds before the first token.")
@click.option(
    "--strict",
    type=click.Choice(get_args(StrictStyle)),
    is_flag=False,
    flag_value="openai",
    help="Refuse unknown fields like this vendor.",
)
@click.option("--api-key", help="Ask for this bearer token.")
@click.option("--fail-first", default=0, help="Fail this many calls first.")
@click.option("--fail-status", default=500, help="HTTP status of those.")
@click.option(
    "--no-prompt-tokens-details", is_flag=True, help="Say nothing of cached tokens in chat usage."
)
@click.option(
    "--ignore-hints",
    is_flag=True,
    help="Store whatever the request says, like LMCache before 0.5.6.",
)
@click.option(
    "--vendored-connector",
    is_flag=True,
    help="Be vLLM's own copy of the multi-process connector, which reads no hint.",
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
    """Serves a vLLM with LMCache that runs no model."""
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

"""The command ``otel-kvpolicy warm``: let a fresh server store known prefixes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import click

from ...hints.lmcache import LMCACHE
from ..http import Http, RefusedError, ServerError

_OWN_FIELDS: Final = ("model", "messages", "tools", "cache_salt")
_QUESTION: Final = {"role": "user", "content": "."}
_FILE: Final = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("prefixes", type=click.File(encoding="utf-8"))
@click.option(
    "--base-url",
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    required=True,
    help="vLLM's OpenAI address, such as http://host:8000/v1.",
)
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Bearer token for vLLM.")
@click.option("--model", help="Model to ask, for prefixes that name none.")
@click.option(
    "--per-second",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Prefixes to send in a second at most. They are sent one at a time.",
)
@click.option(
    "--done",
    type=_FILE,
    help="File that lists the prefixes sent, by their hashes. If it exists, they are left out, so "
    "that a stopped run can go on. Use one file for each server.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds allowed for each prefix.",
)
def command(
    *,
    prefixes: Any,
    base_url: str,
    api_key: str | None,
    model: str | None,
    per_second: float,
    done: Path | None,
    timeout: float,
) -> None:
    """Send PREFIXES to a server and let it store them, before callers ask for them.

    PREFIXES is a file with one chat completion request in JSON on each line, of which messages,
    tools, model and cache_salt are sent. The answer has one token. If the last message is not the
    user's, a short question is added, because most chat templates require one.
    """
    bodies = list(_read(prefixes, model))
    sent = set(done.read_text(encoding="utf-8").split()) if done and done.exists() else set()
    pending = [(name, body) for name, body in bodies if name not in sent]
    if len(pending) < len(bodies):
        click.echo(f"{len(bodies) - len(pending)} of {len(bodies)} were sent before.")
    http = Http(
        base_url.rstrip("/").removesuffix("/v1"),
        timeout=timeout,
        wanted_credentials="an API key: pass --api-key or set OPENAI_API_KEY",
        headers={"authorization": f"Bearer {api_key}"} if api_key else None,
    )
    with closing(http):
        for number, (name, body) in enumerate(pending, 1):
            started = time.monotonic()
            tokens, cached = _send(http, body)
            if done is not None:
                with done.open("a", encoding="utf-8") as file:
                    file.write(f"{name}\n")
            click.echo(f"{number}/{len(pending)}: {tokens} tokens, {cached} of them cached already")
            if number < len(pending):
                time.sleep(max(0.0, started + 1 / per_second - time.monotonic()))


def _read(lines: Any, model: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the hash and the body of each request."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            given = None
        messages = given.get("messages") if isinstance(given, dict) else None
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            raise click.ClickException(
                f"Line {number} is not a chat completion request: expected a JSON object with "
                "'messages'."
            )
        body = {name: given[name] for name in _OWN_FIELDS if given.get(name)}
        body.setdefault("model", model)
        if not body["model"]:
            raise click.ClickException(f"Line {number} names no model: pass --model.")
        if not messages or messages[-1].get("role") != "user":
            body["messages"] = [*messages, _QUESTION]
        digest = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16)
        yield digest.hexdigest(), body


def _send(http: Http, body: dict[str, Any]) -> tuple[Any, Any]:
    """Send a request with stores on. Return its prompt tokens and how many were cached."""
    hint = {LMCACHE.field: LMCACHE.params(skip=False)}
    try:
        answer = http.chat({**body, **hint, "max_tokens": 1})
    except (RefusedError, ServerError) as error:
        raise click.ClickException(str(error)) from error
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return usage.get("prompt_tokens", "?"), details.get("cached_tokens", "?")

"""``otel-kvpolicy explain``."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from rich.console import Console

from ... import settings
from ..spans.files import FileSource
from ..spans.model import RecordedSpan, nanoseconds, normal_span_id, normal_trace_id
from ..spans.servers import connect
from ..spans.source import Query, Source, SourceError, oldest_first
from .dry_run import decide_offline, settings_with
from .explanation import Explanation, explain
from .render import show, show_table

NOTHING_FOUND: Final = 3
UNREADABLE: Final = 1
_LAST: Final = 20

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TRACEPARENT: Final = re.compile(
    r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}", re.IGNORECASE
)
_ID: Final = re.compile(r"(0x)?[0-9a-f]{1,32}", re.IGNORECASE)


def _id(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A trace id as people have it: hex, with dashes as a UUID, or a whole ``traceparent``."""
    text = None if value is None else value.strip()
    if text is None or _TRACEPARENT.fullmatch(text) or _ID.fullmatch(text.replace("-", "")):
        return text
    raise click.BadParameter(f"{text!r} is no trace id: hex digits, or a traceparent", ctx, param)


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A moment as Unix nanoseconds: so long ago (``90m``, ``2h``, ``7d``), or a date and time."""
    if value is None:
        return None
    ago = _AGO.fullmatch(value.strip())
    if ago:
        return max(0, time.time_ns() - int(float(ago[1]) * _SECONDS[ago[2]] * 1e9))
    try:
        return max(0, nanoseconds(value.strip()))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither so long ago (90m, 2h, 7d) nor a date and time", ctx, param
        ) from None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("trace_id", callback=_id, required=False)
@click.option(
    "--from",
    "origin",
    metavar="URL|FILE",
    help="Jaeger, Tempo or Phoenix by its URL; a file or directory of OTLP JSON lines; a decision log; - for standard input. "
    "The decision log of KV_CACHE_DECISION_LOG, where it is set, by default.",
)
@click.option("--span", "span_id", metavar="ID", help="Only the span whose id begins so.")
@click.option("--skipped", is_flag=True, help="Only calls that were skipped.")
@click.option("--service", metavar="NAME", help="Only calls of this service.name.")
@click.option(
    "--since",
    callback=_since,
    metavar="WHEN",
    help="Only calls since: 90m, 2h, 7d ago, or a date and time.",
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"List the N most recent calls ({_LAST} without a trace id).",
)
@click.option(
    "--request",
    "request",
    metavar="FILE",
    help="Decide for this request body instead; - for standard input.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --request: try another setting; may be repeated.",
)
@click.option(
    "--role", metavar="ROLE", help="With --request: what kind of caller it is, such as planner."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Send a header to the server; may be repeated.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds for each request.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    trace_id: str | None,
    origin: str | None,
    span_id: str | None,
    skipped: bool,
    service: str | None,
    since: int | None,
    last: int | None,
    request: str | None,
    assignments: tuple[str, ...],
    role: str | None,
    headers: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Says why a call was or was not stored.

    \b
    otel-kvpolicy explain 4bf92f3577b34da6a3ce929d0e0e4736 --from http://localhost:16686
    otel-kvpolicy explain --last 20 --from traces.jsonl
    otel-kvpolicy explain --request body.json --set KV_CACHE_MIN_PREFIX_TOKENS=512

    Exit codes: 0 found, 3 nothing found, 1 the source cannot be read, 2 wrong usage.
    """
    if request is not None:
        if trace_id or origin or last or span_id:
            raise click.UsageError(
                "--request decides offline: it goes with neither a trace id nor --from, --last or --span"
            )
        span, planned = _decide(request, assignments, role)
        _print([explain(span, planned=planned)], "the request", as_json=as_json)
        return
    if assignments or role:
        raise click.UsageError(
            "--set and --role go with --request: a recorded decision has been taken"
        )
    if last and trace_id:
        raise click.UsageError("--last lists recent calls: it goes without a trace id")
    try:
        source = _source(origin, headers, timeout)
        query = Query(last or _LAST, since, service, skipped)
        spans = (
            _recent(source, query, span_id)
            if trace_id is None
            else _of_trace(source, trace_id, span_id, query)
        )
    except SourceError as error:
        _end(str(error), UNREADABLE)
    listing = trace_id is None and span_id is None
    explanations = [explain(span, None if listing else source.neighbours(span)) for span in spans]
    _notes(source)
    _print(explanations, source.name, as_json=as_json, listing=listing)


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"explain: {message}", err=True)
    raise click.exceptions.Exit(code)


def _notes(source: Source) -> None:
    for note in source.notes:
        click.echo(f"explain: {note}", err=True)


def _source(origin: str | None, headers: tuple[str, ...], timeout: float) -> Source:
    origin = origin or settings.current().decision_log
    if origin is None:
        raise click.UsageError("where from? Give --from URL|FILE, or set KV_CACHE_DECISION_LOG")
    if "://" not in origin:
        return FileSource(origin)
    if not origin.startswith(("http://", "https://")):
        raise click.UsageError(f"--from {origin}: only http and https can be asked")
    pairs = [header.partition(":") for header in headers]
    if any(not name.strip() or not colon for name, colon, _ in pairs):
        raise click.UsageError("--header takes 'NAME: VALUE'")
    return connect(origin, {name.strip(): value.strip() for name, _, value in pairs}, timeout)


def _decide(
    path: str, assignments: tuple[str, ...], role: str | None
) -> tuple[RecordedSpan, dict[str, Any]]:
    try:
        knobs = settings_with(assignments)
    except ValueError as error:
        raise click.UsageError(f"--set: {error}") from error
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return decide_offline(json.loads(text), knobs, role)
    except OSError as error:
        _end(f"cannot read {path}: {error.strerror or error}", UNREADABLE)
    except json.JSONDecodeError as error:
        _end(f"{path} is no JSON: {error}", UNREADABLE)
    except (ValueError, RecursionError) as error:
        _end(f"{path}: {error}", UNREADABLE)


def _recent(source: Source, query: Query, span_id: str | None) -> list[RecordedSpan]:
    spans = source.recent(query if span_id is None else query._replace(limit=10**9))
    if span_id is not None:
        spans = [span for span in spans if span.span_id.startswith(span_id.lower())][: query.limit]
    if not spans:
        skipped = "skipped " if query.skipped else ""
        whose = f" whose span id begins with {span_id}" if span_id else ""
        of = f" of service {query.service}" if query.service else ""
        recent = " that is so recent" if query.since else ""
        _end(f"no {skipped}decided call{whose}{of}{recent} in {source.name}", NOTHING_FOUND)
    return spans


def _of_trace(source: Source, given: str, span_id: str | None, query: Query) -> list[RecordedSpan]:
    parent = _TRACEPARENT.fullmatch(given.strip())
    trace_id = normal_trace_id(parent[1] if parent else given)
    span_id = span_id or (parent[2] if parent else None)
    found = source.trace(trace_id)
    if not found and isinstance(source, FileSource) and len(given.strip()) == 16:
        found = source.with_span_id(normal_span_id(given))
    if not found:
        _notes(source)
        _end(f"trace {trace_id} is not in {source.name}", NOTHING_FOUND)
    services = sorted({span.service or "unnamed" for span in found})
    decided = oldest_first([span for span in found if span.decided])
    if not decided:
        spans = "1 span" if len(found) == 1 else f"{len(found)} spans"
        _end(
            f"trace {trace_id} has {spans} (service {', '.join(services)}), none with a decision: was the instrumentor on in that process?",
            NOTHING_FOUND,
        )
    if parent and not any(span.span_id.startswith(parent[2].lower()) for span in decided):
        span_id = None  # a traceparent names the caller's span, which need not be the chat span
    chosen = [
        span
        for span in decided
        if query.takes(span) and (span_id is None or span.span_id.startswith(span_id.lower()))
    ]
    if not chosen:
        _end(_none_left(trace_id, decided, span_id, query), NOTHING_FOUND)
    return chosen


def _none_left(
    trace_id: str, decided: list[RecordedSpan], span_id: str | None, query: Query
) -> str:
    calls = "1 decided call" if len(decided) == 1 else f"{len(decided)} decided calls"
    if not any(query.service in {None, span.service} for span in decided):
        there = ", ".join(sorted({span.service or "unnamed" for span in decided}))
        return f"trace {trace_id} has {calls}, none of service {query.service} (there is {there})"
    if span_id is not None and not any(
        span.span_id.startswith(span_id.lower()) for span in decided
    ):
        return f"trace {trace_id} has {calls}, none whose span id begins with {span_id}"
    return (
        f"trace {trace_id} has {calls}, none that is {'skipped' if query.skipped else 'so recent'}"
    )


def _print(
    explanations: list[Explanation], where: str, *, as_json: bool, listing: bool = False
) -> None:
    if as_json:
        click.echo(
            json.dumps(
                {"source": where, "calls": [one.as_json() for one in explanations]},
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    console = Console(highlight=False, markup=False, emoji=False)
    several = len(explanations) > 1
    if listing or several:
        show_table(console, [explanation.span for explanation in explanations], by_trace=listing)
    for explanation in [] if listing else explanations:
        if several:
            console.print()
            console.rule(style="dim")
        show(console, explanation)

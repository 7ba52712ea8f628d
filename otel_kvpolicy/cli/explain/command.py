"""The command ``otel-kvpolicy explain``."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from rich.console import Console

from ... import settings
from ..spans.files import FileSource
from ..spans.model import nanoseconds
from ..spans.servers import connect
from ..spans.source import Note, Query, Source, SourceError
from .dry_run import destination_of, dry_run, settings_with
from .explanation import Explanation, explain
from .render import show, show_table
from .selection import NoMatchError, calls_of_trace, is_trace_id, recent_calls

UNREADABLE: Final = 1
NOTHING_FOUND: Final = 3
_LAST: Final = 20

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _trace_id(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    text = None if value is None else value.strip()
    if text is None or is_trace_id(text):
        return text
    raise click.BadParameter(
        f"{text!r} is not a trace id; pass hex digits or a traceparent", ctx, param
    )


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Convert an age (``90m``, ``2h``, ``7d``) or a date and time to Unix nanoseconds."""
    if value is None:
        return None
    age = _AGO.fullmatch(value.strip())
    if age:
        return max(0, time.time_ns() - int(float(age[1]) * _SECONDS[age[2]] * 1e9))
    try:
        return max(0, nanoseconds(value.strip()))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither an age (90m, 2h, 7d) nor a date and time", ctx, param
        ) from None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("trace_id", callback=_trace_id, required=False)
@click.option(
    "--from",
    "origin",
    metavar="URL|FILE",
    help="URL of Jaeger, Tempo or Phoenix; file or directory of OTLP JSON lines; decision log; "
    "- for standard input. Default: the decision log, if KV_CACHE_DECISION_LOG is set.",
)
@click.option("--span", "span_id", metavar="ID", help="Only spans whose id begins with ID.")
@click.option("--skipped", is_flag=True, help="Only skipped calls.")
@click.option("--service", metavar="NAME", help="Only calls of this service.name.")
@click.option(
    "--since",
    callback=_since,
    metavar="WHEN",
    help="Only calls since WHEN: an age (90m, 2h, 7d) or a date and time.",
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"List the N most recent calls ({_LAST} if there is no trace id).",
)
@click.option(
    "--request",
    "request",
    metavar="FILE",
    help="Decide for the request body in FILE instead; - for standard input.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --request: try another setting. Can be repeated.",
)
@click.option("--role", metavar="ROLE", help="With --request: role of the caller, such as planner.")
@click.option(
    "--base-url",
    metavar="URL",
    help="With --request: server the request would go to, to check KV_CACHE_TARGETS.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Header to send to the trace server. Can be repeated.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds allowed for each request.",
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
    base_url: str | None,
    headers: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Explain why a call's KV cache was or was not stored.

    \b
    otel-kvpolicy explain 4bf92f3577b34da6a3ce929d0e0e4736 --from http://localhost:16686
    otel-kvpolicy explain --last 20 --from traces.jsonl
    otel-kvpolicy explain --request body.json --set KV_CACHE_MIN_PREFIX_TOKENS=512

    Exit codes: 0 calls found, 3 no calls found, 1 source not readable, 2 wrong usage.
    """
    if request is not None and (trace_id or origin or last or span_id):
        raise click.UsageError(
            "--request decides for a new request; do not combine it with a trace id, --from, "
            "--last or --span"
        )
    if request is None and (assignments or role or base_url):
        raise click.UsageError("--set, --role and --base-url require --request")
    if last and trace_id:
        raise click.UsageError("--last lists recent calls; do not combine it with a trace id")
    printer = _Printer(as_json=as_json)
    if request is not None:
        _explain_request(request, assignments, role, base_url, printer)
        return
    place, fields = _place(origin), _header_fields(headers)
    query = Query(last or _LAST, since, service, skipped)
    try:
        source: Source = connect(place, fields, timeout) if "://" in place else FileSource(place)
        printer.source = source
        spans = (
            recent_calls(source, query, span_id)
            if trace_id is None
            else calls_of_trace(source, trace_id, query, span_id)
        )
    except SourceError as error:
        printer.fail(error.note, UNREADABLE)
    except NoMatchError as error:
        printer.fail(error.note, NOTHING_FOUND)
    is_listing = trace_id is None and span_id is None
    others = [None if is_listing else source.other_calls(span) for span in spans]
    printer.print(source.name, list(map(explain, spans, others)), is_listing=is_listing)


def _place(origin: str | None) -> str:
    place = origin or settings.current().decision_log
    if place is None:
        raise click.UsageError(
            f"No source given: pass --from URL|FILE or set {settings.env_name('decision_log')}."
        )
    if "://" in place and not place.startswith(("http://", "https://")):
        raise click.UsageError(f"--from {place}: the URL must begin with http:// or https://")
    return place


def _header_fields(headers: tuple[str, ...]) -> dict[str, str]:
    pairs = [header.partition(":") for header in headers]
    if any(not name.strip() or not colon for name, colon, _ in pairs):
        raise click.UsageError("--header must be 'NAME: VALUE'")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _explain_request(
    path: str,
    assignments: tuple[str, ...],
    role: str | None,
    base_url: str | None,
    printer: _Printer,
) -> None:
    try:
        changed_settings = settings_with(assignments)
    except ValueError as error:
        raise click.UsageError(f"--set: {error}") from error
    try:
        destination = destination_of(base_url, changed_settings) if base_url else None
    except ValueError as error:
        raise click.UsageError(f"--base-url: {error}") from error
    try:
        body = _read_json(path)
        span, planned = dry_run(body, changed_settings, role, destination)
    except SourceError as error:
        printer.fail(error.note, UNREADABLE)
    except (ValueError, RecursionError) as error:
        printer.fail(Note("cannot_decide", f"{path}: {error}"), UNREADABLE)
    printer.print("the request", [explain(span, planned=planned)])


def _read_json(path: str) -> Any:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        reason = error.strerror or error
        raise SourceError("unreadable", f"cannot read {path}: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise SourceError("not_json", f"{path} is not JSON: {error}") from error


class _Printer:
    """Prints explanations, or why there are none, as text or as JSON.

    Attributes:
        source: the source, once it is open; its notes are printed too.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.source: Source | None = None

    def print(
        self, source_name: str, explanations: list[Explanation], *, is_listing: bool = False
    ) -> None:
        """Print explanations; for a listing only a table of the calls."""
        self._print_notes()
        if self._as_json:
            self._print_json(source_name, explanations, None)
        else:
            _print_text(explanations, is_listing=is_listing)

    def fail(self, note: Note, exit_code: int) -> NoReturn:
        """Print why there is no explanation, then exit with ``exit_code``."""
        self._print_notes()
        click.echo(f"explain: {note.text}", err=True)
        if self._as_json:
            self._print_json(self.source.name if self.source else None, [], note)
        raise click.exceptions.Exit(exit_code)

    @property
    def _notes(self) -> Sequence[Note]:
        return self.source.notes if self.source else ()

    def _print_notes(self) -> None:
        for note in self._notes:
            click.echo(f"explain: {note.text}", err=True)

    def _print_json(
        self, source_name: str | None, explanations: list[Explanation], error: Note | None
    ) -> None:
        document = {
            "source": source_name,
            "calls": [explanation.as_json() for explanation in explanations],
            "notes": [note.as_json() for note in self._notes],
            "error": error.as_json() if error else None,
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_text(explanations: list[Explanation], *, is_listing: bool) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    has_several = len(explanations) > 1
    if is_listing or has_several:
        spans = [explanation.span for explanation in explanations]
        show_table(console, spans, by_trace=is_listing)
    for explanation in [] if is_listing else explanations:
        if has_several:
            console.print()
            console.rule(style="dim")
        show(console, explanation)

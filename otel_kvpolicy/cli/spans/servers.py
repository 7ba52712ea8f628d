"""Reads spans from Jaeger, Grafana Tempo and Arize Phoenix over HTTP."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple, TypeVar

import httpx2

from ...telemetry import names
from ..http import Http, ServerError
from . import jaeger, otlp
from .model import SERVICE_NAME, RecordedSpan, nanoseconds, normal_span_id, normal_trace_id
from .source import Note, OtherCalls, Query, Source, SourceError

_HOUR: Final = 3600 * 10**9
_DAY: Final = 24 * _HOUR
_PAGE: Final = 1000
_OTHER_CALLS: Final = 20
_WANTED_CREDENTIALS: Final = (
    "authorization: pass --header, such as 'Authorization: Bearer …' or, for Tempo, "
    "'X-Scope-OrgID: …'"
)

T = TypeVar("T")


class _TraceServer(ABC):
    kind = ""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.name = f"{self.kind} at {http.name}"
        self.notes: list[Note] = []
        self._other_calls: dict[tuple[str | None, int], OtherCalls | None] = {}

    @abstractmethod
    def recent(self, query: Query) -> list[RecordedSpan]:
        """Return the newest calls that match ``query``, newest first."""

    def other_calls(self, span: RecordedSpan) -> OtherCalls | None:
        """Return calls of the same service and prefix size that began within an hour of ``span``.

        Each service and prefix size is searched for once, in the hour after the first such span.
        """
        prefix = span.count(names.SIGNAL_PREFIX_TOKENS)
        if not prefix or span.started is None:
            return None
        key = (span.service, prefix)
        if key not in self._other_calls:
            self._other_calls[key] = self._search_hour_after(span.started, *key)
        return self._other_calls[key]

    def _search_hour_after(
        self, start: int, service: str | None, prefix_tokens: int
    ) -> OtherCalls | None:
        query = Query(
            _OTHER_CALLS, start, service, until=start + _HOUR, prefix_tokens=prefix_tokens
        )
        try:
            return OtherCalls(self.recent(query), "within the hour after it")
        except SourceError as error:
            self.notes.append(
                Note("later_calls_unknown", f"could not search for later calls: {error}")
            )
            return None

    def _json(self, path: str, **params: Any) -> Any:
        try:
            return self._http.get_json(path, **params)
        except ServerError as error:
            raise SourceError(error.code, str(error)) from error

    def _read(self, reader: Callable[[Any], list[T]], document: Any) -> list[T]:
        try:
            return reader(document)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise SourceError(
                "unusable_answer", f"{self.name} answered with an unreadable trace: {error}"
            ) from error


class JaegerSource(_TraceServer):
    """The query service of Jaeger 1 or 2."""

    kind = "Jaeger"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """Return all spans of a trace, from ``/api/traces/{id}``."""
        return self._spans(self._json(f"/api/traces/{trace_id}"))

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Return the newest matching calls, newest first.

        Asks for each service and each decision: Jaeger cannot search for a tag of any value.
        """
        start, end = _window(query)
        spans: list[RecordedSpan] = []
        for service in [query.service] if query.service else self._services():
            for tags in _jaeger_tags(query):
                document = self._json(
                    "/api/traces",
                    service=service,
                    tags=json.dumps(tags),
                    start=start // 1000,
                    end=end // 1000,
                    lookback="custom",
                    limit=query.limit,
                )
                spans += self._spans(document)
        return query.newest(spans)

    def _services(self) -> list[str]:
        return self._read(
            lambda document: [str(name) for name in document["data"] or ()],
            self._json("/api/services"),
        )

    def _spans(self, document: Any) -> list[RecordedSpan]:
        return (
            self._read(jaeger.spans_of, document)
            if isinstance(document, Mapping) and document.get("data")
            else []
        )


def _jaeger_tags(query: Query) -> list[dict[str, str]]:
    if query.prefix_tokens is not None:
        return [{names.SIGNAL_PREFIX_TOKENS: str(query.prefix_tokens)}]
    return [
        {names.DECISION: verdict}
        for verdict in ([names.SKIP] if query.skipped else [names.SKIP, names.STORE])
    ]


class TempoSource(_TraceServer):
    """Grafana Tempo."""

    kind = "Tempo"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """Return all spans of a trace, from ``/api/v2/traces/{id}`` or else the first version."""
        document = self._json(f"/api/v2/traces/{trace_id}")
        if document is None:
            document = self._json(f"/api/traces/{trace_id}")
        if not isinstance(document, Mapping):
            return []
        if document.get("status") == "PARTIAL":
            reason = document.get("message") or "it is too large"
            note = Note("partial_trace", f"Tempo returned only part of trace {trace_id}: {reason}")
            if note not in self.notes:
                self.notes.append(note)
        return self._read(otlp.spans_of, document)

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Return the newest matching calls, newest first, by a TraceQL search for their traces."""
        conditions = [
            f'span.{names.DECISION} = "{names.SKIP}"'
            if query.skipped
            else f"span.{names.DECISION} != nil"
        ]
        if query.service:
            conditions.append(
                f"resource.{SERVICE_NAME} = {json.dumps(query.service, ensure_ascii=False)}"
            )
        if query.prefix_tokens is not None:
            conditions.append(f"span.{names.SIGNAL_PREFIX_TOKENS} = {query.prefix_tokens}")
        start, end = _window(query)
        results = self._json(
            "/api/search",
            q=f"{{ {' && '.join(conditions)} }}",
            limit=query.limit,
            start=start // 10**9,
            end=end // 10**9 + 1,
        )
        ids = self._read(
            lambda document: [
                normal_trace_id(trace["traceID"]) for trace in document.get("traces") or ()
            ],
            results or {},
        )
        return query.newest([span for trace_id in ids for span in self.trace(trace_id)])


class PhoenixSource(_TraceServer):
    """Arize Phoenix, with all of its projects."""

    kind = "Phoenix"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """Return all spans of a trace, from ``/v1/projects/{project}/spans`` of every project."""
        return [
            span
            for project in self._projects()
            for page in self._spans(project, trace_id=trace_id)
            for span in page
        ]

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Return the newest matching calls, newest first, paging through every project."""
        spans: list[RecordedSpan] = []
        for project in self._projects():
            if query.service not in {None, project.name}:
                continue
            matching: list[RecordedSpan] = []
            for page in self._spans(
                project, start_time=_iso(query.since), end_time=_iso(query.until)
            ):
                matching = query.newest(matching + page)
                if len(matching) >= query.limit:
                    break
            spans += matching
        return query.newest(spans)

    def _projects(self) -> list[_Project]:
        return [
            project
            for page in self._pages("/v1/projects")
            for project in self._read(
                lambda page: [_Project(item["id"], item["name"]) for item in page["data"]], page
            )
        ]

    def _spans(self, project: _Project, **params: Any) -> Iterator[list[RecordedSpan]]:
        for page in self._pages(f"/v1/projects/{project.id}/spans", **params):
            yield self._read(
                lambda page: [_of_phoenix(span, project.name) for span in page["data"]], page
            )

    def _pages(self, path: str, **params: Any) -> Iterator[Mapping[str, Any]]:
        cursor = None
        while isinstance(page := self._json(path, limit=_PAGE, cursor=cursor, **params), Mapping):
            yield page
            cursor = page.get("next_cursor")
            if not cursor:
                return


class _Project(NamedTuple):
    id: str  # goes into paths; a name may contain a slash, which Phoenix does not accept there
    name: str


def _of_phoenix(span: Mapping[str, Any], project: str) -> RecordedSpan:
    started, ended = nanoseconds(span["start_time"]), span.get("end_time")
    return RecordedSpan(
        trace_id=normal_trace_id(span["context"]["trace_id"]),
        span_id=normal_span_id(span["context"]["span_id"]),
        name=span["name"],
        service=project,  # Phoenix does not keep the resource
        started=started,
        seconds=(nanoseconds(ended) - started) / 1e9 if ended else None,
        attributes=span.get("attributes") or {},
    )


def _iso(moment: int | None) -> str | None:
    return (
        None if moment is None else datetime.fromtimestamp(moment / 1e9, timezone.utc).isoformat()
    )


def _window(query: Query) -> tuple[int, int]:
    """Return the time range for servers that require one: by default the last day."""
    end = query.until if query.until is not None else time.time_ns()
    return (query.since if query.since is not None else end - _DAY), end


def connect(base: str, headers: Mapping[str, str], timeout: float) -> Source:
    """Return a source for the server at ``base``, recognized by its answers.

    Args:
        base: URL of the server.
        headers: headers to send with every request.
        timeout: seconds allowed for each request.

    Raises:
        SourceError: the server cannot be reached or is not a supported one.
    """
    http = Http(
        base,
        timeout=timeout,
        wanted_credentials=_WANTED_CREDENTIALS,
        headers={"accept": "application/json", **headers},
        follow_redirects=True,
    )
    try:
        for path, matches, kind in _SERVERS:
            response = http.get(path)
            if response.status_code == 200 and matches(response):
                return kind(http)
    except ServerError as error:
        raise SourceError(error.code, str(error)) from error
    raise SourceError(
        "unknown_server", f"{http.name} responds, but not like Jaeger, Tempo or Phoenix"
    )


def _is_data_list(response: httpx2.Response) -> bool:
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(document, dict)
        and "data" in document
        and (document["data"] is None or isinstance(document["data"], list))
    )


_SERVERS: Final = (
    ("/api/services", _is_data_list, JaegerSource),
    ("/api/echo", lambda response: response.text.strip() == "echo", TempoSource),
    ("/v1/projects", _is_data_list, PhoenixSource),
)

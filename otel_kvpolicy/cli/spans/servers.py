"""Trace servers over HTTP: Jaeger, Grafana Tempo, Arize Phoenix. Which one it is, is found by asking."""

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
from .source import Neighbours, Query, Source, SourceError

_HOUR: Final = 3600 * 10**9
_DAY: Final = 24 * _HOUR
_PAGE: Final = 1000
_NEIGHBOURS: Final = 20
_WANTED_CREDENTIALS: Final = (
    "authorization: pass --header, such as 'Authorization: Bearer …' or, for Tempo, "
    "'X-Scope-OrgID: …'"
)

T = TypeVar("T")


class _Server(ABC):
    kind = ""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.name = f"{self.kind} at {http.name}"
        self.notes: list[str] = []
        self._neighbours: dict[tuple[str | None, int], Neighbours | None] = {}

    @abstractmethod
    def recent(self, query: Query) -> list[RecordedSpan]:
        """Recent decided calls, youngest first."""

    def neighbours(self, span: RecordedSpan) -> Neighbours | None:
        """Asks once for the calls of the hour that followed, of the same service and size of prefix."""
        prefix = span.count(names.SIGNAL_PREFIX_TOKENS)
        if not prefix or span.started is None:
            return None
        key = (span.service, prefix)
        if key not in self._neighbours:
            query = Query(
                _NEIGHBOURS,
                span.started,
                span.service,
                until=span.started + _HOUR,
                prefix_tokens=prefix,
            )
            try:
                self._neighbours[key] = Neighbours(
                    self.recent(query), "within the hour that followed"
                )
            except SourceError as error:
                self._neighbours[key] = None
                self.notes.append(f"could not look for later calls: {error}")
        return self._neighbours[key]

    def _json(self, path: str, **params: Any) -> Any:
        try:
            return self._http.get_json(path, **params)
        except ServerError as error:
            raise SourceError(str(error)) from error

    def _read(self, reader: Callable[[Any], list[T]], document: Any) -> list[T]:
        try:
            return reader(document)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise SourceError(
                f"{self.name} answered something that cannot be read as a trace: {error}"
            ) from error


class JaegerSource(_Server):
    """Jaeger's query service, 1 and 2."""

    kind = "Jaeger"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """``/api/traces/{id}``."""
        return self._spans(self._json(f"/api/traces/{trace_id}"))

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Asks each service for each value of a tag: Jaeger cannot be asked which spans have one."""
        start, end = _window(query)
        spans: list[RecordedSpan] = []
        for service in [query.service] if query.service else self._services():
            for tags in _jaeger_tags(query):
                found = self._json(
                    "/api/traces",
                    service=service,
                    tags=json.dumps(tags),
                    start=start // 1000,
                    end=end // 1000,
                    lookback="custom",
                    limit=query.limit,
                )
                spans += self._spans(found)
        return query.youngest(spans)

    def _services(self) -> list[str]:
        return self._read(
            lambda found: [str(name) for name in found["data"] or ()],
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


class TempoSource(_Server):
    """Grafana Tempo."""

    kind = "Tempo"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """``/api/v2/traces/{id}``, or ``/api/traces/{id}`` of a Tempo that has no v2."""
        document = self._json(f"/api/v2/traces/{trace_id}")
        if document is None:
            document = self._json(f"/api/traces/{trace_id}")
        if not isinstance(document, Mapping):
            return []
        if document.get("status") == "PARTIAL":
            self.notes.append(
                f"Tempo gave a part of the trace only: {document.get('message') or 'it is too large'}"
            )
        return self._read(otlp.spans_of, document)

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Searches with TraceQL, then reads each trace."""
        wanted = [
            f'span.{names.DECISION} = "{names.SKIP}"'
            if query.skipped
            else f"span.{names.DECISION} != nil"
        ]
        if query.service:
            wanted.append(
                f"resource.{SERVICE_NAME} = {json.dumps(query.service, ensure_ascii=False)}"
            )
        if query.prefix_tokens is not None:
            wanted.append(f"span.{names.SIGNAL_PREFIX_TOKENS} = {query.prefix_tokens}")
        start, end = _window(query)
        found = self._json(
            "/api/search",
            q=f"{{ {' && '.join(wanted)} }}",
            limit=query.limit,
            start=start // 10**9,
            end=end // 10**9 + 1,
        )
        ids = self._read(
            lambda found: [
                normal_trace_id(trace["traceID"]) for trace in found.get("traces") or ()
            ],
            found or {},
        )
        return query.youngest([span for trace_id in ids for span in self.trace(trace_id)])


class PhoenixSource(_Server):
    """Arize Phoenix, all projects."""

    kind = "Phoenix"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """``/v1/projects/{project}/spans`` of each project, by trace id."""
        return [
            span
            for project in self._projects()
            for page in self._spans(project, trace_id=trace_id)
            for span in page
        ]

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Pages through each project's spans, youngest first, until enough are found."""
        spans: list[RecordedSpan] = []
        for project in self._projects():
            if query.service not in {None, project.name}:
                continue
            found: list[RecordedSpan] = []
            for page in self._spans(
                project, start_time=_iso(query.since), end_time=_iso(query.until)
            ):
                found = query.youngest(found + page)
                if len(found) >= query.limit:
                    break
            spans += found
        return query.youngest(spans)

    def _projects(self) -> list[_Project]:
        return [
            project
            for page in self._pages("/v1/projects")
            for project in self._read(
                lambda page: [_Project(one["id"], one["name"]) for one in page["data"]], page
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
    id: str  # a name may hold a slash, which no path of Phoenix's takes
    name: str


def _of_phoenix(span: Mapping[str, Any], project: str) -> RecordedSpan:
    started, ended = nanoseconds(span["start_time"]), span.get("end_time")
    return RecordedSpan(
        trace_id=normal_trace_id(span["context"]["trace_id"]),
        span_id=normal_span_id(span["context"]["span_id"]),
        name=span["name"],
        service=project,  # Phoenix keeps no resource; a project is what it sorts traces by
        started=started,
        seconds=(nanoseconds(ended) - started) / 1e9 if ended else None,
        attributes=span.get("attributes") or {},
    )


def _iso(moment: int | None) -> str | None:
    return (
        None if moment is None else datetime.fromtimestamp(moment / 1e9, timezone.utc).isoformat()
    )


def _window(query: Query) -> tuple[int, int]:
    """From when to when servers are asked that want to be told: the last day, unless the query says otherwise."""
    end = query.until if query.until is not None else time.time_ns()
    return (query.since if query.since is not None else end - _DAY), end


def connect(base: str, headers: Mapping[str, str], timeout: float) -> Source:
    """Finds out which server answers at ``base``.

    Raises:
        SourceError: none of those known, or no answer.
    """
    http = Http(
        base,
        timeout=timeout,
        wanted_credentials=_WANTED_CREDENTIALS,
        headers={"accept": "application/json", **headers},
        follow_redirects=True,
    )
    try:
        for path, matches, kind in _KNOWN:
            response = http.get(path)
            if response.status_code == 200 and matches(response):
                return kind(http)
    except ServerError as error:
        raise SourceError(str(error)) from error
    raise SourceError(f"{http.name} responds, but not like Jaeger, Tempo or Phoenix")


def _data_list(response: httpx2.Response) -> bool:
    try:
        document = json.loads(response.content)
    except ValueError:
        return False
    return (
        isinstance(document, dict)
        and "data" in document
        and (document["data"] is None or isinstance(document["data"], list))
    )


_KNOWN: Final = (
    ("/api/services", _data_list, JaegerSource),
    ("/api/echo", lambda response: response.text.strip() == "echo", TempoSource),
    ("/v1/projects", _data_list, PhoenixSource),
)

"""Trace servers over HTTP: Jaeger, Grafana Tempo, Arize Phoenix. Which one it is, is found by asking."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import httpx2

from ..telemetry import names
from . import jaeger, otlp
from .source import Query, Source, SourceError
from .spans import RecordedSpan, normal_span_id, normal_trace_id

__all__ = ["JaegerSource", "PhoenixSource", "TempoSource", "connect"]

_DAY: Final = 24 * 3600 * 10**9
_PAGE: Final = 1000


class Http:
    """GETs JSON of one server and turns every failure into one line.

    Args:
        base: the server's URL, with the path it is served under.
        headers: sent with each request.
        timeout: seconds for each request.
    """

    def __init__(self, base: str, headers: Mapping[str, str], timeout: float) -> None:
        self.base = base.rstrip("/")
        self._timeout = timeout
        self._client = httpx2.Client(headers={"accept": "application/json", **headers}, timeout=timeout, follow_redirects=True)

    def get(self, path: str, **params: Any) -> httpx2.Response:
        """The answer, whatever its status but 401 and 403.

        Raises:
            SourceError: there is none, or it asks for authorization.
        """
        given = {name: value for name, value in params.items() if value is not None}
        try:
            response = self._client.get(self.base + path, params=given)
        except httpx2.TimeoutException:
            raise SourceError(f"{self.base} did not answer within {self._timeout:g} s (--timeout)") from None
        except httpx2.InvalidURL as error:
            raise SourceError(f"{self.base} is no URL: {error}") from None
        except httpx2.HTTPError as error:
            raise SourceError(f"cannot reach {self.base}: {_short(error)}") from None
        if response.status_code in {401, 403}:
            raise SourceError(f"{self.base} asks for authorization ({response.status_code}): give --header 'Authorization: Bearer …'")
        return response

    def json(self, path: str, **params: Any) -> Any:
        """The parsed answer; None for a 404.

        Raises:
            SourceError: as :meth:`get`, or the answer is an error or no JSON.
        """
        response = self.get(path, **params)
        if response.status_code == 404:
            return None
        if response.status_code >= 400:
            raise SourceError(f"{self.base}{path} answered {response.status_code}")
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            raise SourceError(f"{self.base}{path} answered no JSON") from None


def _short(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class _Server:
    kind = ""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.name = f"{self.kind} at {http.base}"
        self.notes: list[str] = []

    def neighbours(self, span: RecordedSpan) -> list[RecordedSpan]:
        """None: that would be further queries."""
        del span
        return []


class JaegerSource(_Server):
    """Jaeger's query service, 1 and 2."""

    kind = "Jaeger"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """``/api/traces/{id}``."""
        return self._spans(self._http.json(f"/api/traces/{trace_id}"))

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Asks each service for each verdict: Jaeger finds tags by value only."""
        services = [query.service] if query.service else self._services()
        end = time.time_ns()
        start = query.since if query.since is not None else end - _DAY
        spans: list[RecordedSpan] = []
        for service in services:
            for verdict in (names.SKIP,) if query.skipped else (names.SKIP, names.STORE):
                found = self._http.json(
                    "/api/traces",
                    service=service,
                    tags=json.dumps({names.DECISION: verdict}),
                    start=start // 1000,
                    end=end // 1000,
                    lookback="custom",
                    limit=query.limit,
                )
                spans += self._spans(found)
        return query.youngest(spans)

    def _services(self) -> list[str]:
        found = self._http.json("/api/services")
        data = found.get("data") if isinstance(found, Mapping) else None
        return [str(name) for name in data or ()]

    def _spans(self, document: Any) -> list[RecordedSpan]:
        if document is None or not (isinstance(document, Mapping) and document.get("data")):
            return []
        return _read(self.name, jaeger.spans_of, document)


class TempoSource(_Server):
    """Grafana Tempo."""

    kind = "Tempo"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """``/api/v2/traces/{id}``, or ``/api/traces/{id}`` of a Tempo that has no v2."""
        document = self._http.json(f"/api/v2/traces/{trace_id}")
        if document is None:
            document = self._http.json(f"/api/traces/{trace_id}")
        if not isinstance(document, Mapping):
            return []
        if document.get("status") == "PARTIAL":
            self.notes.append(f"Tempo gave a part of the trace only: {document.get('message') or 'it is too large'}")
        return _read(self.name, otlp.spans_of, document)

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Searches with TraceQL, then reads each trace."""
        wanted = [f'span.{names.DECISION} = "{names.SKIP}"' if query.skipped else f"span.{names.DECISION} != nil"]
        if query.service:
            wanted.append(f"resource.service.name = {json.dumps(query.service)}")
        end = time.time_ns()
        start = query.since if query.since is not None else end - _DAY
        found = self._http.json(
            "/api/search", q=f"{{ {' && '.join(wanted)} }}", limit=query.limit, start=start // 10**9, end=end // 10**9 + 1
        )
        traces = found.get("traces") if isinstance(found, Mapping) else None
        ids = [normal_trace_id(str(trace["traceID"])) for trace in traces or () if isinstance(trace, Mapping) and trace.get("traceID")]
        return query.youngest([span for trace_id in ids for span in self.trace(trace_id)])


class PhoenixSource(_Server):
    """Arize Phoenix, all projects."""

    kind = "Phoenix"

    def trace(self, trace_id: str) -> list[RecordedSpan]:
        """``/v1/projects/{project}/spans`` of each project, by trace id."""
        return [span for project in self._projects() for span in self._spans(project, None, trace_id=trace_id)]

    def recent(self, query: Query) -> list[RecordedSpan]:
        """Pages through each project's spans, youngest first, until enough are found."""
        since = None if query.since is None else datetime.fromtimestamp(query.since / 1e9).astimezone().isoformat()
        spans = [span for project in self._projects() for span in self._spans(project, query, start_time=since)]
        return query.youngest(spans)

    def _projects(self) -> list[str]:
        found = self._http.json("/v1/projects")
        return [str(project["name"]) for project in found["data"]] if isinstance(found, Mapping) else []

    def _spans(self, project: str, query: Query | None, **params: Any) -> Iterable[RecordedSpan]:
        spans: list[RecordedSpan] = []
        cursor = None
        while True:
            page = self._http.json(f"/v1/projects/{quote(project, safe='')}/spans", limit=_PAGE, cursor=cursor, **params)
            if not isinstance(page, Mapping):
                return spans
            spans += _read(self.name, _of_phoenix, (project, page))
            cursor = page.get("next_cursor")
            if not cursor or (query is not None and len(query.youngest(spans)) >= query.limit):
                return spans


def _of_phoenix(found: tuple[str, Mapping[str, Any]]) -> list[RecordedSpan]:
    project, page = found
    return [
        RecordedSpan(
            trace_id=normal_trace_id(span["context"]["trace_id"]),
            span_id=normal_span_id(span["context"]["span_id"]),
            name=span["name"],
            service=project,  # Phoenix keeps no resource; a project is what it sorts traces by
            started=_nanoseconds(span["start_time"]),
            seconds=(_nanoseconds(span["end_time"]) - _nanoseconds(span["start_time"])) / 1e9 if span.get("end_time") else None,
            attributes=span.get("attributes") or {},
        )
        for span in page["data"]
    ]


def _nanoseconds(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1e6) * 1000


def _read(name: str, reader: Any, document: Any) -> list[RecordedSpan]:
    try:
        spans: list[RecordedSpan] = reader(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{name} answered something that cannot be read as a trace: {_short(error)}") from error
    return spans


def connect(base: str, headers: Mapping[str, str], timeout: float) -> Source:
    """Finds out which server answers at ``base``.

    Raises:
        SourceError: none of those known, or no answer.
    """
    http = Http(base, headers, timeout)
    for path, knows, kind in _KNOWN:
        response = http.get(path)
        if response.status_code == 200 and knows(response):
            return kind(http)
    raise SourceError(f"{http.base} answers, but is no Jaeger, Tempo or Phoenix that can be recognised")


def _data_list(response: httpx2.Response) -> bool:
    try:
        document = json.loads(response.content)
    except ValueError:
        return False
    return isinstance(document, dict) and "data" in document and (document["data"] is None or isinstance(document["data"], list))


_KNOWN: Final = (
    ("/api/services", _data_list, JaegerSource),
    ("/api/echo", lambda response: response.text.strip() == "echo", TempoSource),
    ("/v1/projects", _data_list, PhoenixSource),
)

"""HTTP servers that answer the requests of ``explain`` as Jaeger, Tempo and Phoenix do.

Paths, parameters, filters and answers follow the documentation of Jaeger's ``/api`` (1 and 2),
Tempo's ``/api`` and ``/api/v2``, and Phoenix's ``/v1``. ``test_phoenix.py`` uses a real Phoenix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from otel_kvpolicy.standin.loopback import LoopbackServer, address, listen

from .shapes import attributes, by_trace, jaeger, phoenix, protobuf_json, service, trace_id

Spans = Sequence[ReadableSpan]
Backend = Callable[[Spans], list[BaseRoute]]


@contextmanager
def serving(routes: Sequence[BaseRoute]) -> Iterator[str]:
    """Serve on loopback and yield the URL."""
    listener = listen("127.0.0.1", 0)
    server = LoopbackServer(Starlette(routes=list(routes)), [listener], "trace-backend")
    server.start()
    try:
        yield address(listener)
    finally:
        server.close()


def answering(path: str, answer: Callable[[Request], Response]) -> Route:
    async def endpoint(request: Request) -> Response:
        return answer(request)

    return Route(path, endpoint)


# --- Jaeger ---------------------------------------------------------------------------------------


def jaeger_backend(spans: Spans) -> list[BaseRoute]:
    def services(_: Request) -> Response:
        return JSONResponse(
            {
                "data": sorted({service(span) for span in spans}),
                "total": 1,
                "limit": 0,
                "offset": 0,
                "errors": None,
            }
        )

    def one(request: Request) -> Response:
        members = by_trace(spans).get(request.path_params["id"])
        if members is None:
            return JSONResponse(
                {"data": None, "errors": [{"code": 404, "msg": "trace not found"}]}, 404
            )
        return JSONResponse(jaeger(members))

    def search(request: Request) -> Response:
        asked = request.query_params
        if "service" not in asked:
            return JSONResponse(
                {"data": None, "errors": [{"code": 400, "msg": "parameter 'service' is required"}]},
                400,
            )
        tags = json.loads(asked["tags"])

        def matches(span: ReadableSpan) -> bool:
            has = attributes(span)
            in_time = int(asked["start"]) <= (span.start_time or 0) // 1000 <= int(asked["end"])
            return (
                service(span) == asked["service"]
                and in_time
                and all(str(has.get(name)) == value for name, value in tags.items())
            )

        traces = [members for members in by_trace(spans).values() if any(map(matches, members))][
            : int(asked["limit"])
        ]
        return JSONResponse(jaeger([span for members in traces for span in members]))

    return [
        answering("/api/services", services),
        answering("/api/traces/{id}", one),
        answering("/api/traces", search),
    ]


# --- Tempo ----------------------------------------------------------------------------------------

_CLAUSE = re.compile(r'(span|resource)\.(\S+) (=|!=) ("(?:[^"\\]|\\.)*"|-?\d+|nil)')


def _spanset(query: str) -> Callable[[ReadableSpan], bool]:
    """Return the filter of a TraceQL query, which must be one spanset of ANDed clauses."""
    inner = query.removeprefix("{ ").removesuffix(" }")
    clauses = [_CLAUSE.fullmatch(clause) for clause in inner.split(" && ")]
    assert all(clauses), f"not understood: {query}"

    def holds(span: ReadableSpan) -> bool:
        return all(_holds(clause, span) for clause in clauses if clause)

    return holds


def _holds(clause: re.Match[str], span: ReadableSpan) -> bool:
    scope, name, operator, literal = clause.groups()
    has = attributes(span) if scope == "span" else span.resource.attributes
    value = None if literal == "nil" else json.loads(literal)
    return (has.get(name) == value) is (operator == "=")


def tempo_backend(spans: Spans, *, v2: bool = True, status: str = "COMPLETE") -> list[BaseRoute]:
    def one(request: Request) -> Response:
        members = by_trace(spans).get(request.path_params["id"])
        return (
            PlainTextResponse("", 404)
            if members is None
            else JSONResponse({"batches": protobuf_json(members)})
        )

    def one_v2(request: Request) -> Response:
        members = by_trace(spans).get(request.path_params["id"])
        if members is None:
            return PlainTextResponse("trace not found", 404)
        return JSONResponse(
            {"trace": {"resourceSpans": protobuf_json(members)}, "metrics": {}, "status": status}
        )

    def search(request: Request) -> Response:
        asked, holds = request.query_params, _spanset(request.query_params["q"])
        start, end = int(asked["start"]) * 10**9, int(asked["end"]) * 10**9
        found = [
            (identity, members)
            for identity, members in by_trace(spans).items()
            if any(holds(span) and start <= (span.start_time or 0) <= end for span in members)
        ]
        return JSONResponse(
            {
                "traces": [
                    # Tempo writes trace ids without their leading zeros
                    {
                        "traceID": identity.lstrip("0"),
                        "rootServiceName": service(members[-1]),
                        "rootTraceName": members[-1].name,
                    }
                    for identity, members in found[: int(asked["limit"])]
                ],
                "metrics": {"totalBlocks": 1},
            }
        )

    routes = [
        answering("/api/echo", lambda _: PlainTextResponse("echo")),
        answering("/api/traces/{id}", one),
        answering("/api/search", search),
    ]
    return [*routes, answering("/api/v2/traces/{id}", one_v2)] if v2 else [*routes]


# --- Phoenix --------------------------------------------------------------------------------------


def phoenix_backend(spans: Spans, *, page: int = 2) -> list[BaseRoute]:
    """One project per service. Pages are shorter than the requested limit, to test cursors."""
    projects = {
        f"UHJvamVjdDo{number}": name
        for number, name in enumerate(sorted({service(span) for span in spans}))
    }

    def paged(request: Request, items: list[Any]) -> Response:
        start = int(request.query_params.get("cursor", 0))
        end = start + page
        cursor = str(end) if end < len(items) else None
        return JSONResponse({"data": items[start:end], "next_cursor": cursor})

    def list_projects(request: Request) -> Response:
        return paged(
            request,
            [
                {"id": identity, "name": name, "description": None}
                for identity, name in projects.items()
            ],
        )

    def list_spans(request: Request) -> Response:
        asked, name = request.query_params, projects.get(request.path_params["project"])
        if name is None:
            return JSONResponse({"detail": "project not found"}, 404)
        since, until = (
            _moment(asked.get(bound), default)
            for bound, default in (("start_time", 0.0), ("end_time", float("inf")))
        )
        members = [
            span
            for span in sorted(spans, key=lambda span: span.start_time or 0, reverse=True)
            if service(span) == name
            and asked.get("trace_id") in {None, trace_id(span)}
            and since <= (span.start_time or 0) // 1000 / 1e6 < until
        ]
        return paged(request, [phoenix(span) for span in members])

    return [
        answering("/v1/projects", list_projects),
        answering("/v1/projects/{project}/spans", list_spans),
    ]


def _moment(text: str | None, default: float) -> float:
    return default if text is None else datetime.fromisoformat(text).timestamp()

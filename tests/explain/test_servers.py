"""What is special to servers: which one it is, what they ask for, and every way in which they do not answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount

from .asking import ask
from .backends import Backend, answering, jaeger_backend, phoenix_backend, serving, tempo_backend
from .conftest import Recorded

BACKENDS = {"Jaeger": jaeger_backend, "Tempo": tempo_backend, "Phoenix": phoenix_backend}
each = pytest.mark.parametrize("kind", BACKENDS)


def without(
    path: str, routes: list[BaseRoute], answer: Callable[[Request], Response]
) -> list[BaseRoute]:
    """A backend that answers otherwise on one path."""
    assert any(route.path == path for route in routes if hasattr(route, "path"))
    return [answering(path, answer), *routes]


@each
def test_it_is_recognised_also_below_a_path_and_behind_a_redirect(
    recorded: Recorded, kind: str
) -> None:
    backend: Backend = BACKENDS[kind]
    moved = answering(
        "/old/{rest:path}",
        lambda request: RedirectResponse(
            f"/proxy/{request.path_params['rest']}?{request.url.query}"
        ),
    )
    with serving([moved, Mount("/proxy", routes=backend(recorded.spans))]) as url:
        for base in (f"{url}/proxy", f"{url}/proxy/", f"{url}/old"):
            answer = ask(recorded.order, "--from", base, "--json")
            assert len(answer.calls) == 3
            assert json.loads(answer.out)["source"] == f"{kind} at {base.rstrip('/')}"


def test_headers_are_sent_with_each_request(recorded: Recorded) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def guard(request: Request) -> Response:
        seen.append((request.headers.get("authorization"), request.headers.get("x-scope-orgid")))
        return (
            JSONResponse({"data": []})
            if seen[-1] == ("Bearer key", "a:b")
            else PlainTextResponse("no org id", 401)
        )

    with serving([answering("/{rest:path}", guard)]) as url:
        answer = ask("--from", url)
        assert answer.code == 1
        assert answer.complaint.startswith(f"explain: {url} answers 401 ")
        assert "--header" in answer.complaint
        answer = ask(
            "--from", url, "--header", "authorization: Bearer key", "--header", "X-Scope-OrgID:a:b"
        )
        assert (answer.code, answer.complaint) == (
            3,
            f"explain: no decided call in Jaeger at {url}",
        )
        assert len(set(seen)) == 2


def test_a_part_of_a_trace_is_told_as_such(recorded: Recorded) -> None:
    with serving(tempo_backend(recorded.spans, status="PARTIAL")) as url:
        answer = ask(recorded.order, "--from", url, "--json")
        assert (answer.code, len(answer.calls)) == (0, 3)
        assert "explain: Tempo gave a part of the trace only: it is too large\n" in answer.err


def test_a_search_that_fails_does_not_hide_the_trace(recorded: Recorded) -> None:
    routes = without(
        "/api/search", tempo_backend(recorded.spans), lambda _: PlainTextResponse("busy", 429)
    )
    with serving(routes) as url:
        answer = ask(recorded.order, "--from", url, "--json")
        assert (answer.code, len(answer.calls)) == (0, 3)
        assert (
            f"explain: could not look for later calls: {url}/api/search answered 429\n"
            in answer.err
        )
        assert not any(
            "prefix of the same size" in line
            for call in answer.calls
            for line in call["afterwards"]
        )


# --- faults ------------------------------------------------------------------------------------------------------------------------


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def closed() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("asked", [["feed"], []], ids=["trace", "recent"])
def test_no_answer_is_one_line(asked: list[str]) -> None:
    with closed() as url:
        answer = ask(*asked, "--from", url)
        assert answer.code == 1
        assert answer.complaint.startswith(f"explain: cannot reach {url}: ")
    with silent() as url:
        answer = ask(*asked, "--from", url, "--timeout", "0.05")
        assert answer.code == 1
        assert "did not answer within 0.05 s (--timeout)" in answer.complaint
    answer = ask(*asked, "--from", "http://127.0.0.1:port")
    assert answer.code == 1
    assert answer.complaint.startswith("explain: http://127.0.0.1:port is not a valid URL: ")


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: PlainTextResponse("<html>Welcome to nginx</html>"),
        lambda _: PlainTextResponse("gone", 404),
        lambda _: PlainTextResponse("down", 503),
        lambda _: JSONResponse([]),
        lambda _: JSONResponse({"data": "all of it"}),
    ],
    ids=["html", "404", "503", "list", "text"],
)
def test_another_server_is_one_line(answer: Callable[[Request], Response]) -> None:
    with serving([answering("/{rest:path}", answer)]) as url:
        said = ask("feed", "--from", url)
        assert said.code == 1
        assert said.complaint == f"explain: {url} responds, but not like Jaeger, Tempo or Phoenix"


FAULTS = {
    "an error": lambda _: PlainTextResponse("out of memory", 500),
    "no JSON": lambda _: PlainTextResponse("<html>"),
    "half of it": lambda _: PlainTextResponse('{"data": [{"spans": ['),
    "too deep": lambda _: PlainTextResponse("[" * 100_000),
    "other JSON": lambda _: JSONResponse(
        {"data": [5], "traces": [5], "trace": {"resourceSpans": 5}}
    ),
    "other spans": lambda _: JSONResponse(
        {
            "data": [{"spans": [{"traceID": 5}], "processes": 5}],
            "traces": [{"traceID": 5}],
            "trace": {"resourceSpans": [{"scopeSpans": [5]}]},
        }
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("kind", "path", "asked"),
    [
        ("Jaeger", "/api/traces/{id}", "trace"),
        ("Jaeger", "/api/traces", "recent"),
        ("Tempo", "/api/v2/traces/{id}", "trace"),
        ("Tempo", "/api/search", "recent"),
        ("Phoenix", "/v1/projects/{project}/spans", "trace"),
        ("Phoenix", "/v1/projects/{project}/spans", "recent"),
    ],
)
def test_a_known_server_that_answers_nonsense_is_one_line(
    recorded: Recorded, kind: str, path: str, asked: str, fault: str
) -> None:
    backend: Backend = BACKENDS[kind]
    with serving(without(path, backend(recorded.spans), FAULTS[fault])) as url:
        answer = ask(*([recorded.order] if asked == "trace" else []), "--from", url)
        assert answer.code == 1
        wrong = (
            " answered 500",
            " did not answer with JSON",
            f"{kind} at {url} answered something that cannot be read as a trace: ",
        )
        assert any(words in answer.complaint for words in wrong)


@each
def test_a_server_without_any_trace(kind: str) -> None:
    backend: Backend = BACKENDS[kind]
    with serving(backend([])) as url:
        assert ask("feed", "--from", url).code == 3
        assert ask("--from", url).code == 3

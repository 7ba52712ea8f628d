"""Trace servers: recognizing them, credentials, and every way in which they fail to answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount

from .asking import ask, codes, failure
from .backends import Backend, answering, jaeger_backend, phoenix_backend, serving, tempo_backend
from .conftest import Recorded

BACKENDS = {"Jaeger": jaeger_backend, "Tempo": tempo_backend, "Phoenix": phoenix_backend}
every_kind = pytest.mark.parametrize("kind", BACKENDS)


def replacing(
    path: str, routes: list[BaseRoute], answer: Callable[[Request], Response]
) -> list[BaseRoute]:
    """Return the routes of a backend with another answer on one path."""
    assert any(route.path == path for route in routes if hasattr(route, "path"))
    return [answering(path, answer), *routes]


@every_kind
def test_a_server_is_recognized_below_a_path_and_behind_a_redirect(
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
            assert answer.document["source"] == f"{kind} at {base.rstrip('/')}"


def test_a_password_in_the_url_is_used_but_not_shown(recorded: Recorded) -> None:
    seen: list[str | None] = []

    def guard(request: Request) -> Response:
        seen.append(request.headers.get("authorization"))
        return PlainTextResponse("", 404)

    with serving([answering("/{rest:path}", guard)]) as url:
        failed = failure("--from", url.replace("://", "://user:canary@"))
    assert failed.code == "unknown_server"
    assert all(header and header.startswith("Basic ") for header in seen)
    assert "canary" not in failed.line


def test_headers_are_sent_with_every_request(recorded: Recorded) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def guard(request: Request) -> Response:
        seen.append((request.headers.get("authorization"), request.headers.get("x-scope-orgid")))
        return (
            JSONResponse({"data": []})
            if seen[-1] == ("Bearer key", "a:b")
            else PlainTextResponse("no org id", 401)
        )

    with serving([answering("/{rest:path}", guard)]) as url:
        failed = failure("--from", url)
        assert (failed.exit_code, failed.code) == (1, "credentials_required")
        assert "401" in failed.line
        assert "--header" in failed.line
        failed = failure(
            "--from", url, "--header", "authorization: Bearer key", "--header", "X-Scope-OrgID:a:b"
        )
        assert (failed.exit_code, failed.code) == (3, "no_match")
        assert f"Jaeger at {url}" in failed.line
        assert len(set(seen)) == 2


def test_a_partial_trace_is_noted(recorded: Recorded) -> None:
    with serving(tempo_backend(recorded.spans, status="PARTIAL")) as url:
        answer = ask(recorded.order, "--from", url, "--json")
        assert (answer.code, len(answer.calls)) == (0, 3)
        assert set(answer.note_codes) == {"partial_trace"}
        lines = answer.err.splitlines()
        assert len(lines) == len(set(lines))
        assert any(recorded.order in line for line in lines)


def test_a_search_that_fails_does_not_hide_the_trace(recorded: Recorded) -> None:
    routes = replacing(
        "/api/search", tempo_backend(recorded.spans), lambda _: PlainTextResponse("busy", 429)
    )
    with serving(routes) as url:
        answer = ask(recorded.order, "--from", url, "--json")
        assert (answer.code, len(answer.calls)) == (0, 3)
        assert set(answer.note_codes) == {"later_calls_unknown"}
        assert "429" in answer.err
        for call in answer.calls:
            assert not {"later_calls", "no_later_calls"} & set(codes(call["afterwards"]))


# --- faults ---------------------------------------------------------------------------------------


@contextmanager
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def closed() -> Iterator[str]:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("arguments", [["feed"], []], ids=["trace", "recent"])
def test_a_server_that_cannot_be_reached_is_an_error_of_one_line(arguments: list[str]) -> None:
    with closed() as url:
        failed = failure(*arguments, "--from", url)
        assert (failed.exit_code, failed.code) == (1, "unreachable")
        assert url in failed.line
    with silent() as url:
        failed = failure(*arguments, "--from", url, "--timeout", "0.05")
        assert (failed.exit_code, failed.code) == (1, "timeout")
        assert url in failed.line
        assert "--timeout" in failed.line
    failed = failure(*arguments, "--from", "http://127.0.0.1:port")
    assert (failed.exit_code, failed.code) == (1, "invalid_url")
    assert "http://127.0.0.1:port" in failed.line


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: PlainTextResponse("<html>Welcome to nginx</html>"),
        lambda _: PlainTextResponse("gone", 404),
        lambda _: PlainTextResponse("down", 503),
        lambda _: JSONResponse([]),
        lambda _: JSONResponse({"data": "all of it"}),
        lambda _: PlainTextResponse("[" * 100_000),
    ],
    ids=["html", "404", "503", "list", "text", "too-deep"],
)
def test_another_server_is_an_error_of_one_line(answer: Callable[[Request], Response]) -> None:
    with serving([answering("/{rest:path}", answer)]) as url:
        failed = failure("feed", "--from", url)
        assert (failed.exit_code, failed.code) == (1, "unknown_server")
        assert url in failed.line


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
    ("kind", "path", "request_for"),
    [
        ("Jaeger", "/api/traces/{id}", "trace"),
        ("Jaeger", "/api/traces", "recent"),
        ("Tempo", "/api/v2/traces/{id}", "trace"),
        ("Tempo", "/api/search", "recent"),
        ("Phoenix", "/v1/projects/{project}/spans", "trace"),
        ("Phoenix", "/v1/projects/{project}/spans", "recent"),
    ],
)
def test_an_unusable_answer_of_a_known_server_is_an_error_of_one_line(
    recorded: Recorded, kind: str, path: str, request_for: str, fault: str
) -> None:
    backend: Backend = BACKENDS[kind]
    with serving(replacing(path, backend(recorded.spans), FAULTS[fault])) as url:
        arguments = [recorded.order] if request_for == "trace" else []
        failed = failure(*arguments, "--from", url)
        assert (failed.exit_code, failed.code) == (1, "unusable_answer")
        assert url in failed.line
        if fault == "an error":
            assert "500" in failed.line


@every_kind
def test_a_server_without_traces_has_no_calls(kind: str) -> None:
    backend: Backend = BACKENDS[kind]
    with serving(backend([])) as url:
        assert failure("feed", "--from", url).exit_code == 3
        assert failure("--from", url).exit_code == 3

"""What a really instrumented process recorded is read back the same from every source, alone and among other traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from .asking import ask
from .backends import jaeger_backend, phoenix_backend, serving, tempo_backend
from .conftest import Recorded
from .shapes import (
    attributes,
    collector_lines,
    iso,
    jaeger,
    protobuf_json,
    service,
    span_id,
    trace_id,
)

FILES = ("collector", "gzip", "pretty", "directory", "batches", "jaeger-page", "decision-log")
MICROSECOND = timedelta(microseconds=1)  # some sources cut where others round
SERVERS = ("jaeger", "tempo", "tempo-v1", "phoenix")


def file_source(kind: str, recorded: Recorded, folder: Path) -> Path:
    path = folder / f"{kind}.jsonl"
    lines = collector_lines(recorded.spans)
    if kind == "decision-log":
        return recorded.log
    if kind == "gzip":
        path = folder / "traces.jsonl.gz"
        path.write_bytes(gzip.compress(lines.encode()))
    elif kind == "directory":
        path = folder / "traces"
        path.mkdir()
        for number, line in enumerate(lines.splitlines()):
            (path / f"traces-{number}.json").write_text(line)
        (path / "README").write_text("not for reading")
    else:
        documents: dict[str, Any] = {
            "collector": lines,
            "pretty": json.dumps({"resourceSpans": protobuf_json(recorded.spans)}, indent=2),
            "batches": json.dumps({"batches": protobuf_json(recorded.spans)}),
            "jaeger-page": json.dumps(jaeger(recorded.spans), indent=2),
        }
        path.write_text(documents[kind])
    return path


@pytest.fixture(scope="session")
def servers(recorded: Recorded) -> Iterator[dict[str, str]]:
    backends = {
        "jaeger": jaeger_backend(recorded.spans),
        "tempo": tempo_backend(recorded.spans),
        "tempo-v1": tempo_backend(recorded.spans, v2=False),
        "phoenix": phoenix_backend(recorded.spans),
    }
    with ExitStack() as running:
        yield {kind: running.enter_context(serving(routes)) for kind, routes in backends.items()}


@pytest.fixture
def source(
    request: pytest.FixtureRequest, recorded: Recorded, servers: dict[str, str], tmp_path: Path
) -> str:
    return servers.get(request.param) or str(file_source(request.param, recorded, tmp_path))


everywhere = pytest.mark.parametrize("source", FILES + SERVERS, indirect=True)


@everywhere
def test_each_call_is_told_as_its_span_has_it(recorded: Recorded, source: str) -> None:
    answer = ask(recorded.order, "--from", source, "--json")
    assert (answer.code, answer.err) == (0, "")
    spans = recorded.of(recorded.order)
    assert len(spans) == 3
    for call, span in zip(answer.calls, spans, strict=True):
        has = attributes(span)
        assert (call["trace_id"], call["span_id"]) == (trace_id(span), span_id(span))
        assert (call["service"], call["name"], call["model"]) == (
            service(span),
            span.name,
            "stand-in",
        )
        assert (
            abs(
                datetime.fromisoformat(call["started"])
                - datetime.fromisoformat(iso(span.start_time))
            )
            <= MICROSECOND
        )
        assert call["verdict"] == has["kvpolicy.decision"]
        assert (call["rule"], call["mode"], call["hint_outcome"]) == (
            "thresholds",
            "enforce",
            "applied",
        )
        assert call["decision"]["cache_worthy"] is has["kvpolicy.cache_worthy"]
        assert call["decision"]["score"] == has["kvpolicy.score"]
        assert [reason.partition("(")[0] for reason in call["decision"]["reasons"]] == has[
            "kvpolicy.reasons"
        ]
        assert call["decision"]["signals"] == {
            name[17:]: has[name] for name in has if name.startswith("kvpolicy.signals.")
        }
        assert call["usage"] == {
            "input_tokens": has["gen_ai.usage.input_tokens"],
            "cached_tokens": has["gen_ai.usage.cache_read.input_tokens"],
        }


@everywhere
def test_the_call_that_came_back_is_seen_in_another_trace(recorded: Recorded, source: str) -> None:
    call = ask(recorded.order, "--from", source, "--json").calls[0]
    (again,) = recorded.of(recorded.later)
    cached = attributes(again)["gen_ai.usage.cache_read.input_tokens"]
    assert cached > 800
    said = f"1 later call has a prefix of the same size, so very likely the same one; cached tokens there: {cached}."
    assert said in call["afterwards"]
    (last,) = ask(recorded.later, "--from", source, "--json").calls
    assert any(
        line.startswith("No later call with a prefix of the same size was found")
        for line in last["afterwards"]
    )


@everywhere
def test_recent_calls_youngest_first(recorded: Recorded, source: str) -> None:
    youngest = [span_id(span) for span in reversed(recorded.decided)]
    answer = ask("--from", source, "--json")
    assert answer.code == 0
    assert [call["span_id"] for call in answer.calls] == youngest
    # nobody looked for what followed each of them, so nothing is said of it
    assert not any(
        "prefix of the same size" in line for call in answer.calls for line in call["afterwards"]
    )
    assert [
        call["span_id"] for call in ask("--from", source, "--last", 2, "--json").calls
    ] == youngest[:2]


@everywhere
@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (
            ["--skipped"],
            lambda recorded: [
                span for span in recorded.decided if attributes(span)["kvpolicy.skip_save"]
            ],
        ),
        (["--service", "mail/out"], lambda recorded: recorded.of(recorded.mail)),
        (
            ["--service", "shop", "--skipped"],
            lambda recorded: [recorded.of(recorded.order)[0], *recorded.of(recorded.later)],
        ),
        (["--since", "1h"], lambda recorded: recorded.decided),
        (["--since", "9999999w"], lambda recorded: recorded.decided),
        (["--since", "1960-01-01"], lambda recorded: recorded.decided),
    ],
    ids=["skipped", "service", "both", "since", "long-ago", "before-1970"],
)
def test_filters_over_recent_calls(
    recorded: Recorded, source: str, filters: list[str], left: Any
) -> None:
    wanted = [span_id(span) for span in left(recorded)]
    assert 0 < len(wanted) <= 5
    answer = ask("--last", 20, "--from", source, "--json", *filters)
    assert [call["span_id"] for call in reversed(answer.calls)] == wanted


@everywhere
def test_since_a_moment_between_two_calls(recorded: Recorded, source: str) -> None:
    span = recorded.decided[2]
    answer = ask("--from", source, "--since", iso(span.start_time), "--json")
    assert [call["span_id"] for call in reversed(answer.calls)] == [
        span_id(later) for later in recorded.decided[2:]
    ]


@everywhere
def test_filters_within_a_trace(recorded: Recorded, source: str) -> None:
    skipped, stored, _ = map(span_id, recorded.of(recorded.order))
    (call,) = ask(recorded.order, "--from", source, "--skipped", "--json").calls
    assert call["span_id"] == skipped
    (call,) = ask(recorded.order, "--from", source, "--span", stored[:12].upper(), "--json").calls
    assert call["span_id"] == stored
    answer = ask(recorded.order, "--from", source, "--service", "mail/out")
    assert (answer.code, answer.complaint) == (
        3,
        f"explain: trace {recorded.order} has 3 decided calls, none of service mail/out (there is shop)",
    )
    answer = ask(recorded.order, "--from", source, "--span", "0000")
    assert (answer.code, answer.complaint) == (
        3,
        f"explain: trace {recorded.order} has 3 decided calls, none whose span id begins with 0000",
    )
    answer = ask(recorded.order, "--from", source, "--since", "2999-01-01")
    assert (answer.code, answer.complaint) == (
        3,
        f"explain: trace {recorded.order} has 3 decided calls, none that is so recent",
    )


@everywhere
def test_nothing_found(recorded: Recorded, source: str) -> None:
    answer = ask("feed", "--from", source)
    assert answer.code == 3
    assert answer.complaint.startswith(f"explain: trace {'feed':0>32} is not in ")
    answer = ask("--from", source, "--service", "nobody", "--skipped")
    assert answer.code == 3
    assert answer.complaint.startswith("explain: no skipped decided call of service nobody in ")
    answer = ask("--from", source, "--span", "0000", "--since", "2999-01-01")
    assert answer.code == 3
    assert answer.complaint.startswith(
        "explain: no decided call whose span id begins with 0000 that is so recent in "
    )


@pytest.mark.parametrize(
    "source", [kind for kind in FILES + SERVERS if kind != "decision-log"], indirect=True
)
def test_a_trace_of_a_service_without_decisions(recorded: Recorded, source: str) -> None:
    answer = ask(recorded.plain, "--from", source)
    assert (answer.code, answer.complaint) == (
        3,
        f"explain: trace {recorded.plain} has 1 span (service mail/out), none with a decision: was the instrumentor on in that process?",
    )


@everywhere
@pytest.mark.parametrize(
    "spelled", ["upper", "uuid", "0x", "short", "traceparent", "callers-traceparent"]
)
def test_ids_as_people_have_them(recorded: Recorded, source: str, spelled: str) -> None:
    (span,) = recorded.of(recorded.mail)
    identity = recorded.mail
    given = {
        "upper": identity.upper(),
        "uuid": f"{identity[:8]}-{identity[8:12]}-{identity[12:16]}-{identity[16:20]}-{identity[20:]}",
        "0x": f"0x{identity}",
        "short": identity.lstrip("0"),
        "traceparent": f"00-{identity}-{span_id(span)}-01",
        "callers-traceparent": f"00-{identity}-00000000000000aa-01",
    }[spelled]
    (call,) = ask(given, "--from", source, "--json").calls
    assert call["span_id"] == span_id(span)

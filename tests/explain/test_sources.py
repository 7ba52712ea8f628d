"""Calls of an instrumented process are read the same from every source."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from .asking import ask, codes, failure, note_values
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
MICROSECOND = timedelta(microseconds=1)  # some sources truncate, others round
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
        (path / "README").write_text("not a trace")
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


every_source = pytest.mark.parametrize("source", FILES + SERVERS, indirect=True)


@every_source
def test_each_call_is_explained_as_its_span_records_it(recorded: Recorded, source: str) -> None:
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


@every_source
def test_a_later_call_with_the_same_prefix_is_found_in_another_trace(
    recorded: Recorded, source: str
) -> None:
    call = ask(recorded.order, "--from", source, "--json").calls[0]
    (again,) = recorded.of(recorded.later)
    cached = attributes(again)["gen_ai.usage.cache_read.input_tokens"]
    assert cached > 800
    assert note_values(call["afterwards"], "later_calls") == {
        "calls": 1,
        "cached_tokens": [cached],
    }
    (last,) = ask(recorded.later, "--from", source, "--json").calls
    assert "no_later_calls" in codes(last["afterwards"])


@every_source
def test_recent_calls_are_listed_newest_first(recorded: Recorded, source: str) -> None:
    newest = [span_id(span) for span in reversed(recorded.decided)]
    answer = ask("--from", source, "--json")
    assert answer.code == 0
    assert [call["span_id"] for call in answer.calls] == newest
    # A listing does not search for later calls.
    for call in answer.calls:
        assert not {"later_calls", "no_later_calls"} & set(codes(call["afterwards"]))
    assert [
        call["span_id"] for call in ask("--from", source, "--last", 2, "--json").calls
    ] == newest[:2]


@every_source
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
def test_filters_apply_to_recent_calls(
    recorded: Recorded, source: str, filters: list[str], left: Any
) -> None:
    wanted = [span_id(span) for span in left(recorded)]
    assert 0 < len(wanted) <= 5
    answer = ask("--last", 20, "--from", source, "--json", *filters)
    assert [call["span_id"] for call in reversed(answer.calls)] == wanted


@every_source
def test_since_may_lie_between_two_calls(recorded: Recorded, source: str) -> None:
    span = recorded.decided[2]
    answer = ask("--from", source, "--since", iso(span.start_time), "--json")
    assert [call["span_id"] for call in reversed(answer.calls)] == [
        span_id(later) for later in recorded.decided[2:]
    ]


@every_source
def test_filters_apply_within_a_trace(recorded: Recorded, source: str) -> None:
    skipped, stored, _ = map(span_id, recorded.of(recorded.order))
    (call,) = ask(recorded.order, "--from", source, "--skipped", "--json").calls
    assert call["span_id"] == skipped
    (call,) = ask(recorded.order, "--from", source, "--span", stored[:12].upper(), "--json").calls
    assert call["span_id"] == stored


@every_source
@pytest.mark.parametrize(
    ("option", "value"),
    [("service", "mail/out"), ("span", "0000"), ("since", "2999-01-01 00:00:00 UTC")],
)
def test_a_filter_that_no_call_of_a_trace_passes_is_named(
    recorded: Recorded, source: str, option: str, value: str
) -> None:
    given = value.partition(" ")[0]
    failed = failure(recorded.order, "--from", source, f"--{option}", given)
    assert (failed.exit_code, failed.code) == (3, "no_match")
    assert failed.values == {"decided_calls": 3, "services": ["shop"], option: value}
    assert f"{option} {value}" in failed.line
    assert recorded.order in failed.line


@every_source
def test_an_unknown_trace_is_not_found(source: str) -> None:
    failed = failure("feed", "--from", source)
    assert (failed.exit_code, failed.code) == (3, "trace_not_found")
    assert f"{'feed':0>32}" in failed.line


@every_source
def test_filters_that_no_recent_call_passes_are_named(source: str) -> None:
    failed = failure("--from", source, "--service", "nobody", "--skipped")
    assert (failed.exit_code, failed.code) == (3, "no_match")
    assert failed.values == {"service": "nobody", "skipped": True}
    failed = failure("--from", source, "--span", "0000", "--since", "2999-01-01")
    assert (failed.exit_code, failed.code) == (3, "no_match")
    assert failed.values == {"span": "0000", "since": "2999-01-01 00:00:00 UTC"}


@pytest.mark.parametrize(
    "source", [kind for kind in FILES + SERVERS if kind != "decision-log"], indirect=True
)
def test_a_trace_without_decisions_names_its_services(recorded: Recorded, source: str) -> None:
    failed = failure(recorded.plain, "--from", source)
    assert (failed.exit_code, failed.code) == (3, "no_decisions")
    assert failed.values == {"spans": 1, "services": ["mail/out"]}
    assert recorded.plain in failed.line


@every_source
@pytest.mark.parametrize(
    "spelled", ["upper", "uuid", "0x", "short", "traceparent", "callers-traceparent"]
)
def test_trace_ids_are_accepted_in_every_common_form(
    recorded: Recorded, source: str, spelled: str
) -> None:
    (span,) = recorded.of(recorded.mail)
    identity = recorded.mail
    given = {
        "upper": identity.upper(),
        "uuid": str(UUID(identity)),
        "0x": f"0x{identity}",
        "short": identity.lstrip("0"),
        "traceparent": f"00-{identity}-{span_id(span)}-01",
        "callers-traceparent": f"00-{identity}-00000000000000aa-01",
    }[spelled]
    (call,) = ask(given, "--from", source, "--json").calls
    assert call["span_id"] == span_id(span)

"""File sources: other exporters, standard input, rotated logs, incomplete and unrelated lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.json.file import FileSpanExporter

import otel_kvpolicy
from otel_kvpolicy.standin import StandIn

from .asking import ask, failure
from .conftest import HI, MANUAL, RULES, Recorded, process
from .shapes import collector_lines, span_id


def test_standard_input_is_a_source(recorded: Recorded) -> None:
    answer = ask(recorded.mail, "--from", "-", "--json", stdin=collector_lines(recorded.spans))
    assert answer.code == 0
    assert answer.document["source"] == "standard input"
    assert len(answer.calls) == 1


def test_files_of_the_json_file_exporter_are_read(shared_server: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    with process(FileSpanExporter(path), shared_server, "shop") as shop:
        shop.chat(RULES, HI)
        shop.chat(MANUAL, HI)
    stored, skipped = ask("--from", path, "--json").calls
    assert (skipped["verdict"], stored["verdict"]) == ("skip", "store")
    assert (skipped["service"], skipped["model"]) == ("shop", "stand-in")
    assert skipped["decision"]["signals"]["prefix_tokens"] == 812
    assert stored["decision"]["reasons"] == ["long_shared_prefix(1250>=1024t)"]
    assert (
        ask(skipped["trace_id"], "--from", path, "--json").calls[0]["span_id"] == skipped["span_id"]
    )


def test_the_configured_decision_log_is_the_default_source(recorded: Recorded) -> None:
    otel_kvpolicy.configure(decision_log=str(recorded.log))
    assert len(ask("--json").calls) == len(recorded.decided)


def test_rotated_files_of_a_decision_log_are_read_too(recorded: Recorded, log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    for number, part in enumerate((lines[4:], lines[3:4], lines[1:3], lines[:1])):
        log.with_name(log.name + (f".{number}" if number else "")).write_text("".join(part))
    found = ask("--from", log, "--json").calls
    assert [call["span_id"] for call in found] == [
        span_id(span) for span in reversed(recorded.decided)
    ]


def test_a_span_id_alone_finds_its_call_in_a_file(recorded: Recorded) -> None:
    (span,) = recorded.of(recorded.mail)
    (call,) = ask(span_id(span), "--from", recorded.log, "--json").calls
    assert call["trace_id"] == recorded.mail
    (call,) = ask("--span", span_id(span), "--from", recorded.log, "--json").calls
    assert call["trace_id"] == recorded.mail


def test_an_incomplete_last_line_is_skipped_and_noted(recorded: Recorded, log: Path) -> None:
    with log.open("a") as file:
        file.write('{"timestamp": "2026-')
    answer = ask(recorded.order, "--from", log, "--json")
    assert answer.code == 0
    assert len(answer.calls) == 3
    (note,) = answer.document["notes"]
    assert note["code"] == "unreadable_lines"
    assert note["values"] == {"lines": 1, "first": len(recorded.decided) + 1}
    assert answer.err == f"explain: {note['text']}\n"


def test_other_signals_and_unrelated_lines_are_ignored(recorded: Recorded, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    others = [
        '{"resourceMetrics": []}',
        '{"resourceLogs": []}',
        '{"resourceSpans": []}',
        "{}",
        "[]",
        "null",
        "7",
        '"text"',
        "",
    ]
    path.write_text("\n".join(others) + "\n" + collector_lines(recorded.spans))
    assert len(ask("--from", path, "--json").calls) == len(recorded.decided)
    answer = ask(recorded.order, "--from", path, "--json")
    assert (len(answer.calls), answer.err) == (3, "")


def test_the_same_span_in_two_files_is_one_call(recorded: Recorded, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / "twice").mkdir(exist_ok=True)
        (tmp_path / "twice" / name).write_text(collector_lines(recorded.spans))
    assert len(ask("--from", tmp_path / "twice", "--json").calls) == len(recorded.decided)
    assert len(ask(recorded.order, "--from", tmp_path / "twice", "--json").calls) == 3


def bad(folder: Path, name: str) -> str:
    path = folder / name
    if name == "cut.gz":
        path.write_bytes(gzip.compress(b'{"resourceSpans": []}\n' * 1000)[:-20])
    elif name == "plain.gz":
        path.write_bytes(b"{}")
    elif name == "empty-folder":
        path.mkdir()
    elif name != "missing":
        documents = {
            "prose": "Dear diary,\ntoday I was decided.\n",
            "not-otlp": '{"resourceSpans": "kvpolicy.decision"}',
            "not-spans": '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 5, '
            '"kvpolicy.decision": []}]}]}]}',
            "not-jaeger": '{"data": [{"spans": [{"tags": "kvpolicy.decision"}]}]}',
            "deep": "[" * 100_000,
        }
        path.write_text(documents[name])
    return str(path)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing", "no_such_file"),
        ("empty-folder", "no_files"),
        ("prose", "not_json"),
        ("deep", "not_json"),
        ("not-otlp", "unknown_format"),
        ("not-spans", "unknown_format"),
        ("not-jaeger", "unknown_format"),
        ("cut.gz", "unreadable"),
        ("plain.gz", "unreadable"),
    ],
)
@pytest.mark.parametrize("arguments", [["feed"], []], ids=["trace", "recent"])
def test_an_unreadable_file_is_an_error_of_one_line(
    tmp_path: Path, name: str, code: str, arguments: list[str]
) -> None:
    path = bad(tmp_path, name)
    failed = failure(*arguments, "--from", path)
    assert (failed.exit_code, failed.code) == (1, code)
    assert path in failed.line
    assert ("line 1" in failed.line) is (code in {"not_json", "unknown_format"})


def test_a_file_that_opens_but_cannot_be_read_is_an_error_of_one_line() -> None:
    path = "/proc/self/mem"  # reading at position 0 fails
    failed = failure("--from", path)
    assert (failed.exit_code, failed.code) == (1, "unreadable")
    assert path in failed.line

"""What is special to files: other exporters, standard input, rotation, lines that are torn or are none of ours."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.json.file import FileSpanExporter

import otel_kvpolicy
from otel_kvpolicy.standin import StandIn

from .asking import ask
from .conftest import HI, MANUAL, RULES, Recorded, process
from .shapes import collector_lines, span_id


def test_standard_input(recorded: Recorded) -> None:
    answer = ask(recorded.mail, "--from", "-", "--json", stdin=collector_lines(recorded.spans))
    assert answer.code == 0
    assert json.loads(answer.out)["source"] == "standard input"


def test_what_the_json_file_exporter_writes(shared_server: StandIn, tmp_path: Path) -> None:
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


def test_the_decision_log_in_force_is_the_default(recorded: Recorded) -> None:
    otel_kvpolicy.configure(decision_log=str(recorded.log))
    assert len(ask("--json").calls) == len(recorded.decided)


def test_a_rotated_decision_log_is_read_whole(recorded: Recorded, log: Path) -> None:
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


def test_a_torn_last_line_is_passed_over_and_told(recorded: Recorded, log: Path) -> None:
    with log.open("a") as file:
        file.write('{"timestamp": "2026-')
    answer = ask(recorded.order, "--from", log, "--json")
    assert answer.code == 0
    assert len(answer.calls) == 3
    assert (
        answer.err
        == f"explain: passed over a line of {log} that is no JSON (line {len(recorded.decided) + 1})\n"
    )


def test_other_signals_and_other_lines_do_not_matter(recorded: Recorded, tmp_path: Path) -> None:
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
            "not-spans": '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 5, "kvpolicy.decision": []}]}]}]}',
            "not-jaeger": '{"data": [{"spans": [{"tags": "kvpolicy.decision"}]}]}',
            "deep": "[" * 100_000,
        }
        path.write_text(documents[name])
    return str(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "there is no file {path}"),
        ("empty-folder", "{path} is a directory without a .json or .jsonl file"),
        ("prose", "{path} holds no JSON lines: line 1 cannot be read"),
        ("deep", "{path} holds no JSON lines: line 1 cannot be read"),
        ("not-otlp", "{path}, line 1: not shaped like OTLP: "),
        ("not-spans", "{path}, line 1: not shaped like OTLP: "),
        ("not-jaeger", "{path}, line 1: not shaped like Jaeger's JSON: "),
        ("cut.gz", "cannot read {path}: "),
        ("plain.gz", "cannot read {path}: "),
    ],
)
@pytest.mark.parametrize("asked", [["feed"], []], ids=["trace", "recent"])
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, name: str, said: str, asked: list[str]
) -> None:
    path = bad(tmp_path, name)
    answer = ask(*asked, "--from", path)
    assert answer.code == 1
    assert answer.complaint.startswith("explain: " + said.format(path=path))


def test_a_file_that_opens_and_cannot_be_read() -> None:
    answer = ask("--from", "/proc/self/mem")  # opens, and cannot be read at its start
    assert answer.code == 1
    assert answer.complaint.startswith("explain: cannot read /proc/self/mem: ")

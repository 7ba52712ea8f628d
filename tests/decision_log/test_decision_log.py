"""The decision log: its entries, and what a full disk, a crash, or another process does to it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from otel_kvpolicy.cli.spans.files import FileSource
from otel_kvpolicy.cli.spans.source import Query
from otel_kvpolicy.standin import FAULT_HEADER, StandIn
from otel_kvpolicy.telemetry import decision_log as log_module
from otel_kvpolicy.telemetry.decision_log import BACKUPS, DecisionLog

from ..conftest import Telemetry

LARGE = 1 << 40


def ask(server: StandIn, content: str = "hello", **options: Any) -> None:
    with openai.OpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client:
        client.chat.completions.create(
            model="stand-in", messages=[{"role": "user", "content": content}], **options
        )


def entries(path: Path) -> list[dict[str, Any]]:
    assert log_module.flush(20)
    return [json.loads(line) for line in path.read_text().splitlines()]


class Errors:
    """Collects the errors that the log reports."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, Exception]] = []

    def __call__(self, seam: str, error: Exception) -> None:
        self.reported.append((seam, error))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "decisions.jsonl"


@pytest.fixture
def logged(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KV_CACHE_DECISION_LOG", str(path))
    return path


def test_an_entry_has_the_attributes_of_the_span(
    instrumented: Telemetry, server: StandIn, logged: Path
) -> None:
    prompt = "a prompt that must not be written"
    ask(server, prompt)
    (entry,), (span,) = entries(logged), instrumented.decided
    assert entry["trace_id"] == f"{span.context.trace_id:032x}"
    assert entry["span_id"] == f"{span.context.span_id:016x}"
    assert entry["service"] == span.resource.attributes["service.name"]
    on_span = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in (span.attributes or {}).items()
    }
    assert {name: on_span[name] for name in entry["attributes"]} == entry["attributes"]
    assert {name for name in on_span if name.startswith("kvpolicy.")} <= entry["attributes"].keys()
    assert prompt not in logged.read_text()


def test_an_entry_names_the_conversation_that_the_chat_span_names(
    instrumented: Telemetry, server: StandIn, logged: Path
) -> None:
    tracer = instrumented.tracer_provider.get_tracer("theirs")
    with tracer.start_as_current_span(
        "chat",
        attributes={"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "conversation 7"},
    ):
        ask(server)
    ask(server)
    theirs, ours = entries(logged)
    assert theirs["attributes"]["gen_ai.conversation.id"] == "conversation 7"
    assert "gen_ai.conversation.id" not in ours["attributes"]


def test_a_failed_call_is_logged_with_its_error(
    instrumented: Telemetry, server: StandIn, logged: Path
) -> None:
    with pytest.raises(openai.InternalServerError):
        ask(server, extra_headers={FAULT_HEADER: "500"})
    (entry,) = entries(logged)
    assert entry["attributes"]["error.type"] == "InternalServerError"
    assert entry["attributes"]["kvpolicy.decision"] == "skip"


def test_nothing_is_written_without_the_setting(
    instrumented: Telemetry, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ask(server)
    assert log_module.flush(20)
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_is_counted_and_the_call_succeeds(
    instrumented: Telemetry, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_DECISION_LOG", str(tmp_path))  # a directory
    ask(server)
    assert log_module.flush(20)
    assert [point["kvpolicy.seam"] for point, _ in instrumented.points("kvpolicy.errors")] == [
        "decision_log"
    ]


def test_entries_are_dropped_if_the_queue_is_full(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, log = Errors(), DecisionLog(str(path))
    monkeypatch.setattr(log_module, "_MAX_QUEUED", 0)
    log.write({"n": 1}, LARGE, errors)
    assert [(seam, type(error)) for seam, error in errors.reported] == [
        ("decision_log", queue.Full)
    ]
    assert not path.exists()


def test_rotation_keeps_the_newest_entries(path: Path) -> None:
    errors, log = Errors(), DecisionLog(str(path))
    for number in range(100):
        log.write({"n": number}, 64, errors)
        assert log.flush(20)  # one batch per entry, so that the file grows by one entry
    assert errors.reported == []
    files = [path.with_name(f"{path.name}.{number}") for number in range(BACKUPS, 0, -1)] + [path]
    assert sorted(path.parent.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 64 for file in files)
    kept = [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 2 * BACKUPS


def test_an_entry_larger_than_the_limit_is_still_written(path: Path) -> None:
    errors, log = Errors(), DecisionLog(str(path))
    log.write({"long": "x" * 100}, 10, errors)
    assert log.flush(20)
    assert json.loads(path.read_text()) == {"long": "x" * 100}


def test_a_torn_last_line_does_not_damage_the_next_entry(path: Path) -> None:
    errors = Errors()
    path.parent.mkdir()
    path.write_text('{"n": 0}\n{"n": 1, "half')
    log = DecisionLog(str(path))
    log.write({"n": 2}, LARGE, errors)
    log.write({"n": 3}, LARGE, errors)
    assert log.flush(20)
    lines = path.read_text().splitlines()
    assert [lines[0], *map(json.loads, lines[2:])] == ['{"n": 0}', {"n": 2}, {"n": 3}]


def test_a_removed_file_is_created_again(path: Path) -> None:
    errors, log = Errors(), DecisionLog(str(path))
    log.write({"n": 1}, LARGE, errors)
    assert log.flush(20)
    path.unlink()
    log.write({"n": 2}, LARGE, errors)
    assert log.flush(20)
    assert json.loads(path.read_text()) == {"n": 2}


WRITER = """
    import sys
    from otel_kvpolicy.telemetry.decision_log import decision_log, flush

    path, name, count, max_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    def errors(seam, error):
        raise SystemExit(f"{seam}: {error!r}")
    for number in range(count):
        entry = {"writer": name, "n": number, "padding": "x" * 200}
        decision_log(path).write(entry, max_bytes, errors)
        if number % 10 == 0:
            flush(20)
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("max_bytes", [LARGE, 20_000])
def test_processes_share_a_file(path: Path, max_bytes: int) -> None:
    count = 200
    writers = [start(WRITER, str(path), name, str(count), str(max_bytes)) for name in "abc"]
    for writer in writers:
        _, stderr = writer.communicate(timeout=60)
        assert writer.returncode == 0, stderr
    rotated = [path.with_name(f"{path.name}.{number}") for number in range(1, BACKUPS + 1)]
    lines = [
        json.loads(line)
        for file in [path, *rotated]
        if file.exists()
        for line in file.read_text().splitlines()
    ]
    seen = {(line["writer"], line["n"]) for line in lines}
    assert len(seen) == len(lines)
    if max_bytes == LARGE:
        assert seen == {(name, number) for name in "abc" for number in range(count)}
    else:
        assert all(file.exists() for file in rotated)
        assert len(lines) > BACKUPS * max_bytes / 2 / 260


def test_a_write_of_another_process_is_not_mistaken_for_a_torn_line(path: Path) -> None:
    script = WRITER.replace("* 200", "* 700").replace("% 10", "% 60")
    writers = [start(script, str(path), name, "15000", str(LARGE)) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert path.read_text().count("\n") == 45_000


def test_queued_entries_are_written_at_exit(path: Path) -> None:
    script = """
        import sys
        from otel_kvpolicy.telemetry.decision_log import decision_log
        for number in range(500):
            decision_log(sys.argv[1]).write({"n": number}, 1 << 40, lambda seam, error: sys.exit(1))
    """
    writer = start(script, str(path))
    _, stderr = writer.communicate(timeout=60)
    assert writer.returncode == 0, stderr
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == list(range(500))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_process_writes_too(path: Path) -> None:
    script = """
        import os, sys, warnings
        from otel_kvpolicy.telemetry.decision_log import decision_log, flush
        warnings.simplefilter("ignore", DeprecationWarning)
        def write(who):
            decision_log(sys.argv[1]).write({"who": who}, 1 << 40, lambda seam, error: os._exit(1))
        write("parent")
        flush(20)
        child = os.fork()
        if child == 0:
            write("child")
            os._exit(0 if flush(20) else 2)
        assert os.waitpid(child, 0)[1] == 0
    """
    writer = start(script, str(path))
    _, stderr = writer.communicate(timeout=60)
    assert writer.returncode == 0, stderr
    assert [json.loads(line)["who"] for line in path.read_text().splitlines()] == [
        "parent",
        "child",
    ]


def test_the_log_of_a_killed_process_can_be_read(
    path: Path, instrumented: Telemetry, server: StandIn
) -> None:
    script = """
        import sys
        from otel_kvpolicy.telemetry.decision_log import decision_log
        log = decision_log(sys.argv[1])
        attributes = {"kvpolicy.decision": "skip", "padding": "x" * 500}
        entry = {"timestamp": "2026-01-01T00:00:00Z", "attributes": attributes}
        while True:
            log.write(entry, 1 << 40, lambda seam, error: None)
    """
    writer = start(script, str(path))
    deadline = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > 100_000):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=30)
    whole = path.read_bytes()
    # Cut the file in the middle of a line, as a power failure does.
    path.write_bytes(whole[: whole.rindex(b"\n") + 40])
    source = FileSource(str(path))
    assert source.recent(Query(1))
    assert len(source.notes) <= 1
    lines = path.read_bytes().split(b"\n")
    assert all(json.loads(line) for line in lines[:-1])

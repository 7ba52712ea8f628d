"""The state survives a restart, and no problem with the file or its disk affects a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from otel_kvpolicy import configure, settings
from otel_kvpolicy.persistence import AdaptiveState, state_file
from otel_kvpolicy.policy.adaptive.rule import AdaptiveRule
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

from .trained_rule import active_state, message, train, trained_file

APP = """
from openai import OpenAI
with OpenAI(api_key="key") as client:
    messages = [{"role": "user", "content": "hi " * 2000}]
    client.chat.completions.create(model="stand-in", messages=messages, max_tokens=2)
"""


def call(server: StandIn) -> None:
    messages: Any = [message("user", "hi")]
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        assert client.chat.completions.create(
            model="stand-in", messages=messages, max_tokens=2
        ).choices


def fail_test(seam: str, error: Exception) -> None:
    pytest.fail(f"{seam}: {error!r}")


def new_state() -> AdaptiveState:
    """Return the state of a process that starts with the current settings, without its thread."""
    state = AdaptiveState(fail_test)
    state.rule = state._make(settings.current())
    return state


def rule_of(state: AdaptiveState) -> AdaptiveRule:
    assert state.rule is not None
    return state.rule


def restart(path: Path) -> AdaptiveRule:
    """Return the rule of a process that starts with the file."""
    configure(rule="adaptive", state_file=str(path))
    return rule_of(new_state())


@pytest.mark.slow
def test_a_process_passes_its_state_to_the_next_one(server: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "state" / "learned.json"
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "KV_CACHE_"))
    }
    variables = {
        "OPENAI_BASE_URL": server.base_url,
        "KV_CACHE_RULE": "adaptive",
        "KV_CACHE_STATE_FILE": str(path),
    }
    options = ["--traces_exporter", "none", "--metrics_exporter", "none", "--logs_exporter", "none"]
    command = [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        *options,
        sys.executable,
        "-c",
        APP,
    ]
    for runs in (1, 2):
        subprocess.run(command, env={**clean, **variables}, check=True, timeout=60)
        assert [group[:4] for group in json.loads(path.read_text())["classes"]] == [
            ["", 0, 2, 0]
        ], runs
    assert [file.name for file in path.parent.iterdir()] == ["learned.json"]


def test_the_file_is_written_and_read_completely(
    server: StandIn, instrumented: Telemetry, tmp_path: Path
) -> None:
    path = tmp_path / "learned.json"
    configure(rule="adaptive", state_file=str(path))
    call(server)
    state = active_state()
    state.sync()
    before = json.dumps(rule_of(state).export())
    assert json.dumps(restart(path).export()) == before


def counts(state: dict[str, Any]) -> dict[tuple[Any, ...], float]:
    """Return the calls by class."""
    return {tuple(group): calls for *group, calls, _ in state["classes"]}


@pytest.mark.parametrize("end", [False, True])
def test_a_file_that_is_set_later_is_read_before_it_is_written(tmp_path: Path, end: bool) -> None:
    path = trained_file(tmp_path)
    before = json.loads(path.read_text())
    configure(rule="adaptive")
    state = new_state()
    configure(state_file=str(path))
    if end:
        state.close()
    else:
        state.sync()
    assert json.loads(path.read_text()) == before


def test_counts_from_before_the_file_was_set_are_added(tmp_path: Path) -> None:
    path, other = trained_file(tmp_path), tmp_path / "other.json"
    before = json.loads(path.read_text())
    configure(rule="adaptive")
    state, clock = new_state(), [0.0]
    rule = rule_of(state)
    rule._clock = lambda: 3 * clock[0]  # prompts come back later than in the file
    train(rule, clock)
    learned = rule.export()
    # A file is read only once: afterwards it holds what this process has written.
    for name in (path, path, other, path):
        configure(state_file=str(name))
        state.sync()
        written = json.loads(name.read_text())
        assert counts(written) == {
            group: counts(before)[group] + calls for group, calls in counts(learned).items()
        }
        assert written["lifetime"] == learned["lifetime"] != before["lifetime"]
        assert written["gap_seconds"] == learned["gap_seconds"] != before["gap_seconds"]


def test_a_damaged_file_that_is_set_later_is_renamed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.json"
    path.write_text("{")
    configure(rule="adaptive")
    state = new_state()
    configure(state_file=str(path))
    state.sync()
    assert path.with_name("learned.json.damaged").read_text() == "{"
    assert json.loads(path.read_text())["classes"] == []
    assert str(path) in caplog.text


def test_a_file_that_cannot_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, faults = trained_file(tmp_path), []
    before = path.read_bytes()

    def unreadable(_: Path) -> bytes:
        raise OSError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", unreadable)
        state = AdaptiveState(lambda seam, _: faults.append(seam))
        state.rule = state._make(configure(rule="adaptive", state_file=str(path)))
        state.sync()
    assert faults == ["state_file"] * 2
    assert path.read_bytes() == before
    state.sync()
    assert faults == ["state_file"] * 2
    assert json.loads(path.read_bytes())["classes"] == json.loads(before)["classes"]


def with_reuse(reuse: str) -> bytes:
    return json.dumps(AdaptiveRule().export()).replace('"reuse": 0.3', f'"reuse": {reuse}').encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        b'{"version": 1}',
        b'{"version": 2, "gap_seconds": "x"}',
        with_reuse("9" * 400),
        with_reuse("NaN"),
        b"[" * 100_000,
        with_reuse("0.3" + " " * (4 << 20)),
    ],
    ids=range(11),
)
def test_a_damaged_file_is_renamed_with_a_warning(
    server: StandIn,
    instrumented: Telemetry,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    path = tmp_path / "learned.json"
    path.write_bytes(content)
    configure(rule="adaptive", state_file=str(path))
    call(server)
    assert path.with_name("learned.json.damaged").read_bytes() == content
    [warning] = [
        record.message for record in caplog.records if "KV_CACHE_STATE_FILE" in record.message
    ]
    assert str(path) in warning
    assert instrumented.total("kvpolicy.errors") == 0


def test_a_file_that_cannot_be_written_is_counted_as_an_error(
    server: StandIn, instrumented: Telemetry, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    configure(rule="adaptive", state_file=str(tmp_path / "file" / "learned.json"))
    call(server)
    active_state().sync()
    assert {point["kvpolicy.seam"] for point, _ in instrumented.points("kvpolicy.errors")} == {
        "state_file"
    }


def test_a_pipe_is_neither_read_nor_replaced(
    server: StandIn, instrumented: Telemetry, tmp_path: Path
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, b"x")  # so that reading the pipe would fail this test instead of hanging it
    configure(rule="adaptive", state_file=str(path))
    thread = threading.Thread(target=call, args=(server,), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    active_state().sync()
    assert path.is_fifo()
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]
    assert {point["kvpolicy.seam"] for point, _ in instrumented.points("kvpolicy.errors")} == {
        "state_file"
    }
    os.close(writer)


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    path, there = tmp_path / "learned.json", tmp_path / "volume" / "learned.json"
    path.symlink_to(there)
    state_file.save(AdaptiveRule(), path)
    assert path.is_symlink()
    assert json.loads(there.read_text())["classes"] == []
    assert state_file.restore(AdaptiveRule(), path)

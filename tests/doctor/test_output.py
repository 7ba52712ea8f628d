"""What the doctor prints: one report read by a person, and what holds for every report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.cli.doctor import command
from otel_kvpolicy.cli.doctor.environment import Check
from otel_kvpolicy.standin import StandIn
from tests.golden import assert_golden

from .asking import NOWHERE, QUICK, codes, found_in, run, urls, values

ALL = ("skip_save", "max_offload_tokens", "both")

SERVERS: list[tuple[dict[str, Any], dict[str, str], str, int]] = [
    (
        {"mode": "mp"},
        {"skip_save": "ignored", "max_offload_tokens": "honoured", "both": "honoured"},
        "honoured",
        0,
    ),
    (
        {"mode": "in_process"},
        {"skip_save": "honoured", "max_offload_tokens": "ignored", "both": "honoured"},
        "honoured",
        0,
    ),
    ({"mode": "mp", "honour_hints": False}, dict.fromkeys(ALL, "ignored"), "ignored", 1),
    ({"mode": "none"}, dict.fromkeys(ALL, "no effect"), "no effect", 1),
    ({"strict": "openai"}, dict.fromkeys(ALL, "refused"), "refused", 1),
    (
        {"mode": "none", "serve_metrics": False, "prompt_tokens_details": False},
        dict.fromkeys(ALL, "inconclusive"),
        "inconclusive",
        3,
    ),
]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _outcome_lines(printed: str) -> dict[str, str]:
    """Return the line of each hint in the first table that has one."""
    lines: dict[str, str] = {}
    for line in printed.splitlines():
        name, _, rest = line.strip().partition(" ")
        if name in ALL:
            lines.setdefault(name, rest.strip())
    return lines


@pytest.mark.parametrize("columns", [80, 120])
def test_the_report_for_people(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check("instrumentor", "ok", "enabled", "1.2.3, loaded by opentelemetry-instrument"),
        Check("traces", "warn", "none", "OTEL_TRACES_EXPORTER=none: traces are not exported"),
        Check("settings", "fail", "problems", "KV_CACHE_MODUS: unknown setting"),
    ]
    monkeypatch.setattr(command, "check_process", lambda _: checks)
    with StandIn() as server:
        done = run(*urls(server), *QUICK, columns=columns)
    golden = Path(__file__).parent / "golden" / f"report_{columns}.txt"
    assert_golden(done.stdout, golden)


@pytest.mark.parametrize(
    ("options", "words", "verdict", "code"), SERVERS, ids=[str(server[0]) for server in SERVERS]
)
def test_each_hint_has_its_word_and_nothing_is_cut_off(
    options: dict[str, Any], words: dict[str, str], verdict: str, code: int
) -> None:
    with StandIn(**options) as server:
        shown = {columns: run(*urls(server), *QUICK, columns=columns) for columns in (80, 120)}
        notes = json.loads(run(*urls(server), *QUICK, "--json").stdout)["notes"]
    assert notes
    for columns, done in shown.items():
        lines = done.stdout.splitlines()
        assert done.exit_code == code
        assert done.stderr == ""
        assert max(map(len, lines)) <= columns
        assert "…" not in done.stdout
        found = _outcome_lines(done.stdout)
        assert list(found) == list(words)
        assert all(found[arm].startswith(word) for arm, word in words.items())
        assert lines[-1] == f"verdict: {verdict} (exit code {code})"
        assert all(_squeezed(note) in _squeezed(done.stdout) for note in notes)


def test_the_hint_that_the_settings_send_is_marked() -> None:
    with StandIn() as server:
        done = run(*urls(server), *QUICK, columns=120, KV_CACHE_HINT_KEYS="skip_save")
    found = _outcome_lines(done.stdout)
    assert [arm for arm, line in found.items() if "KV_CACHE_HINT_KEYS=skip_save" in line] == [
        "skip_save"
    ]
    assert done.exit_code == 1


def test_evidence_that_is_the_same_for_all_hints_is_shown_once() -> None:
    with StandIn(mode="none") as server:
        found = found_in(server)
        done = run(*urls(server), *QUICK, columns=200)
    evidence = {arm: finding["evidence"] for arm, finding in found["findings"].items()}
    (text,) = {one["text"] for each in evidence.values() for one in each}
    assert done.stdout.count(text) == 1


def test_an_examination_that_ends_early_shows_the_checks_and_the_trouble() -> None:
    done, found = run("--base-url", NOWHERE), run("--base-url", NOWHERE, "--json")
    trouble = json.loads(found.stdout)["trouble"]
    assert _squeezed(trouble) in _squeezed(done.stdout)
    assert _outcome_lines(done.stdout) == {}
    assert all(check["name"] in done.stdout for check in json.loads(found.stdout)["checks"])
    assert done.stdout.splitlines()[-1] == "verdict: inconclusive (exit code 3)"


def test_failed_checks_of_the_process_are_in_the_advice() -> None:
    with StandIn() as server:
        found = found_in(
            server, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="kvpolicy", KV_CACHE_MODUS="x"
        )
    assert found["exit_code"] == 0  # the question is whether the server honours the hint
    assert codes(found) == ["hint_works", "check_process"]
    assert values(found, "check_process") == {"checks": ["instrumentor", "settings"]}


def test_markup_in_a_servers_names_is_printed_as_it_is() -> None:
    with StandIn(models=("[bold red]m[/]",)) as server:
        done = run(*urls(server), *QUICK)
    assert "[bold red]m[/]" in done.stdout


def test_json_has_all_that_a_script_needs() -> None:
    with StandIn() as server:
        found = found_in(server)
    assert set(found) == {
        *("outcome", "hint_keys", "exit_code", "trouble", "trouble_code", "mode", "connector"),
        *("dialect", "vllm", "lmcache", "metrics_release", "missing_metrics"),
        *("findings", "trials", "checks", "notes", "advice"),
    }
    assert found["trials"][0]["arm"] == "store"
    assert {trial["arm"] for trial in found["trials"]} == {"store", *ALL, "control"}
    for trial in found["trials"]:  # without the prompt, which is random
        assert set(trial) == {
            *("arm", "chunks", "counted", "told", "salted", "cached_tokens", "refused"),
        }
    for finding in found["findings"].values():
        assert all(set(one) == {"way", "outcome", "text"} for one in finding["evidence"])
    assert all(set(check) == {"name", "state", "code", "text"} for check in found["checks"])
    assert all(set(note) == {"code", "text", "values"} for note in found["advice"])

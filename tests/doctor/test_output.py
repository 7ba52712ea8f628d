"""What a person sees, at two widths, and what a script gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_kvpolicy.standin import StandIn

from .asking import NOWHERE, QUICK, run, urls

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
    (
        {"mode": "mp", "honour_hints": False},
        dict.fromkeys(("skip_save", "max_offload_tokens", "both"), "ignored"),
        "ignored",
        1,
    ),
    (
        {"mode": "none"},
        dict.fromkeys(("skip_save", "max_offload_tokens", "both"), "no effect"),
        "no effect",
        1,
    ),
    (
        {"strict": "openai"},
        dict.fromkeys(("skip_save", "max_offload_tokens", "both"), "refused"),
        "refused",
        1,
    ),
    (
        {"mode": "none", "serve_metrics": False, "prompt_tokens_details": False},
        dict.fromkeys(("skip_save", "max_offload_tokens", "both"), "inconclusive"),
        "inconclusive",
        3,
    ),
]


def _squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("options", "states", "verdict", "code"), SERVERS, ids=[str(each[0]) for each in SERVERS]
)
def test_each_key_has_its_word_and_no_line_is_broken(
    options: dict[str, Any], states: dict[str, str], verdict: str, code: int
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
        table = lines[lines.index("is the hint honoured?") + 1 :][:3]
        assert [line.split()[0] for line in table] == list(states)
        assert all(
            " ".join(line.split()[1:]).startswith(word)
            for line, word in zip(table, states.values(), strict=True)
        )
        assert lines[-1] == f"verdict: {verdict} (exit code {code})"
        assert all(_squeezed(note) in _squeezed(done.stdout) for note in notes)


def test_the_line_of_what_is_sent_is_marked() -> None:
    with StandIn() as server:
        done = run(*urls(server), *QUICK, KV_CACHE_HINT_KEYS="skip_save")
    marked = [
        line.split()[0]
        for line in done.stdout.splitlines()
        if "what is sent (KV_CACHE_HINT_KEYS=skip_save)" in line
    ]
    assert marked == ["skip_save"]
    assert done.stdout.splitlines()[-1] == "verdict: ignored (exit code 1)"


def test_evidence_that_is_the_same_for_each_key_stands_once() -> None:
    with StandIn(mode="none") as server:
        done = run(*urls(server), *QUICK, columns=120)
    assert done.stdout.count("vLLM asked no KV connector") == 1


def test_trouble_stands_alone_with_the_process_checks() -> None:
    done = run("--base-url", NOWHERE)
    lines = done.stdout.splitlines()
    assert "this process" in lines
    assert "what is in the way" in lines
    assert "is the hint honoured?" not in lines
    assert lines[-1] == "verdict: inconclusive (exit code 3)"


def test_a_process_that_needs_a_look_is_not_called_well() -> None:
    with StandIn() as server:
        done = run(
            *urls(server),
            *QUICK,
            columns=200,
            OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="kvpolicy",
            KV_CACHE_MODUS="x",
        )
    assert done.exit_code == 0  # the hint is honoured: that is the question
    assert "It works there." in done.stdout
    assert "Look at this process: instrumentor, settings (above)." in done.stdout


def test_names_from_a_server_are_text_and_no_markup() -> None:
    with StandIn(models=("[bold red]m[/]",)) as server:
        done = run(*urls(server), *QUICK)
    assert "model [bold red]m[/]" in done.stdout


def test_json_holds_all_that_a_script_needs() -> None:
    with StandIn() as server:
        done = run(*urls(server), *QUICK, "--json")
    found = json.loads(done.stdout)
    assert set(found) == {
        *(
            "outcome",
            "hint_keys",
            "exit_code",
            "trouble",
            "mode",
            "connector",
            "vllm",
            "lmcache",
            "metrics_release",
            "missing_metrics",
        ),
        *("findings", "trials", "checks", "notes"),
    }
    assert found["trials"][0]["arm"] == "store"
    assert {trial["arm"] for trial in found["trials"]} == {
        "store",
        "skip_save",
        "max_offload_tokens",
        "both",
        "control",
    }
    assert "text" not in found["trials"][0]  # the prompt is noise

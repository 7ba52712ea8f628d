"""Runs ``otel-kvpolicy explain`` as users and scripts do."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

import click
from click.testing import CliRunner

from otel_kvpolicy.cli import main

WIDE = 400


class Answer(NamedTuple):
    """Exit code, standard output and standard error of a run."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """What ``--json`` printed."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The explained calls in the JSON output."""
        calls: list[dict[str, Any]] = self.document["calls"]
        return calls

    @property
    def note_codes(self) -> list[str]:
        """Codes of the notes on the source in the JSON output."""
        return codes(self.document["notes"])


class Failure(NamedTuple):
    """Why a run found no call: exit code, error code, its values, and the line for people."""

    exit_code: int
    code: str
    values: dict[str, Any]
    line: str


def ask(*arguments: Any, stdin: str | None = None, columns: int = WIDE) -> Answer:
    """Run the command. An exception that escapes it is raised here."""
    runner = CliRunner(env={"COLUMNS": str(columns)})
    command = cast("click.Command", main)
    done = runner.invoke(
        command, ["explain", *map(str, arguments)], input=stdin, catch_exceptions=False
    )
    return Answer(done.exit_code, done.stdout, done.stderr)


def failure(*arguments: Any, stdin: str | None = None) -> Failure:
    """Run the command for people and for scripts, and check that both say the same."""
    text = ask(*arguments, stdin=stdin)
    assert text.out == ""
    (line,) = text.err.splitlines()
    document = ask(*arguments, "--json", stdin=stdin)
    assert document.code == text.code
    assert document.err == text.err
    assert document.calls == []
    error = document.document["error"]
    assert line == f"explain: {error['text']}"
    return Failure(text.code, error["code"], error["values"], line)


def codes(notes: list[dict[str, Any]]) -> list[str]:
    """Return the codes of JSON notes."""
    return [note["code"] for note in notes]


def note_values(notes: list[dict[str, Any]], code: str) -> dict[str, Any]:
    """Return the values of the only JSON note with this code."""
    (note,) = [note for note in notes if note["code"] == code]
    values: dict[str, Any] = note["values"]
    return values


def change_keys(call: dict[str, Any]) -> list[tuple[str, str, float | None]]:
    """Return kind, name and value of each change in an explained call."""
    return [(change["kind"], change["name"], change["value"]) for change in call["changes"]]


def measure_keys(call: dict[str, Any]) -> list[tuple[int, int, int, bool]]:
    """Return value, threshold, distance and whether it is met, of each measure."""
    return [
        (measure["value"], measure["threshold"], measure["distance"], measure["met"])
        for measure in call["measures"]
    ]

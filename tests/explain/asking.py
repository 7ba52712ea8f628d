"""Runs ``otel-kvpolicy explain`` as its users do."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from click.testing import CliRunner

from otel_kvpolicy.cli import main

WIDE = 400


class Answer(NamedTuple):
    """What the command said: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Of ``--json``."""
        found: list[dict[str, Any]] = json.loads(self.out)["calls"]
        return found

    @property
    def complaint(self) -> str:
        """The one line of an answer that says why there is none."""
        assert self.out == ""
        (line,) = self.err.splitlines()
        return line


def ask(*arguments: Any, stdin: str | None = None, columns: int = WIDE) -> Answer:
    """Asks; an exception that escapes the command is raised here."""
    runner = CliRunner(env={"COLUMNS": str(columns)})
    done = runner.invoke(
        main, ["explain", *map(str, arguments)], input=stdin, catch_exceptions=False
    )
    return Answer(done.exit_code, done.stdout, done.stderr)

"""Runs the doctor as the command line does, with waits that suit servers in this process."""

from __future__ import annotations

import json
from typing import Any

import click.testing

from otel_kvpolicy.cli.doctor.command import command
from otel_kvpolicy.standin import StandIn

QUICK = ("--rounds", "1", "--settle", "0.02")
NOWHERE = "http://127.0.0.1:9/v1"


def run(*arguments: str, columns: int = 80, **environment: Any) -> click.testing.Result:
    """Run the command. Any exception except an exit fails the test."""
    done = click.testing.CliRunner().invoke(
        command, arguments, env={"COLUMNS": str(columns), **environment}
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert "Traceback" not in done.output
    return done


def urls(server: StandIn) -> tuple[str, ...]:
    """Return the options with a stand-in's addresses."""
    return (
        "--base-url",
        server.base_url,
        *(("--lmcache-url", server.lmcache_url) if server.lmcache_url else ()),
    )


def found_at(*arguments: str, **environment: Any) -> dict[str, Any]:
    """Return the JSON output, after checking that it names the exit code."""
    done = run(*QUICK, *arguments, "--json", **environment)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == found["exit_code"]
    return found


def found_in(server: StandIn, *options: str, **environment: str) -> dict[str, Any]:
    """Return the JSON output for a stand-in."""
    return found_at(*urls(server), *options, **environment)


def outcomes(found: dict[str, Any]) -> tuple[str, str, str]:
    """Return the outcomes of ``skip_save``, ``max_offload_tokens`` and both."""
    findings = found["findings"]
    return (
        findings["skip_save"]["outcome"],
        findings["max_offload_tokens"]["outcome"],
        findings["both"]["outcome"],
    )


def ways(found: dict[str, Any], arm: str = "both") -> set[str]:
    """Return the kinds of evidence on a hint."""
    return {evidence["way"] for evidence in found["findings"][arm]["evidence"]}


def codes(found: dict[str, Any]) -> list[str]:
    """Return the codes of the advice, most important first."""
    assert [note["text"] for note in found["advice"]] == found["notes"]
    return [note["code"] for note in found["advice"]]


def values(found: dict[str, Any], code: str) -> dict[str, Any]:
    """Return the values of a piece of advice."""
    (only,) = [note["values"] for note in found["advice"] if note["code"] == code]
    of_advice: dict[str, Any] = only
    return of_advice

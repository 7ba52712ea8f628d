"""Runs the doctor as the command line does, with waits that suit servers in this process."""

from __future__ import annotations

import json
from typing import Any

import click.testing

from otel_kvpolicy.cli.doctor.command import command
from otel_kvpolicy.standin import StandIn

QUICK = ("--rounds", "1", "--settle", "0.02")
NOWHERE = "http://127.0.0.1:9/v1"


def run(*arguments: str, columns: int = 80, **environment: str) -> click.testing.Result:
    """The command's end and what it printed. Whatever it raises but an exit is an error of the test."""
    done = click.testing.CliRunner().invoke(
        command, arguments, env={"COLUMNS": str(columns), **environment}
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert "Traceback" not in done.output
    return done


def urls(server: StandIn) -> tuple[str, ...]:
    """The options that lead to a stand-in."""
    return (
        "--base-url",
        server.base_url,
        *(("--lmcache-url", server.lmcache_url) if server.lmcache_url else ()),
    )


def found_at(*arguments: str, **environment: str) -> dict[str, Any]:
    """What the command prints as JSON; its exit code is the one that the JSON tells."""
    done = run(*QUICK, *arguments, "--json", **environment)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == found["exit_code"]
    return found


def found_in(server: StandIn, *options: str, **environment: str) -> dict[str, Any]:
    """What it finds in a stand-in."""
    return found_at(*urls(server), *options, **environment)


def outcomes(found: dict[str, Any]) -> tuple[str, str, str]:
    """Of ``skip_save``, ``max_offload_tokens`` and both."""
    findings = found["findings"]
    return (
        findings["skip_save"]["outcome"],
        findings["max_offload_tokens"]["outcome"],
        findings["both"]["outcome"],
    )


def ways(found: dict[str, Any], arm: str = "both") -> set[str]:
    """By what a finding is known."""
    return {each["way"] for each in found["findings"][arm]["evidence"]}


def notes(found: dict[str, Any]) -> str:
    """What there is to do."""
    return "\n".join(found["notes"])

"""The generator, its command, and the files it has built."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from otel_kvpolicy.cli.dashboards.command import command
from otel_kvpolicy.dashboards import files

COMMITTED = Path(__file__).parents[2] / "dashboards"


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner()


def test_committed_files_are_current(cli: CliRunner) -> None:
    done = cli.invoke(command, ["check", "--against", str(COMMITTED)])
    assert done.exit_code == 0, done.output


def test_building_twice_gives_the_same() -> None:
    """Also in another process, whose hashes are seeded otherwise."""
    code = "import json, otel_kvpolicy.dashboards as d; print(json.dumps(dict(d.files())))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert json.loads(other.stdout) == dict(files())


def test_export_then_check(cli: CliRunner, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert cli.invoke(command, ["export", str(folder)]).exit_code == 0
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(
        files()
    )
    assert cli.invoke(command, ["check", "--against", str(folder)]).exit_code == 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            lambda folder: (folder / "grafana/kv-policy.json").write_text("{}"),
            "not what the generator builds",
        ),
        (lambda folder: (folder / "rules/alerts.yaml").unlink(), "missing"),
        (lambda folder: (folder / "grafana/mine.json").write_text("{}"), "nothing builds it"),
    ],
)
def test_check_says_what_is_stale(cli: CliRunner, tmp_path: Path, fault: object, said: str) -> None:
    cli.invoke(command, ["export", str(tmp_path)])
    assert callable(fault)
    fault(tmp_path)
    done = cli.invoke(command, ["check", "--against", str(tmp_path)])
    assert done.exit_code == 1
    assert said in done.output


def test_build_needs_a_checkout(cli: CliRunner, tmp_path: Path) -> None:
    done = cli.invoke(command, ["build", "--to", str(tmp_path / "nowhere")])
    assert done.exit_code == 1
    assert "checkout" in done.output
    assert cli.invoke(command, ["build", "--to", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "grafana/kv-policy.json").is_file()

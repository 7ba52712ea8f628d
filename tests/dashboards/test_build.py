"""The generator, its built files, and the command ``otel-kvpolicy dashboards``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dashboards.source import build
from otel_kvpolicy.cli.dashboards import files as shipped
from otel_kvpolicy.cli.dashboards.command import command

REPOSITORY = Path(__file__).parents[2]
COMMITTED = REPOSITORY / "dashboards"


@pytest.fixture
def cli() -> CliRunner:
    return CliRunner()


@pytest.fixture
def no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command believe that it runs from an installed package."""
    monkeypatch.setattr("otel_kvpolicy.cli.dashboards.command.has_source", lambda: False)


def file_names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_committed_files_are_current(cli: CliRunner) -> None:
    done = cli.invoke(command, ["check", "--against", str(COMMITTED)])
    assert done.exit_code == 0, done.output


def test_the_files_that_a_wheel_ships_are_all_that_the_generator_builds() -> None:
    assert shipped.shipped_files() == build.files()


def test_building_twice_gives_the_same_files() -> None:
    """Another process has another hash seed, so an unordered set would show."""
    code = (
        "import json; from dashboards.source.build import files; print(json.dumps(dict(files())))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={"PYTHONHASHSEED": "7"},
    )
    assert json.loads(other.stdout) == build.files()


def test_the_generator_runs_as_a_module(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "dashboards.source.build", "--to", str(tmp_path)],
        check=True,
        capture_output=True,
        cwd=REPOSITORY,
    )
    assert file_names(tmp_path) == set(build.files())


@pytest.mark.parametrize("installed", [False, True])
def test_check_accepts_what_export_writes(
    cli: CliRunner, tmp_path: Path, installed: bool, request: pytest.FixtureRequest
) -> None:
    if installed:
        request.getfixturevalue("no_source")
    folder = tmp_path / "new"
    assert cli.invoke(command, ["export", str(folder)]).exit_code == 0
    assert file_names(folder) == set(build.files())
    assert cli.invoke(command, ["check", "--against", str(folder)]).exit_code == 0


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda folder: (folder / "grafana/kv-policy.json").write_text("{}"), "kv-policy.json: d"),
        (lambda folder: (folder / "rules/alerts.yaml").unlink(), "alerts.yaml: missing"),
        (lambda folder: (folder / "grafana/mine.json").write_text("{}"), "mine.json: unknown"),
        (lambda folder: (folder / "rules/mine.yaml").write_text("{}"), "mine.yaml: unknown"),
    ],
    ids=["changed", "missing", "unknown dashboard", "unknown rules"],
)
def test_check_names_each_file_that_is_not_current(
    cli: CliRunner, tmp_path: Path, change: Callable[[Path], object], reported: str
) -> None:
    cli.invoke(command, ["export", str(tmp_path)])
    change(tmp_path)
    done = cli.invoke(command, ["check", "--against", str(tmp_path)])
    assert done.exit_code == 1
    assert reported in done.output


def test_build_writes_into_an_existing_folder_only(cli: CliRunner, tmp_path: Path) -> None:
    assert cli.invoke(command, ["build", "--to", str(tmp_path / "nowhere")]).exit_code == 1
    assert not (tmp_path / "nowhere").exists()
    assert cli.invoke(command, ["build", "--to", str(tmp_path)]).exit_code == 0
    assert file_names(tmp_path) == set(build.files())


@pytest.mark.usefixtures("no_source")
def test_build_without_the_source_writes_nothing(cli: CliRunner, tmp_path: Path) -> None:
    done = cli.invoke(command, ["build", "--to", str(tmp_path)])
    assert done.exit_code == 1
    assert "dashboards export" in done.output, "the message names the command to use instead"
    assert file_names(tmp_path) == set()

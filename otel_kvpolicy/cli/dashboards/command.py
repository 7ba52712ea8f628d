"""The command ``otel-kvpolicy dashboards``: build, export and check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from .files import generated_files, has_source, shipped_files

_FOLDER = click.Path(file_okay=False, path_type=Path)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        click.echo(path)


@click.group()
def command() -> None:
    """Build, export and check the Grafana dashboards and Prometheus rules."""


@command.command()
@click.option(
    "--to",
    "folder",
    type=_FOLDER,
    default=Path("dashboards"),
    show_default=True,
    help="The clone's dashboards folder.",
)
def build(folder: Path) -> None:
    """Generate the dashboards and rules from their source (in a clone of the repository only)."""
    if not has_source():
        raise click.ClickException(
            "The dashboards' source is not part of the installed package. Run this command in a"
            " clone of the repository, or write the built files with"
            " 'otel-kvpolicy dashboards export FOLDER'."
        )
    if not folder.is_dir():
        raise click.ClickException(
            f"Folder {folder} does not exist. Run this command from the root of a clone, or pass"
            " --to FOLDER."
        )
    _write(folder, generated_files())


@command.command()
@click.argument("folder", type=_FOLDER)
def export(folder: Path) -> None:
    """Write the dashboards and rules into FOLDER.

    Import the dashboards into Grafana or provision the folder. List the rules under rule_files in
    Prometheus.
    """
    _write(folder, shipped_files())


@command.command()
@click.option(
    "--against",
    "folder",
    type=_FOLDER,
    default=Path("dashboards"),
    show_default=True,
    help="Folder with the files to check.",
)
def check(folder: Path) -> None:
    """Check that the files in a folder are current.

    An installed package compares them with the files it ships, a clone with what the source builds.
    Exit code 1 means that a file differs, is missing or is unknown.
    """
    files = generated_files() if has_source() else shipped_files()
    stale = _differences(folder, files)
    for line in stale:
        click.echo(line, err=True)
    if stale:
        remedy = "build" if has_source() else f"export {folder}"
        raise click.ClickException(f"Files are not current. Run: otel-kvpolicy dashboards {remedy}")
    click.echo(f"{len(files)} files are current")


def _differences(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Describe each file of ``folder`` that is not what ``files`` holds, one line per file."""
    lines = []
    for name, content in files.items():
        path = folder / name
        if not path.is_file():
            lines.append(f"{path}: missing")
        elif path.read_text(encoding="utf-8") != content:
            lines.append(f"{path}: differs")
    lines += [
        f"{path}: unknown file"
        for path in sorted([*folder.glob("grafana/*.json"), *folder.glob("rules/*.yaml")])
        if path.relative_to(folder).as_posix() not in files
    ]
    return lines

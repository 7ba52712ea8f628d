"""``otel-kvpolicy dashboards``: build, export and check."""

from __future__ import annotations

from pathlib import Path

import click

from ...dashboards.build import files

_FOLDER = click.Path(file_okay=False, path_type=Path)


def _write(folder: Path) -> None:
    for name, content in files().items():
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
    help="The checkout's folder.",
)
def build(folder: Path) -> None:
    """Write the built files into a checkout of the project."""
    if not folder.is_dir():
        raise click.ClickException(f"{folder} is not there: run this in a checkout, or use export")
    _write(folder)


@command.command()
@click.argument("folder", type=_FOLDER)
def export(folder: Path) -> None:
    """Write dashboards and rules into FOLDER.

    Grafana imports or provisions the dashboards; Prometheus takes the rules as rule_files.
    """
    _write(folder)


@command.command()
@click.option(
    "--against",
    "folder",
    type=_FOLDER,
    default=Path("dashboards"),
    show_default=True,
    help="Folder of built files.",
)
def check(folder: Path) -> None:
    """Say whether the built files are current. Exit code 1 if not."""
    stale = []
    for name, content in files().items():
        path = folder / name
        if not path.is_file():
            stale.append(f"{path}: missing")
        elif path.read_text(encoding="utf-8") != content:
            stale.append(f"{path}: not what the generator builds now")
    stale += [
        f"{path}: nothing builds it"
        for path in sorted(folder.glob("grafana/*.json"))
        if f"grafana/{path.name}" not in files()
    ]
    for line in stale:
        click.echo(line, err=True)
    if stale:
        raise click.ClickException("run: otel-kvpolicy dashboards build")
    click.echo(f"{len(files())} files are current")

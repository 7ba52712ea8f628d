"""An installed wheel exports and checks the dashboards without the generator."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dashboards.source.build import files

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

REPOSITORY = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def pip(*arguments: str | Path, cwd: Path) -> None:
    done = run(sys.executable, "-m", "pip", "--no-input", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["tree", "sdist"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the working tree, built directly and from a source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    source: Path = REPOSITORY
    if request.param == "sdist":
        done = run(
            *(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder),
            cwd=REPOSITORY,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (source,) = folder.glob("*.tar.gz")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


def dashboards(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``otel-kvpolicy dashboards`` from the installed package; dependencies are the venv's."""
    return run(
        *(sys.executable, "-m", "otel_kvpolicy.cli", "dashboards", *arguments),
        cwd=cwd,
        PYTHONPATH=str(installed),
    )


def test_the_wheel_holds_the_built_files_and_no_generator(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    prefix = "otel_kvpolicy/cli/dashboards/built/"
    built = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    assert built == set(files())
    assert not [name for name in names if name.startswith(("dashboards/", "tests/"))]
    assert not [name for name in names if name.endswith(("panels.py", ".png"))]


def test_the_command_runs_from_the_installed_package(installed: Path, tmp_path: Path) -> None:
    done = run(
        *(sys.executable, "-c", "import otel_kvpolicy; print(otel_kvpolicy.__file__)"),
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert Path(done.stdout.strip()).is_relative_to(installed)


def test_export_and_check_work_from_the_installed_package(installed: Path, tmp_path: Path) -> None:
    done = dashboards(installed, tmp_path, "export", "exported")
    assert done.returncode == 0, done.stderr
    for name, content in files().items():
        assert (tmp_path / "exported" / name).read_text(encoding="utf-8") == content
    assert dashboards(installed, tmp_path, "check", "--against", "exported").returncode == 0
    (tmp_path / "exported" / "rules" / "alerts.yaml").write_text("groups: []\n")
    assert dashboards(installed, tmp_path, "check", "--against", "exported").returncode == 1


def test_build_says_that_it_needs_a_clone(installed: Path, tmp_path: Path) -> None:
    done = dashboards(installed, tmp_path, "build", "--to", ".")
    assert done.returncode == 1
    assert "dashboards export" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []

"""Build the real telemetry servers (Collector, Prometheus, Alertmanager, Jaeger) from Go modules.

    python -m tools.real_telemetry.build [NAME...]

Builds what is missing and prints the folder that holds the programs. The folder's name is derived
from the pinned versions, so a changed version or Collector manifest leads to a new build.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "collector" / "builder.yaml"
VERSIONS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("versions.toml").read_text(encoding="utf-8")
)
COLLECTOR = "otelcol-kvpolicy"


def programs() -> dict[str, str]:
    """Return every program that can be built, and the name of what it is built from."""
    built = {COLLECTOR: COLLECTOR}
    for source, program in VERSIONS["programs"].items():
        built |= {Path(package).name: source for package in program["packages"]}
    return built


def cache_folder() -> Path:
    """Return the folder for programs and build files: ``$XDG_CACHE_HOME/otel-kvpolicy``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-kvpolicy"


def bin_folder() -> Path:
    """Return the folder of the pinned programs. Its name is a digest of everything pinned."""
    pinned = repr(VERSIONS).encode() + MANIFEST.read_bytes()
    return cache_folder() / "bin" / hashlib.sha256(pinned).hexdigest()[:12]


def build(names: list[str]) -> Path:
    """Build the named programs that are missing and return the folder that holds them.

    Raises:
        SystemExit: Go is missing, or a build failed.
    """
    folder = bin_folder()
    folder.mkdir(parents=True, exist_ok=True)
    sources = {programs()[name] for name in names if not (folder / name).exists()}
    for source in sorted(sources):
        started = time.monotonic()
        _say(f"building {source}; the first build of a version takes minutes")
        if source == COLLECTOR:
            _build_collector(folder)
        else:
            _build_program(folder, source)
        _say(f"built {source} in {time.monotonic() - started:.0f} s")
    return folder


def _build_collector(folder: Path) -> None:
    pinned = VERSIONS["collector"]
    work = cache_folder() / "build" / f"{COLLECTOR}-{pinned['version']}"
    work.mkdir(parents=True, exist_ok=True)
    _go(
        work,
        "install",
        "-trimpath",
        f"{pinned['builder']}@{pinned['version']}",
        GOBIN=str(work),
    )
    manifest = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    manifest["dist"]["output_path"] = str(work / "source")
    manifest["replaces"] = pinned["replaces"]
    (work / "builder.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    _run(work, str(work / "builder"), "--config=builder.yaml")
    _move(work / "source" / COLLECTOR, folder)


def _build_program(folder: Path, source: str) -> None:
    pinned = VERSIONS["programs"][source]
    work = cache_folder() / "build" / f"{source}-{pinned['version']}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    packages = [f"{pinned['module']}/{package}" for package in pinned["packages"]]
    _go(work, "mod", "init", "kvpolicy.example/programs")
    _go(work, "get", "-tool", *(f"{package}@{pinned['version']}" for package in packages))
    options = ["-trimpath", "-tags", pinned["tags"], "-ldflags", "-s -w"]
    _go(work, "build", *options, "-o", f"{work}{os.sep}", *packages)
    for package in packages:
        _move(work / Path(package).name, folder)


def _move(program: Path, folder: Path) -> None:
    """Put a finished program in place in one step, so that no test finds half of one."""
    shutil.move(program, folder / f".{program.name}")
    (folder / f".{program.name}").replace(folder / program.name)


def _go(work: Path, *arguments: str, **environment: str) -> None:
    _run(work, _go_command(), *arguments, **environment)


def _go_command() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        raise SystemExit(
            f"Go is not installed: install Go {VERSIONS['go']['minimum']} or newer, "
            "or put the programs on the PATH yourself."
        )
    return found


def _run(work: Path, *command: str, **environment: str) -> None:
    """Run a command at the lowest priority; its output is shown only if it fails."""
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    go = Path(_go_command()).parent
    path = os.pathsep.join((os.environ.get("PATH", ""), str(go)))
    done = subprocess.run(  # noqa: S603 - our own arguments
        [*nice, *command],
        cwd=work,
        env=os.environ | {"PATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        _say(done.stdout)
        raise SystemExit(f"failed: {' '.join(command)}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Parse the command line, build and print the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(programs())}"
    )
    given = parser.parse_args()
    unknown = set(given.names) - set(programs())
    if unknown:
        parser.error(f"unknown program {', '.join(sorted(unknown))}")
    sys.stdout.write(f"{build(given.names or list(programs()))}\n")


if __name__ == "__main__":
    main()

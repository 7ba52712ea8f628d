"""Run the tests of openai-python or pydantic-ai without and with the instrumentation, and compare.

The same tests must pass.

    python tools/upstream_suites.py openai
    python tools/upstream_suites.py pydantic-ai
    python tools/upstream_suites.py pydantic-ai --version 2.33.0 --source ~/src/pydantic-ai \\
        --with clai==2.33.0 openai==3.0.0

The tests come from the published source distribution, which is downloaded at run time. The last
source distribution of pydantic-ai that has tests is 1.24.0. For a later ``--version``, pass its
source tree with ``--source``, and the versions in its lock file with ``--with``.

Each suite has its own virtual environment in the working directory, which later runs use again. A
loopback stand-in answers the tests that need a server. It has two endpoints; tests of other
endpoints fail in both runs.

This file is also a pytest plugin (``-p upstream_suites``), which records the outcomes and turns the
instrumentation on if the environment asks for it.
"""

# ruff: noqa: S603, T201 - a command-line tool that starts pip and pytest

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import venv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
ON, OUTCOMES = "UPSTREAM_SUITES_INSTRUMENTED", "UPSTREAM_SUITES_OUTCOMES"


@dataclass(frozen=True)
class Suite:
    """The tests of a project that call the patched functions.

    Attributes:
        distribution: requirement for the source distribution, with ``{version}`` to fill in.
        installed: requirement for the tested package, with ``{version}`` to fill in.
        requirements: further packages that the tests import.
        tests: files and folders; those that a version does not have are left out.
        version: version to test by default.
        pins: packages that ``version`` was released with, if its tests fail with newer ones.
    """

    distribution: str
    installed: str
    requirements: tuple[str, ...]
    tests: tuple[str, ...]
    version: str
    pins: tuple[str, ...] = ()


SUITES = {
    "openai": Suite(
        "openai=={version}",
        "openai[aiohttp,realtime]=={version}",
        (
            "pytest>=9",
            "pytest-asyncio>=1.4",
            "inline-snapshot>=0.28",
            "rich",
            "trio",
            "anyio",
            "azure-identity",
            "botocore",
            "Pillow",
            "httpx",
        ),
        (
            "tests/api_resources/chat/test_completions.py",
            "tests/api_resources/test_responses.py",
            "tests/lib/chat",
            "tests/lib/responses",
            "tests/lib/streaming",
            "tests/lib/test_azure.py",
            "tests/test_client.py",
            "tests/test_legacy_response.py",
            "tests/test_response.py",
            "tests/test_streaming.py",
        ),
        "3.57.0",
    ),
    "pydantic-ai": Suite(
        "pydantic-ai=={version}",
        "pydantic-ai-slim[openai,google,anthropic,logfire,mcp,evals]=={version}",
        (
            "pytest",
            "pytest-mock",
            "pytest-recording",
            "inline-snapshot",
            "dirty-equals",
            "brotli",
            "httpx",
            "blockbuster>=1.5.26,<1.6",
        ),
        (
            "tests/models/test_openai.py",
            "tests/models/test_openai_responses.py",
            "tests/models/test_openai_legacy_timeout.py",
            "tests/models/test_openai_prompt_cache.py",
            "tests/models/test_instrumented.py",
            "tests/models/test_fallback.py",
            "tests/test_direct.py",
        ),
        "1.24.0",
        (
            "openai==2.8.1",
            "logfire==4.15.1",
            "opentelemetry-api==1.38.0",
            "opentelemetry-sdk==1.38.0",
            "opentelemetry-instrumentation==0.59b0",
            "pydantic==2.11.7",
            "anthropic==0.75.0",  # without it, the Responses tests are skipped
            "genai-prices==0.0.40",  # counts the tokens in the snapshots
            "google-genai==1.51.0",
            "mcp==1.18.0",
            "pytest==8.3.4",
            "inline-snapshot==0.29.3",
            "vcrpy==7.0.0",
        ),
    ),
}


def main() -> int:
    """Run one suite twice and print the differences. Return 0 if there are none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--version", help="version of the tested package")
    parser.add_argument(
        "--with", dest="pins", nargs="+", help="further packages to install, with their versions"
    )
    parser.add_argument("--source", type=Path, help="source tree to take the tests from")
    parser.add_argument("--workdir", type=Path, default=REPOSITORY / ".cache" / "upstream")
    parser.add_argument("--tests", nargs="+", help="tests to run instead of the suite's selection")
    options = parser.parse_args()
    suite = SUITES[options.suite]
    version = options.version or suite.version
    workdir = options.workdir.resolve() / f"{options.suite}-{version}"
    pins = options.pins or (suite.pins if version == suite.version else ())
    python = _environment(suite, version, pins, workdir)
    tree = _tree(suite, version, options.source, python, workdir)
    tests = [
        test for test in options.tests or suite.tests if (tree / test.partition("::")[0]).exists()
    ]
    without, instrumented = (_run(python, tree, tests, workdir, on=on) for on in (False, True))
    different = _compare(without, instrumented)
    if different:
        # Tests that compare the whole request body find the hint in it. Observe mode sends none.
        observed = _run(python, tree, different, workdir, on=True, mode="observe")
        different = [
            test for test in different if observed["tests"].get(test) != without["tests"].get(test)
        ]
        print(f"{len(different)} of them also differ in observe mode, which sends no hint")
    return 1 if different or not instrumented["decisions"] else 0


def _environment(suite: Suite, version: str, pins: Iterable[str], workdir: Path) -> Path:
    """Return the Python of the suite's virtual environment, which is created if it is missing."""
    python = workdir / "venv" / "bin" / "python"
    if not (workdir / "ready").exists():
        venv.create(workdir / "venv", with_pip=True)
        wanted = [
            suite.installed.format(version=version),
            *suite.requirements,
            "opentelemetry-sdk",
            *pins,
        ]
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--editable", REPOSITORY, *wanted],
            check=True,
        )
        (workdir / "ready").touch()
    return python


def _tree(suite: Suite, version: str, source: Path | None, python: Path, workdir: Path) -> Path:
    """Return the folder that has the project's ``tests`` folder."""
    if source is not None:
        return source
    tree = workdir / "source"
    if not tree.exists():
        fetch = [
            str(python),
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            str(workdir),
        ]
        subprocess.run([*fetch, suite.distribution.format(version=version)], check=True)
        with tarfile.open(next(workdir.glob("*.tar.gz"))) as packed:
            packed.extractall(tree, filter="data")
    return next(tree.glob("*/tests")).parent


def _run(
    python: Path,
    tree: Path,
    tests: Iterable[str],
    workdir: Path,
    *,
    on: bool,
    mode: str = "enforce",
) -> dict[str, Any]:
    from otel_kvpolicy.standin import StandIn

    outcomes = workdir / f"outcomes-{'with' if on else 'without'}.json"
    outcomes.unlink(missing_ok=True)
    with StandIn(models=_AnyModel(("stand-in",))) as server:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "TEST_API_BASE_URL": server.base_url,
            OUTCOMES: str(outcomes),
            ON: "1" if on else "",
            "KV_CACHE_MODE": mode,
        }
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "upstream_suites",
            "-o",
            "addopts=",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            *tests,
        ]
        done = subprocess.run(
            command, cwd=tree, env=environment, check=False, capture_output=True, text=True
        )
    recorded: dict[str, Any] = (
        json.loads(outcomes.read_text(encoding="utf-8")) if outcomes.exists() else {}
    )
    if not recorded.get("tests"):
        sys.exit(f"no test ran:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return recorded


class _AnyModel(tuple[str, ...]):
    """Served model names that include every name."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return True


def _compare(without: dict[str, Any], instrumented: dict[str, Any]) -> list[str]:
    """Print the outcomes of both runs. Return the tests whose outcomes differ."""
    for title, run in (("without", without), ("with", instrumented)):
        counts = sorted(Counter(run["tests"].values()).items())
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts)
        print(f"{title:8} {outcomes}; {run['decisions']} decisions")
    tests = without["tests"].keys() | instrumented["tests"].keys()
    different = [
        test
        for test in sorted(tests)
        if without["tests"].get(test) != instrumented["tests"].get(test)
    ]
    for test in different:
        print(f"  {test}: {without['tests'].get(test)} -> {instrumented['tests'].get(test)}")
        print(instrumented["why"].get(test, ""))
    print("the same tests pass" if not different else f"{len(different)} differ")
    return different


# --- the plugin -----------------------------------------------------------------------------------

_outcomes: dict[str, str] = {}
_why: dict[str, str] = {}
_metrics: list[Any] = []


def pytest_configure() -> None:
    """Turn the instrumentation on if the environment asks for it. Telemetry stays in memory."""
    if not os.environ.get(ON):
        return
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    from otel_kvpolicy import KVPolicyInstrumentor

    _metrics.append(InMemoryMetricReader())
    KVPolicyInstrumentor().instrument(
        tracer_provider=TracerProvider(), meter_provider=MeterProvider(_metrics)
    )


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst outcome of a test's phases."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = (
            report.outcome if report.when == "call" or report.outcome == "skipped" else "error"
        )
        if report.outcome == "failed":
            _why[report.nodeid] = str(report.longreprtext)[-3000:]


def pytest_sessionfinish() -> None:
    """Write the outcomes to the file that the runner reads."""
    recorded = {"tests": _outcomes, "why": _why, "decisions": sum(map(_decisions, _metrics))}
    Path(os.environ[OUTCOMES]).write_text(json.dumps(recorded), encoding="utf-8")


def _decisions(reader: Any) -> int:
    data = reader.get_metrics_data()
    return sum(
        point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "kvpolicy.decisions"
        for point in metric.data.data_points
    )


if __name__ == "__main__":
    sys.exit(main())

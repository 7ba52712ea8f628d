"""Test sessions for other versions: openai, Python, pydantic-ai, the oldest dependencies.

Run them with ``make matrix``; nox keeps and reuses their environments. One more session installs
other instrumentations beside this one.
"""

from __future__ import annotations

import os

import nox

nox.options.default_venv_backend = "uv|venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = bool(os.environ.get("CI"))
nox.options.download_python = "never"

CLIENT = (
    "tests/requests",
    "tests/instrumentation",
    "tests/test_hint.py",
    "tests/test_targets.py",
)
"""What depends on the version of openai."""

CORE = (*CLIENT, "tests/policy", "tests/test_settings.py")
"""What runs in an application. The tests of the CLI run once, with the newest of everything."""

OLDEST = (
    "openai==1.66.0",
    "opentelemetry-api==1.33.0",
    "opentelemetry-sdk==1.33.0",
    "opentelemetry-instrumentation==0.54b0",
    "opentelemetry-instrumentation-httpx==0.54b0",
    "opentelemetry-distro==0.54b0",
    "opentelemetry-exporter-otlp==1.33.0",
    "pydantic==2.10.0",
    "wrapt==1.16.0",
)

AGENT_UTILITIES = "agent-utilities==1.26.4; python_version>='3.11'"
"""The last agent-utilities that adds its own hint to pydantic-ai's model settings."""

OTHERS = (
    "opentelemetry-instrumentation-genai-openai",
    "openinference-instrumentation-openai",
    "opentelemetry-instrumentation-openai",
    "logfire",
    "pydantic-ai-slim[openai]",
)
"""The instrumentations that must work beside this package's."""


def _install(session: nox.Session, *constraints: str) -> None:
    """Install this package, what its tests import, and the versions asked for."""
    session.install(
        "-e",
        ".[demo]",
        *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "matrix"),
        *constraints,
    )


def _test(session: nox.Session, *paths: str) -> None:
    """Run the tests of these paths, also those that are marked slow."""
    session.run("pytest", "-q", "-m", "not e2e", *paths, *session.posargs)


@nox.session
@nox.parametrize("openai", ["openai==1.109.1", "openai>=2,<3", "openai>=3"], ids=["1", "2", "3"])
def openai(session: nox.Session, openai: str) -> None:
    """Test with the last openai 1.x, the last 2.x, and the newest 3.x."""
    _install(session, openai)
    _test(session, *CLIENT)


@nox.session
def oldest(session: nox.Session) -> None:
    """Test with the lower bounds of the dependencies in pyproject.toml."""
    _install(session, *OLDEST)
    _test(session, *CORE)


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def python(session: nox.Session) -> None:
    """Test with each supported Python that is installed."""
    _install(session)
    _test(session, *CORE)


@nox.session(name="pydantic-ai")
@nox.parametrize(
    "versions",
    [("pydantic-ai-slim[openai]==1.107.10", "openai==2.29.0"), ("pydantic-ai-slim[openai]>=2.68",)],
    ids=["1", "2"],
)
def pydantic_ai(session: nox.Session, versions: tuple[str, ...]) -> None:
    """Test with the last pydantic-ai 1.x and the oldest openai it allows, and with the newest."""
    _install(session, *versions, AGENT_UTILITIES)
    _test(session, "tests/pydantic_ai")


@nox.session
def cohabitation(session: nox.Session) -> None:
    """Test with each other instrumentation switched on before and after this one."""
    _install(session, *OTHERS)
    _test(session, "tests/cohabitation")

"""The test matrix: every openai generation, every Python, the oldest and the newest dependencies, pydantic-ai, the other instrumentations.

``make matrix``; nox reuses its venvs.
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False

CORE = (
    "tests/policy",
    "tests/requests",
    "tests/instrumentation",
    "tests/test_settings.py",
    "tests/test_hint.py",
    "tests/test_targets.py",
)
"""What a user's process runs. The command line's own tests run once, on the newest of everything."""

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
"""Folds a hint of its own into the settings of pydantic-ai; the last release that does."""

OTHERS = (
    "opentelemetry-instrumentation-genai-openai",
    "openinference-instrumentation-openai",
    "opentelemetry-instrumentation-openai",
    "logfire",
    "pydantic-ai-slim[openai]",
)
"""The instrumentations that ours must live beside."""


def _install(session: nox.Session, *constraints: str) -> None:
    session.install(
        "-e",
        ".[demo]",
        *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "matrix"),
        *constraints,
    )


@nox.session
@nox.parametrize("openai", ["openai==1.109.1", "openai>=2,<3", "openai>=3"], ids=["1", "2", "3"])
def openai(session: nox.Session, openai: str) -> None:
    """The last 1.x, the last 2.x and the newest 3.x."""
    _install(session, openai)
    session.run("pytest", "-q", *CORE, *session.posargs)


@nox.session
def oldest(session: nox.Session) -> None:
    """The lower bounds that pyproject.toml promises."""
    _install(session, *OLDEST)
    session.run("pytest", "-q", *CORE, *session.posargs)


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def python(session: nox.Session) -> None:
    """Every supported Python that is installed."""
    _install(session)
    session.run("pytest", "-q", *CORE, *session.posargs)


@nox.session(name="pydantic-ai")
@nox.parametrize(
    "versions",
    [("pydantic-ai-slim[openai]==1.107.10", "openai==2.29.0"), ("pydantic-ai-slim[openai]>=2.68",)],
    ids=["1", "2"],
)
def pydantic_ai(session: nox.Session, versions: tuple[str, ...]) -> None:
    """The last 1.x with the oldest openai it takes, and the newest."""
    _install(session, *versions, AGENT_UTILITIES)
    session.run("pytest", "-q", "tests/pydantic_ai", *session.posargs)


@nox.session
def cohabitation(session: nox.Session) -> None:
    """Beside every other instrumentation, before and after it."""
    _install(session, *OTHERS)
    session.run("pytest", "-q", "tests/cohabitation", *session.posargs)

"""The process side: is the instrumentor installed and on, do the settings parse, where does telemetry go, may this server be hinted."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Final, Literal, NamedTuple

import httpx2
from opentelemetry.instrumentation.dependencies import get_dependency_conflicts

from ... import settings
from ...hints.targets import Origin
from ...instrumentation import KVPolicyInstrumentor
from ...version import __version__

State = Literal["ok", "warn", "fail"]

_ENTRY_POINT: Final = "kvpolicy"
_DISABLED: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_EXPORTERS: Final = {"traces": "OTEL_TRACES_EXPORTER", "metrics": "OTEL_METRICS_EXPORTER"}


class Check(NamedTuple):
    """One thing looked at.

    Attributes:
        name: what.
        state: ``ok``, ``warn`` or ``fail``.
        text: what was found, and what to do about it.
    """

    name: str
    state: State
    text: str


def check_process(base_url: str) -> list[Check]:
    """Looks at this environment: a process started from it with ``opentelemetry-instrument`` would find the same."""
    return [
        _instrumentor(),
        _openai(),
        *(_exporter(signal) for signal in _EXPORTERS),
        _settings(),
        _policy(),
        _target(base_url),
    ]


def _instrumentor() -> Check:
    name = "instrumentor"
    if not list(metadata.entry_points(group="opentelemetry_instrumentor", name=_ENTRY_POINT)):
        return Check(
            name,
            "fail",
            "its entry point is not installed here: install otel-kvpolicy where the application runs",
        )
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Check(
            name, "fail", "OTEL_SDK_DISABLED is true: decisions are taken, but none is recorded"
        )
    disabled = {part.strip() for part in os.environ.get(_DISABLED, "").split(",")}
    if disabled & {_ENTRY_POINT, "*"}:
        return Check(
            name, "fail", f"{_DISABLED} names it: opentelemetry-instrument would leave it off"
        )
    launcher = _version("opentelemetry-distro")
    if launcher is None:
        return Check(
            name,
            "warn",
            f"{__version__}, but opentelemetry-distro is not installed: call KVPolicyInstrumentor().instrument() in code",
        )
    return Check(
        name,
        "ok",
        f"{__version__}, enabled under opentelemetry-instrument (opentelemetry-distro {launcher})",
    )


def _openai() -> Check:
    conflict = get_dependency_conflicts(KVPolicyInstrumentor().instrumentation_dependencies())
    if conflict is not None:
        return Check("openai", "fail", f"{conflict}: the instrumentor does nothing")
    return Check("openai", "ok", _version("openai") or "installed")


def _exporter(signal: str) -> Check:
    variable = _EXPORTERS[signal]
    if _version("opentelemetry-sdk") is None:
        return Check(signal, "fail", "opentelemetry-sdk is not installed: nothing is recorded")
    told = os.environ.get(variable, "").strip()
    if not told and _version("opentelemetry-distro") is None:
        return Check(
            signal,
            "warn",
            f"{variable} is not set: they go where the application's own code sends them",
        )
    wanted = [part.strip() for part in (told or "otlp").split(",")]
    if wanted == ["none"]:
        return Check(signal, "warn", f"{variable} is none: they go nowhere")
    protocol = (
        os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "grpc"
    )
    names = [
        ("otlp_proto_http" if protocol.startswith("http/proto") else "otlp_proto_grpc")
        if part == "otlp"
        else part
        for part in wanted
    ]
    missing = [
        name
        for name in names
        if not list(metadata.entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
    ]
    if missing:
        return Check(
            signal,
            "fail",
            f"exporter {', '.join(missing)} is not installed ({variable}={told or 'otlp, by default'})",
        )
    where = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    return Check(signal, "ok", f"{', '.join(names)} to {where or 'the default endpoint'}")


def _settings() -> Check:
    with _warnings_of("otel_kvpolicy") as problems:
        knobs = settings.configure()
    known = {settings.env_name(field) for field in settings.Settings.model_fields} | {
        settings.CONFIG_FILE
    }
    problems += [
        f"{name} is no setting"
        for name in sorted(os.environ)
        if name.startswith(settings.PREFIX) and name not in known
    ]
    if knobs.redis_url is not None and _version("redis") is None:
        problems.append("KV_CACHE_REDIS_URL needs redis: pip install 'otel-kvpolicy[redis]'")
    if problems:
        return Check("settings", "fail", "; ".join(problems))
    defaults = settings.Settings()
    changed = [
        f"{settings.env_name(field)}={settings.shown(field, getattr(knobs, field))}"
        for field in settings.Settings.model_fields
        if getattr(knobs, field) != getattr(defaults, field)
    ]
    return Check("settings", "ok", ", ".join(changed) or "all at their defaults")


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def _warnings_of(name: str) -> Iterator[list[str]]:
    handler, logger = _Keep(), logging.getLogger(name)
    passed_on, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)
        logger.propagate = passed_on


def _policy() -> Check:
    knobs = settings.current()
    if not knobs.layering:
        return Check("policy", "warn", "KV_CACHE_LAYERING is off: nothing is decided or sent")
    if knobs.mode == "observe":
        return Check(
            "policy",
            "warn",
            "observe mode: decisions are recorded, nothing is sent (KV_CACHE_MODE=enforce sends)",
        )
    return Check(
        "policy", "ok", f"enforce mode, sends {knobs.hint_keys.replace('both', 'both keys')}"
    )


def _target(base_url: str) -> Check:
    origin = Origin.of(httpx2.URL(base_url))
    targets = settings.current().targets
    if not targets.allow(origin):
        return Check(
            "target",
            "fail",
            f"KV_CACHE_TARGETS={targets} keeps the hint from {origin.host}:{origin.port}",
        )
    return Check(
        "target",
        "ok",
        f"KV_CACHE_TARGETS={targets} lets the hint go to {origin.host}:{origin.port}",
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

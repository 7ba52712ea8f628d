"""Check the process side: instrumentor, openai, exporters, settings, and the targets."""

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
_SIGNALS: Final = ("traces", "metrics")


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: what was checked.
        state: ``ok``, ``warn`` or ``fail``.
        code: what was found, for scripts.
        text: what was found, and what to do about it.
    """

    name: str
    state: State
    code: str
    text: str


def check_process(base_url: str) -> list[Check]:
    """Check this environment, which a process under ``opentelemetry-instrument`` would inherit.

    Args:
        base_url: vLLM's API, to see whether it gets the hint.
    """
    return [
        _instrumentor(),
        _openai(),
        *(_exporter(signal) for signal in _SIGNALS),
        _settings(),
        _policy(),
        _target(base_url),
    ]


def _instrumentor() -> Check:
    name = "instrumentor"
    if not list(metadata.entry_points(group="opentelemetry_instrumentor", name=_ENTRY_POINT)):
        text = "not installed in this environment: install otel-kvpolicy where the application runs"
        return Check(name, "fail", "not_installed", text)
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        text = "OTEL_SDK_DISABLED is true: calls are decided, but nothing is recorded"
        return Check(name, "fail", "sdk_disabled", text)
    disabled = {part.strip() for part in os.environ.get(_DISABLED, "").split(",")}
    if disabled & {_ENTRY_POINT, "*"}:
        text = f"disabled by {_DISABLED}: remove {_ENTRY_POINT} or * from it"
        return Check(name, "fail", "disabled", text)
    distro = _version("opentelemetry-distro")
    if distro is None:
        text = (
            f"{__version__}, but opentelemetry-distro is not installed: install it, or call "
            "KVPolicyInstrumentor().instrument() in code"
        )
        return Check(name, "warn", "no_distro", text)
    text = f"{__version__}, loaded by opentelemetry-instrument (opentelemetry-distro {distro})"
    return Check(name, "ok", "enabled", text)


def _openai() -> Check:
    conflict = get_dependency_conflicts(KVPolicyInstrumentor().instrumentation_dependencies())
    if conflict is not None:
        text = f"{conflict}: the instrumentor does nothing"
        return Check("openai", "fail", "unsupported", text)
    return Check("openai", "ok", "supported", _version("openai") or "installed")


def _exporter(signal: str) -> Check:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    if _version("opentelemetry-sdk") is None:
        text = f"opentelemetry-sdk is not installed: {signal} are not recorded"
        return Check(signal, "fail", "no_sdk", text)
    value = os.environ.get(variable, "").strip()
    if not value and _version("opentelemetry-distro") is None:
        text = f"{variable} is not set: only the application's own code can export {signal}"
        return Check(signal, "warn", "set_in_code", text)
    wanted = [part.strip() for part in (value or "otlp").split(",")]
    if wanted == ["none"]:
        return Check(signal, "warn", "none", f"{variable}=none: {signal} are not exported")
    names = [_otlp_exporter(signal) if part == "otlp" else part for part in wanted]
    missing = [
        name
        for name in names
        if not list(metadata.entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
    ]
    if missing:
        setting = f"{variable}={value}" if value else f"{variable} is not set, so it is otlp"
        text = f"exporter {', '.join(missing)} is not installed ({setting})"
        return Check(signal, "fail", "missing_exporter", text)
    endpoint = _otlp_setting(signal, "ENDPOINT") or "the default endpoint"
    return Check(signal, "ok", "exported", f"{', '.join(names)} to {endpoint}")


def _otlp_exporter(signal: str) -> str:
    protocol = _otlp_setting(signal, "PROTOCOL") or "grpc"
    return "otlp_proto_http" if protocol.startswith("http/proto") else "otlp_proto_grpc"


def _otlp_setting(signal: str, name: str) -> str | None:
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
    return own or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")


def _settings() -> Check:
    with _warnings_of("otel_kvpolicy") as problems:
        active = settings.configure()
    fields = settings.Settings.model_fields
    known = {settings.env_name(field) for field in fields} | {settings.CONFIG_FILE}
    problems += [
        f"{name}: unknown setting"
        for name in sorted(os.environ)
        if name.startswith(settings.PREFIX) and name not in known
    ]
    if active.redis_url is not None and _version("redis") is None:
        problems.append("KV_CACHE_REDIS_URL needs redis: pip install 'otel-kvpolicy[redis]'")
    if problems:
        return Check("settings", "fail", "problems", "; ".join(problems))
    defaults = settings.Settings()
    changed = [
        f"{settings.env_name(field)}={settings.shown(field, getattr(active, field))}"
        for field in fields
        if getattr(active, field) != getattr(defaults, field)
    ]
    if changed:
        return Check("settings", "ok", "changed", ", ".join(changed))
    return Check("settings", "ok", "defaults", "all at their defaults")


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def _warnings_of(name: str) -> Iterator[list[str]]:
    """Collect what the logger warns of, instead of passing it on."""
    handler, logger = _Collector(), logging.getLogger(name)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


def _policy() -> Check:
    active = settings.current()
    if not active.layering:
        text = "KV_CACHE_LAYERING is off: no call is decided, no hint is sent"
        return Check("policy", "warn", "off", text)
    if active.mode == "observe":
        text = "observe mode: decisions are recorded, no hint is sent (KV_CACHE_MODE=enforce sends)"
        return Check("policy", "warn", "observe", text)
    keys = active.hint_keys.replace("both", "both keys")
    dialect = "" if str(active.dialect) == "lmcache" else f"; dialect {active.dialect}"
    return Check("policy", "ok", "enforce", f"enforce mode: sends {keys}{dialect}")


def _target(base_url: str) -> Check:
    origin = Origin.of(httpx2.URL(base_url))
    targets = settings.current().targets
    server = f"{origin.host}:{origin.port}"
    if not targets.allow(origin):
        text = f"KV_CACHE_TARGETS={targets} excludes {server}: it gets no hint"
        return Check("target", "fail", "excluded", text)
    return Check("target", "ok", "allowed", f"KV_CACHE_TARGETS={targets} includes {server}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

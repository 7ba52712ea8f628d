"""Every setting with its default, read live: code over environment over an optional TOML file.

Reading takes about a microsecond while nothing changes, so each call reads the settings again, and
they can be changed while the process runs.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)
from pydantic_core import PydanticCustomError

from ._fast import environment_reader
from .hints.dialects import Dialects
from .hints.lmcache import HintKeys
from .hints.targets import Targets
from .policy.calibration import AUTO, Auto
from .policy.thresholds import DEFAULT_CHARS_PER_TOKEN, SETTINGS, ThresholdsRule

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pragma: no cover

_log = logging.getLogger("otel_kvpolicy")

PREFIX: Final = "KV_CACHE_"
CONFIG_FILE: Final = "KV_CACHE_CONFIG_FILE"
"""Path of a TOML file whose top-level keys are the settings' own names, such as
``KV_CACHE_MODE = "observe"``."""

_FILE_CHECK_SECONDS: Final = 1.0
_MAX_WARNINGS: Final = 1000

_TRUE: Final = frozenset({"1", "true", "yes"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})

_Count = Annotated[int, Field(ge=0)]


def _targets(value: Any) -> Any:
    return Targets(value) if isinstance(value, str) else value


def _dialects(value: Any) -> Any:
    return Dialects(value) if isinstance(value, str) else value


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _is_true(value: Any) -> Any:
    """Read the master switch as the original policy does: any other word turns it off."""
    return value.strip().lower() in _TRUE if isinstance(value, str) else value


def _ratio(value: Any, read_number: ValidatorFunctionWrapHandler) -> float:
    if isinstance(value, Auto) or _lower(value) == "auto":
        return AUTO
    try:
        number: float = read_number(value)
    except ValidationError:
        raise PydanticCustomError("ratio", "It must be a number or auto") from None
    return max(1.0, number)


_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")


def _header_name(value: str) -> str:
    name = value.strip()
    if not _HEADER.fullmatch(name):
        raise ValueError("it is not the name of a header, such as x-kv-affinity")
    return name


if TYPE_CHECKING:
    _ThresholdSettings = BaseModel
else:
    # One field for each entry of the thresholds table, so that a new entry needs no change here.
    _ThresholdSettings = create_model(
        "_ThresholdSettings",
        **{
            name: (
                _Count if each.default is not None else _Count | None,
                Field(default=each.default, description=each.meaning),
            )
            for name, each in SETTINGS.items()
        },
    )


class Settings(_ThresholdSettings):
    """The settings in force. Field ``x`` is set by ``KV_CACHE_X``; :func:`env_name` spells it.

    The fields of the thresholds come from :data:`~otel_kvpolicy.policy.thresholds.THRESHOLDS`.
    Every field is documented by its ``Field`` description. The table in the documentation is
    generated from these descriptions.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )

    layering: Annotated[bool, BeforeValidator(_is_true)] = Field(
        default=True,
        description="`1`, `true` or `yes` turns the policy on. Anything else turns it off: nothing "
        "is decided or sent, but calls are still traced and counted",
    )
    chars_per_token: Annotated[float, WrapValidator(_ratio)] = Field(
        default=DEFAULT_CHARS_PER_TOKEN,
        description="characters that count as one token; a number below 1 counts as 1. `auto` "
        "learns them from the token counts of the server, for each model and kind of text",
    )
    mode: Annotated[Literal["enforce", "observe"], BeforeValidator(_lower)] = Field(
        default="enforce", description="`observe` decides and records, but sends nothing"
    )
    targets: Annotated[Targets, BeforeValidator(_targets)] = Field(
        default=Targets("auto"),
        description="servers that may be sent the hint: `auto` (all but hosted vendors known to "
        "reject unknown fields), `all`, or host patterns such as `gb10.local,*.lan:8000`",
    )
    dialect: Annotated[Dialects, BeforeValidator(_dialects)] = Field(
        default=Dialects("lmcache"),
        description="how servers are told what to store: `lmcache`, or `vllm-offload` for vLLM's "
        "own `OffloadingConnector`; for single servers as in `lmcache,vllm-offload@*.lan:8001`",
    )
    hint_keys: Annotated[HintKeys, BeforeValidator(_lower)] = Field(
        default="both",
        description="LMCache keys to send: its in-process connector reads `skip_save`, its "
        "multi-process server reads `max_offload_tokens`",
    )
    rule: Annotated[Literal["thresholds", "adaptive"], BeforeValidator(_lower)] = Field(
        default="thresholds",
        description="active rule: `thresholds` compares signals with the thresholds above, "
        "`adaptive` learns which calls come back and what a place in the cache is worth",
    )
    shadow: bool = Field(
        default=False,
        description="`true` also records what the other rule would have decided "
        "(`kvpolicy.shadow.decision`)",
    )
    partial_store: bool = Field(
        default=False,
        description="`true` lets the adaptive rule store the part of a skipped call that was seen "
        "before (`max_offload_tokens`)",
    )
    cached_token_stats: bool = Field(
        default=False,
        description="`true` asks LMCache's multi-process server for its own share of the cached "
        "tokens of each call (`cached_token_stats`)",
    )
    state_file: str | None = Field(
        default=None,
        description="file that keeps what the adaptive rule has learned across restarts; holds "
        "counts, no content",
    )
    redis_url: str | None = Field(
        default=None,
        repr=False,  # may hold a password
        description="Redis or Valkey (`redis://host:6379/0`) through which the processes of a "
        "fleet share what the adaptive rule learns; needs the extra `redis`",
    )
    decision_log: str | None = Field(
        default=None,
        description="file that gets one line of JSON for each decided call, without content, for "
        "`explain`, `replay` and Loki",
    )
    decision_log_bytes: Annotated[int, Field(ge=1)] = Field(
        default=64 << 20,
        description="size in bytes at which the decision log is rotated; three older files are "
        "kept",
    )
    affinity_header: Annotated[str, AfterValidator(_header_name)] | None = Field(
        default=None,
        description="request header for a hash of the stable prefix, such as "
        "`X-SMG-Routing-Key`. A load balancer can use it to send calls that share the prefix to "
        "the same replica; off unless set",
    )
    affinity_scope: Annotated[Literal["prefix", "opening"], BeforeValidator(_lower)] = Field(
        default="prefix",
        description="what the affinity header identifies: `prefix` (tools and system prompt) or "
        "`opening` (also the messages before the first model reply, so each conversation keeps its "
        "replica)",
    )
    affinity_key: str | None = Field(
        default=None,
        repr=False,  # it allows testing guesses of prompts against hashes
        description="secret key of the hashes that advisors and the affinity header get; must be "
        "the same in all processes, and is random for each process unless set",
    )

    @property
    def uses_adaptive(self) -> bool:
        """True if the adaptive rule is active or shadowing."""
        return self.shadow or self.rule == "adaptive"

    @property
    def thresholds(self) -> dict[str, int | None]:
        """The thresholds in force by settings field; None if one is off."""
        return {name: getattr(self, name) for name in SETTINGS}

    @cached_property
    def policy(self) -> ThresholdsRule:
        """The thresholds rule with these settings."""
        return ThresholdsRule(
            self.thresholds, enabled=self.layering, chars_per_token=self.chars_per_token
        )


def env_name(field: str) -> str:
    """Return the environment variable of a field: ``KV_CACHE_MODE`` for ``mode``."""
    return PREFIX + field.upper()


def shown(field: str, value: Any) -> str:
    """Return the display form of a value. Values that may hold a password are masked."""
    return str(value) if value is None or Settings.model_fields[field].repr else "***"


def unreadable(field: str, value: Any, why: str) -> str:
    """Return a message that says that ``value`` cannot be used, and why.

    Neither is quoted if the value may hold a password, such as a URL.
    """
    if not Settings.model_fields[field].repr or "@" in f"{value!r}":
        return (
            f"{env_name(field)}: cannot read its value, which may hold a password and is not shown"
        )
    return f"{env_name(field)}: cannot read {value!r} ({why[0].lower()}{why[1:]})"


_FIELDS: Final = tuple(Settings.model_fields)
_NAMES: Final = (*map(env_name, _FIELDS), CONFIG_FILE)

Snapshot = tuple[Any, ...]
"""Raw environment values, in the order of ``_NAMES``."""

_environment: Final = environment_reader(_NAMES)


class _File:
    """The optional TOML file, checked for changes at most once a second.

    If an edit cannot be read, the last readable content stays in force.
    """

    def __init__(self, warnings: _Warnings) -> None:
        self._warnings = warnings
        self._path: str | None = None
        self._stamp: tuple[int, int] | None = None
        self.due = 0.0
        self.values: dict[str, Any] = {}

    def changed(self, path: str | None) -> bool:
        """Read the file if it is new or has changed. Return True if ``values`` may differ now."""
        now = time.monotonic()
        if path == self._path and now < self.due:
            return False
        self.due = now + _FILE_CHECK_SECONDS
        if not path:
            before, self._path, self.values = self._path, None, {}
            return before is not None
        try:
            stat = Path(path).stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if path == self._path and stamp == self._stamp:
                return False
            if path != self._path:
                self.values = {}
            self._path, self._stamp = path, stamp
            self.values = self._fields(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            self._path = path
            self._warnings.once(
                CONFIG_FILE,
                path,
                f"{CONFIG_FILE}: cannot read {path!r} ({error}); using its last readable content, "
                "or the environment and the defaults if there is none",
            )
        return True

    def _fields(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values by settings field. Unknown names are ignored with a warning."""
        fields = {}
        for name, value in values.items():
            if name in _NAMES and name != CONFIG_FILE:
                fields[name.removeprefix(PREFIX).lower()] = value
            else:
                self._warnings.once(
                    CONFIG_FILE,
                    f"{self._path}:{name}",
                    f"{CONFIG_FILE}: ignoring the unknown setting {name!r} in {self._path!r}",
                )
        return fields


class _Warnings:
    """Logs each warning once, and a bounded number of them."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def once(self, setting: str, value: object, message: str) -> None:
        key = (setting, repr(value))
        if key not in self._logged and len(self._logged) < _MAX_WARNINGS:
            self._logged.add(key)
            _log.warning(message)


class _Live:
    """The settings in force and the values they were made from."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.warnings = _Warnings()
        self.file = _File(self.warnings)
        self.overrides: dict[str, Any] = {}
        self.snapshot: Snapshot | None = None
        self.settings = Settings()

    def refresh(self, snapshot: Snapshot) -> Settings:
        with self.lock:
            environment = {
                name: os.fsdecode(value)
                for name, value in zip((*_FIELDS, CONFIG_FILE), snapshot, strict=True)
                if value not in {None, b"", ""}
            }
            path = environment.pop(CONFIG_FILE, None)
            self.file.changed(path)
            layers = [self.overrides, environment, self.file.values]
            self.settings = _resolve(layers, self.warnings)
            self.snapshot = snapshot
            return self.settings


def _resolve(layers: list[dict[str, Any]], warnings: _Warnings) -> Settings:
    """Merge the layers, strongest first.

    A value that cannot be read is replaced by that of the next layer, or finally by the default.
    """
    layers = [dict(layer) for layer in layers]
    problems: list[tuple[str, Any, str]] = []
    while True:
        merged = {field: value for layer in reversed(layers) for field, value in layer.items()}
        try:
            settings = Settings(**merged)
        except ValidationError as error:
            for problem in error.errors():
                field = str(problem["loc"][0])
                problems.append((field, merged[field], problem["msg"]))
                del next(layer for layer in layers if field in layer)[field]
            continue
        for field, value, why in problems:
            used = shown(field, getattr(settings, field))
            message = f"{unreadable(field, value, why)}; using {used} instead"
            warnings.once(env_name(field), value, message)
        _warn_of_replaced(merged, settings, warnings)
        return settings


def _warn_of_replaced(values: dict[str, Any], settings: Settings, warnings: _Warnings) -> None:
    """Warn of readable values that are replaced, in the same way as the original policy does."""
    switch, ratio = values.get("layering"), values.get("chars_per_token")
    if isinstance(switch, str) and switch.strip().lower() not in _TRUE | _FALSE:
        name = env_name("layering")
        message = f"{name}: {switch!r} is not 1, true or yes; using False instead"
        warnings.once(name, switch, message)
    if ratio is not None and settings.chars_per_token is not AUTO and float(ratio) < 1:
        name = env_name("chars_per_token")
        message = f"{name}: {ratio!r} is below 1; using {settings.chars_per_token} instead"
        warnings.once(name, ratio, message)


_live = _Live()


def current() -> Settings:
    """Return the settings in force. Never raises; takes a microsecond while nothing changes."""
    live = _live
    snapshot = _environment()
    if snapshot == live.snapshot and (snapshot[-1] is None or time.monotonic() < live.file.due):
        return live.settings
    return live.refresh(snapshot)


def configure(**overrides: Any) -> Settings:
    """Set settings in code, for this process. They take precedence over environment and file.

    Args:
        overrides: fields of :class:`Settings`; None removes an override.

    Returns:
        The settings now in force. A value that cannot be read is replaced, with a warning, just as
        in the environment.

    Raises:
        TypeError: a keyword is not a setting.
    """
    unknown = overrides.keys() - set(_FIELDS)
    if unknown:
        raise TypeError(f"no setting {', '.join(sorted(unknown))}: there are {', '.join(_FIELDS)}")
    with _live.lock:
        merged = {**_live.overrides, **overrides}
        _live.overrides = {field: value for field, value in merged.items() if value is not None}
        _live.snapshot = None
    return current()

"""Every knob, its default, read live: code over environment over an optional TOML file over the default.

Reading costs about a microsecond while nothing changes, so that each call may ask again and a running process can be steered.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .hints.targets import Targets
from .policy.thresholds import (
    DEFAULT_CHARS_PER_TOKEN,
    DEFAULT_MIN_CONTEXT_TOKENS,
    DEFAULT_MIN_HISTORY_TURNS,
    DEFAULT_MIN_PREFIX_TOKENS,
    KVCacheLayeringPolicy,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pragma: no cover

_log = logging.getLogger("otel_kvpolicy")

PREFIX: Final = "KV_CACHE_"
CONFIG_FILE: Final = "KV_CACHE_CONFIG_FILE"
"""Path of a TOML file whose top-level keys are the settings' own names, such as ``KV_CACHE_MODE = "observe"``."""

_FILE_CHECK_SECONDS: Final = 1.0

_Count = Annotated[int, Field(ge=0)]


def _targets(value: Any) -> Any:
    return Targets(value) if isinstance(value, str) else value


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


class Settings(BaseModel):
    """The knobs in force. A field ``x`` is set by the variable ``KV_CACHE_X``; :func:`env_name` spells it.

    Attributes are documented by their ``Field`` descriptions, from which the README's table is made.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )

    layering: bool = Field(
        default=True,
        description="`false` decides and sends nothing; calls are still traced and counted",
    )
    min_prefix_tokens: _Count = Field(
        default=DEFAULT_MIN_PREFIX_TOKENS,
        description="store when system prompt and tools have at least so many tokens; also for a RAG block",
    )
    min_context_tokens: _Count = Field(
        default=DEFAULT_MIN_CONTEXT_TOKENS,
        description="store when the whole prompt has at least so many tokens",
    )
    min_history_turns: _Count = Field(
        default=DEFAULT_MIN_HISTORY_TURNS,
        description="store when the model has replied at least so often before",
    )
    chars_per_token: Annotated[float, Field(gt=0)] = Field(
        default=DEFAULT_CHARS_PER_TOKEN, description="characters taken for one token"
    )
    mode: Annotated[Literal["enforce", "observe"], BeforeValidator(_lower)] = Field(
        default="enforce", description="`observe` decides and records but sends nothing"
    )
    targets: Annotated[Targets, BeforeValidator(_targets)] = Field(
        default=Targets("auto"),
        description="servers that may be sent the hint: `auto` (all but hosted vendors known to refuse unknown fields), `all`, "
        "or host patterns such as `gb10.local,*.lan:8000`",
    )
    hint_keys: Annotated[
        Literal["both", "skip_save", "max_offload_tokens"], BeforeValidator(_lower)
    ] = Field(
        default="both",
        description="LMCache keys to send: `skip_save` is read by its in-process connector, "
        "`max_offload_tokens` by its multi-process server",
    )
    rule: Annotated[Literal["thresholds", "adaptive"], BeforeValidator(_lower)] = Field(
        default="thresholds",
        description="the rule in force: `thresholds` is the fixed one above, `adaptive` learns which calls come back and what a place "
        "in the cache is worth",
    )
    shadow: bool = Field(
        default=False,
        description="`true` records beside each decision what the other rule would have decided (`kvpolicy.shadow.decision`)",
    )
    partial_store: bool = Field(
        default=False,
        description="`true` lets the learned rule keep of a skipped call the leading part that came before (`max_offload_tokens`)",
    )
    cached_token_stats: bool = Field(
        default=False,
        description="`true` asks LMCache's multi-process server for its own share of each call's cached tokens (`cached_token_stats`)",
    )
    state_file: str | None = Field(
        default=None,
        description="file in which what the learned rule has learned survives a restart; holds counts, no content",
    )
    redis_url: str | None = Field(
        default=None,
        repr=False,  # may hold a password
        description="Redis or Valkey (`redis://host:6379/0`) through which the processes of a fleet share what they learn; needs the extra "
        "`redis`",
    )
    decision_log: str | None = Field(
        default=None,
        description="file that gets one line of JSON for each decided call, without content, for `explain`, `replay` and Loki",
    )
    decision_log_bytes: Annotated[int, Field(ge=1)] = Field(
        default=64 << 20,
        description="size at which the decision log is rotated; three older files are kept",
    )

    @property
    def learns(self) -> bool:
        """Whether anybody asks for the learned rule, in force or in the shadow."""
        return self.shadow or self.rule == "adaptive"

    @cached_property
    def policy(self) -> KVCacheLayeringPolicy:
        """The fixed rule with these thresholds."""
        return KVCacheLayeringPolicy(
            enabled=self.layering,
            min_prefix_tokens=self.min_prefix_tokens,
            min_context_tokens=self.min_context_tokens,
            min_history_turns=self.min_history_turns,
            chars_per_token=self.chars_per_token,
        )


def env_name(field: str) -> str:
    """The environment variable of a settings field: ``mode`` -> ``KV_CACHE_MODE``."""
    return PREFIX + field.upper()


def shown(field: str, value: Any) -> str:
    """The value of a settings field as people may see it: of one that may hold a password, only whether there is one."""
    return str(value) if value is None or Settings.model_fields[field].repr else "***"


def unreadable(field: str, value: Any, why: str) -> str:
    """Says that ``value`` is none for a settings field, and why; neither is quoted where it may hold a password, as a URL may."""
    if not Settings.model_fields[field].repr or "@" in f"{value!r}":
        return f"{env_name(field)}: cannot read its value, which is not shown as it may hold a password"
    return f"{env_name(field)}: cannot read {value!r} ({why[0].lower()}{why[1:]})"


_FIELDS: Final = tuple(Settings.model_fields)
_NAMES: Final = (*map(env_name, _FIELDS), CONFIG_FILE)

Snapshot = tuple[Any, ...]
"""Raw environment values, in the order of ``_NAMES``."""


_ENCODED_NAMES: Final = tuple(map(getattr(os.environ, "encodekey", str), _NAMES))


def _environment() -> Snapshot:
    """The raw values of our variables, undecoded where the platform allows it.

    ``os.environ.get`` encodes, looks up and decodes: at a dozen knobs that would cost more than the decision. CPython keeps the encoded
    mapping in ``_data``; elsewhere the public mapping serves.
    """
    data = getattr(os.environ, "_data", None)
    return (
        tuple(map(os.environ.get, _NAMES)) if data is None else tuple(map(data.get, _ENCODED_NAMES))
    )


class _File:
    """The optional TOML file, looked at again at most once a second; a broken edit leaves the last readable content in force."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._stamp: tuple[int, int] | None = None
        self._due = 0.0
        self.values: dict[str, Any] = {}

    def changed(self, path: str | None) -> bool:
        """Reads the file where it is new or has changed; true when ``values`` may be others now."""
        now = time.monotonic()
        if path == self._path and now < self._due:
            return False
        self._due = now + _FILE_CHECK_SECONDS
        if not path:
            known, self._path, self.values = self._path, None, {}
            return known is not None
        try:
            stat = Path(path).stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if path == self._path and stamp == self._stamp:
                return False
            if path != self._path:
                self.values = {}
            self._path, self._stamp = path, stamp
            self.values = _known(tomllib.loads(Path(path).read_text(encoding="utf-8")), path)
        except (OSError, ValueError) as error:
            self._path = path
            _warn_once(
                CONFIG_FILE,
                path,
                f"{CONFIG_FILE}: cannot read {path!r} ({error}); using what was last readable, else environment and defaults",
            )
        return True


def _known(values: dict[str, Any], path: str) -> dict[str, Any]:
    known = {}
    for name, value in values.items():
        if name in _NAMES and name != CONFIG_FILE:
            known[name.removeprefix(PREFIX).lower()] = value
        else:
            _warn_once(
                CONFIG_FILE,
                f"{path}:{name}",
                f"{CONFIG_FILE}: {path!r} sets {name!r}, which is no setting; it is left out",
            )
    return known


_warned: Final[set[tuple[str, str]]] = set()


def _warn_once(setting: str, value: object, message: str) -> None:
    key = (setting, repr(value))
    if key not in _warned and len(_warned) < 1000:
        _warned.add(key)
        _log.warning(message)


class _Live:
    """The settings in force and what they were made of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file = _File()
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
            self.settings = _resolve([self.overrides, environment, self.file.values])
            self.snapshot = snapshot
            return self.settings


def _resolve(layers: list[dict[str, Any]]) -> Settings:
    """Merges the layers, strongest first. A value that cannot be read falls through to the next layer, at last to the default."""
    layers = [dict(layer) for layer in layers]
    found: list[tuple[str, Any, str]] = []
    while True:
        merged = {field: value for layer in reversed(layers) for field, value in layer.items()}
        try:
            settings = Settings(**merged)
        except ValidationError as error:
            for problem in error.errors():
                field = str(problem["loc"][0])
                found.append((field, merged[field], problem["msg"]))
                del next(layer for layer in layers if field in layer)[field]
            continue
        for field, value, why in found:
            used = shown(field, getattr(settings, field))
            _warn_once(
                env_name(field), value, f"{unreadable(field, value, why)}; using {used} instead"
            )
        return settings


_live = _Live()


def current() -> Settings:
    """The settings in force now. Never raises; costs about a microsecond while nothing changes."""
    live = _live
    snapshot = _environment()
    if snapshot == live.snapshot and (snapshot[-1] is None or not _file_due(live)):
        return live.settings
    return live.refresh(snapshot)


def _file_due(live: _Live) -> bool:
    return time.monotonic() >= live.file._due  # noqa: SLF001 - one file, one owner


def configure(**overrides: Any) -> Settings:
    """Sets knobs in code, over the environment and the file, for this process.

    Args:
        overrides: fields of :class:`Settings`; ``None`` takes an override back.

    Returns:
        The settings now in force. A value that cannot be read is warned of and falls through, as in the environment.

    Raises:
        TypeError: a keyword is no setting.
    """
    unknown = overrides.keys() - set(_FIELDS)
    if unknown:
        raise TypeError(
            f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(_FIELDS)}"
        )
    with _live.lock:
        merged = {**_live.overrides, **overrides}
        _live.overrides = {field: value for field, value in merged.items() if value is not None}
        _live.snapshot = None
    return current()

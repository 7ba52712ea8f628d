"""Decides a request body without sending it, by the same path as a live call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from ... import settings
from ...context import CallContext
from ...hints.targets import Origin
from ...persistence import state_file
from ...pipeline import UNKNOWN_DESTINATION, Destination, decide_call
from ...policy.adaptive.rule import AdaptiveRule
from ...policy.calibration import Calibration
from ...requests import read_chat, read_responses
from ...telemetry import names
from ...telemetry.spans import decision_attributes
from ..spans.model import RecordedSpan

_NO_ID: Final = "0"


class DryRun(NamedTuple):
    """What a request would get.

    Attributes:
        span: the decision as it would be recorded.
        sent: the ``kv_transfer_params`` that the request would carry.
    """

    span: RecordedSpan
    sent: dict[str, Any]


def settings_with(assignments: tuple[str, ...]) -> settings.Settings:
    """Return the current settings, changed by ``NAME=VALUE`` assignments.

    Raises:
        ValueError: a name is not a setting, or a value cannot be read.
    """
    fields = {settings.env_name(field): field for field in settings.Settings.model_fields}
    given: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name not in fields:
            known = ", ".join(sorted(fields))  # the value may be a password: it is not repeated
            raise ValueError(f"{name!r} does not assign a setting; use NAME=VALUE with {known}")
        given[fields[name]] = value
    now = settings.current()
    try:
        return settings.Settings(
            **{field: getattr(now, field) for field in settings.Settings.model_fields} | given
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(
            settings.unreadable(str(problem["loc"][0]), problem["input"], problem["msg"])
        ) from error


def destination_of(base_url: str, now: settings.Settings) -> Destination:
    """Return where a call to ``base_url`` would go, and whether the hint may go with it.

    Raises:
        ValueError: ``base_url`` is not an HTTP URL.
    """
    url = urlsplit(base_url)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError(f"{base_url!r} is not an HTTP URL; pass one such as http://gb10:8000/v1")
    host = url.hostname.rstrip(".").encode("idna").decode("ascii")
    origin = Origin(url.scheme, host, url.port or (443 if url.scheme == "https" else 80))
    return Destination(origin, now.targets.allow(origin))


def dry_run(
    body: Any,
    now: settings.Settings,
    role: str | None,
    destination: Destination | None = None,
) -> DryRun:
    """Decide a request body as it would be decided if it were sent.

    Args:
        body: chat completion (``messages``) or Responses (``input``) request.
        now: settings to decide by.
        role: kind of caller.
        destination: where the call would go; by default any server that may be sent the hint.

    Raises:
        ValueError: the body is not a chat request, or the state file of the adaptive rule cannot be
            used.
    """
    if not isinstance(body, Mapping) or not ("messages" in body or "input" in body):
        raise ValueError("not a chat request: expected 'messages' or 'input'")
    text = (read_chat if "messages" in body else read_responses)(body)
    decided = decide_call(
        text,
        body,
        CallContext(role=role),
        settings=now,
        adaptive=_adaptive_rule(now) if now.uses_adaptive else None,
        calibration=Calibration(),  # what running processes have learned is not known here
        destination=destination or UNKNOWN_DESTINATION,
    )
    if decided.fault is not None:
        raise ValueError(f"the hint cannot be added to this request: {decided.fault!r}")
    record = decided.record
    attributes = decision_attributes(record)
    if record.model:
        attributes[names.REQUEST_MODEL] = record.model
    given = body.get(decided.dialect.field)
    sent = given if decided.params is None else decided.params
    span = RecordedSpan(
        _NO_ID * 32,
        _NO_ID * 16,
        f"chat {record.model}".rstrip(),
        attributes=attributes,
        known_role=role,
    )
    return DryRun(span, dict(sent) if isinstance(sent, Mapping) else {})


def _adaptive_rule(now: settings.Settings) -> AdaptiveRule:
    """Return the rule in the state of its file, or a new one. The file is not changed."""
    rule = AdaptiveRule(chars_per_token=now.chars_per_token)
    if now.state_file is not None:
        try:
            state_file.load(rule, Path(now.state_file))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            name = settings.env_name("state_file")
            raise ValueError(f"{name}: cannot use {now.state_file}: {error}") from error
    return rule

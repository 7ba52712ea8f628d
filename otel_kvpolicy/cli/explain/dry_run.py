"""A request body -> the decision it would get, told like one read from a span."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from ... import settings
from ...context import CallContext
from ...hints import lmcache as hint
from ...persistence import state_file
from ...pipeline import judge
from ...policy.adaptive.rule import AdaptiveRule
from ...record import CallRecord, Outcome
from ...requests import read_chat, read_responses
from ...telemetry import names
from ...telemetry.spans import decision_attributes
from ..spans.model import RecordedSpan

_NO_ID: Final = "0"


def settings_with(assignments: tuple[str, ...]) -> settings.Settings:
    """The settings in force, with ``NAME=VALUE`` over them.

    Raises:
        ValueError: a name is no setting, or a value cannot be read.
    """
    known = {settings.env_name(field): field for field in settings.Settings.model_fields}
    given: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name not in known:
            raise ValueError(
                f"{name!r} is not NAME=VALUE of a setting; there are {', '.join(sorted(known))}"
            )
        given[known[name]] = value
    now = settings.current()
    try:
        return settings.Settings(
            **{**{field: getattr(now, field) for field in settings.Settings.model_fields}, **given}
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(
            settings.unreadable(str(problem["loc"][0]), problem["input"], problem["msg"])
        ) from error


def decide_offline(
    body: Any, knobs: settings.Settings, role: str | None
) -> tuple[RecordedSpan, dict[str, Any]]:
    """Decides for a request body as it would be sent.

    Args:
        body: of chat completions (``messages``) or of Responses (``input``).
        knobs: settings to decide by.
        role: what kind of caller it is.

    Returns:
        The decision as it would stand on a span, and the ``kv_transfer_params`` that the request would carry.

    Raises:
        ValueError: it is the body of neither, or the learned rule's file cannot be used.
    """
    if not isinstance(body, Mapping) or not ("messages" in body or "input" in body):
        raise ValueError(
            "no request body: neither chat completions' 'messages' nor Responses' 'input' is in it"
        )
    text = (read_chat if "messages" in body else read_responses)(body)
    learned = _learned(knobs) if knobs.learns else None
    verdict = judge(text, body, CallContext(role=role), policy=None, knobs=knobs, learned=learned)
    decision = verdict.decision
    given = body.get(hint.FIELD)
    callers = hint.is_callers(given)
    outcome: Outcome = (
        "disabled"
        if not decision.enabled
        else "caller"
        if callers
        else "observed"
        if knobs.mode == "observe"
        else "applied"
    )
    model = body.get("model")
    record = CallRecord(
        decision=decision,
        skip=hint.caller_skips(given) if callers else decision.skip_save,
        outcome=outcome,
        mode=knobs.mode,
        policy=knobs.policy,
        model=model if isinstance(model, str) else "",
        address="",
        port=0,
        agent=None,
        why=verdict.why,
        shadow=verdict.shadow,
        keep_tokens=verdict.keep_tokens if outcome == "applied" else 0,
    )
    attributes = decision_attributes(record)
    if record.model:
        attributes[names.REQUEST_MODEL] = record.model
    sent = dict(given) if isinstance(given, Mapping) else {}
    if outcome == "applied":
        sent |= hint.hint_params(
            skip=decision.skip_save,
            keys=knobs.hint_keys,
            keep_tokens=verdict.keep_tokens,
            stats=knobs.cached_token_stats,
        )
    return RecordedSpan(
        _NO_ID * 32,
        _NO_ID * 16,
        f"chat {record.model}".rstrip(),
        attributes=attributes,
        known_role=role,
    ), sent


def _learned(knobs: settings.Settings) -> AdaptiveRule:
    """The learned rule as its file has it, which is left alone; without one, a rule that knows nothing."""
    rule = AdaptiveRule(chars_per_token=knobs.chars_per_token)
    if knobs.state_file is not None:
        try:
            state_file.load(rule, Path(knobs.state_file))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{settings.env_name('state_file')}: cannot use {knobs.state_file}: {error}"
            ) from error
    return rule

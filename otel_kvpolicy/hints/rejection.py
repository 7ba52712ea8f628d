"""Recognizes an answer by which a server rejects the hint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

REJECTING_STATUS: Final = frozenset({400, 422})
"""HTTP status codes with which servers reject an unknown field."""

_MAX_DEPTH: Final = 6

_REFUSAL: Final = re.compile(
    r"unknown|unrecogni[sz]ed|unsupported|not supported|unexpected|not permitted|not allowed|extra"
    r"|forbid|cannot find|invalid|additional propert|no such",
    re.IGNORECASE,
)


def rejects(field: str, status: int | None, text: str) -> bool:
    """Return True if an answer blames ``field`` for the failure of the request.

    Recognizes the shapes in public reports: OpenAI's ``error.param``, FastAPI's ``detail[].loc``,
    and sentences.

    Args:
        field: body field of the hint.
        status: HTTP status of the answer.
        text: body of the answer.
    """
    if status not in REJECTING_STATUS or field not in text:
        return False
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    return _accuses(body, field)


def _accuses(body: Any, field: str, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH:
        return False
    if isinstance(body, str):
        sentence = _echo(field).sub("", body)
        return field in sentence and _REFUSAL.search(sentence) is not None
    if isinstance(body, list):
        return any(_accuses(item, field, depth + 1) for item in body)
    if not isinstance(body, Mapping):
        return False
    place = body.get("loc", body.get("param"))
    if place is not None:
        # A structured error names the field at fault. The rest of it may quote other fields.
        return field in place if isinstance(place, list) else str(place).partition(".")[0] == field
    return any(
        _accuses(value, field, depth + 1)
        for key, value in body.items()
        if key not in {"input", "ctx", "body"}
    )


@lru_cache(maxsize=8)
def _echo(field: str) -> re.Pattern[str]:
    """Match the field with its value: a quotation of the body does not blame the field."""
    return re.compile(re.escape(field) + r"\\?[\"']\s*:\s*(\{|\\?[\"']|None|null)")

"""Whether a server refused a request because of the hint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from .lmcache import FIELD

_ECHO: Final = re.compile(re.escape(FIELD) + r"\\?[\"']\s*:\s*(\{|\\?[\"']|None|null)")
"""The field quoted with its value: the server repeats the body it was sent, and says nothing against the field."""

_REFUSAL: Final = re.compile(
    r"unknown|unrecogni[sz]ed|unsupported|not supported|unexpected|not permitted|not allowed|extra|forbid|cannot find|invalid"
    r"|additional propert|no such",
    re.IGNORECASE,
)


def names_the_hint(error: BaseException) -> bool:
    """True for an answer of 400 or 422 that names ``kv_transfer_params`` as what is wrong with the request.

    Shapes seen in public reports: OpenAI's ``error.param``, FastAPI's ``detail[].loc``, and sentences.
    """
    if getattr(error, "status_code", None) not in {400, 422}:
        return False
    response = getattr(error, "response", None)
    text = getattr(response, "text", "") or ""
    if FIELD not in text:
        return False
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    return _accuses(body)


def _accuses(body: Any, depth: int = 0) -> bool:
    if depth > 6:
        return False
    if isinstance(body, str):
        said = _ECHO.sub("", body)
        return FIELD in said and _REFUSAL.search(said) is not None
    if isinstance(body, list):
        return any(_accuses(item, depth + 1) for item in body)
    if not isinstance(body, Mapping):
        return False
    place = body.get("loc", body.get("param"))
    if (
        place is not None
    ):  # a structured complaint: its place says what it is about, whatever else it quotes
        return FIELD in place if isinstance(place, list) else str(place).partition(".")[0] == FIELD
    return any(
        _accuses(value, depth + 1)
        for key, value in body.items()
        if key not in {"input", "ctx", "body"}
    )

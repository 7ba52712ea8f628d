"""Determines what kind of text a request has, and whether it has media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..policy.calibration import TOOLS, WITH_RESULTS, script_of
from ..policy.counting import MEDIA_PARTS
from ..policy.signals import CallText, CountedText, total_chars

_CHARS: Final = 192
_LATEST: Final = 64
"""Messages that are looked at. A bound, because a conversation can have thousands."""

_MAX_CONTENTS: Final = 1000
_ELSEWHERE: Final = ("previous_response_id", "conversation", "prompt")
"""Fields that stand for text which only the server has."""


def script_of_request(body: Mapping[Any, Any], text: CallText) -> str:
    """Return the kind of text in a request, a key of ``SCRIPTS``.

    The middle of the longest message determines it, because reading more would cost more than the
    rest of the decision.

    Args:
        body: a chat completion or Responses request.
        text: what was counted of it.
    """
    if text.tool_chars and 2 * text.tool_chars > total_chars(text):
        return TOOLS
    if not isinstance(text, CountedText):
        return _script_of_items(body)
    sizes, messages = text.sizes, body["messages"]
    count = len(sizes)
    if count > _LATEST:
        sizes, messages = sizes[-_LATEST:], messages[-_LATEST:]
    content: Any = ""
    if count:
        message = messages[sizes.index(max(sizes))]
        content = message.get("content") if isinstance(message, Mapping) else ""
    script = script_of(_middle(content))
    return WITH_RESULTS[script] if text.has_results else script


def _script_of_items(body: Mapping[Any, Any]) -> str:
    """Return the kind of text in a Responses request."""
    given = body.get("input")
    if not isinstance(given, (list, tuple)):
        return script_of(_middle(given))
    items = [item for item in given[-_LATEST:] if isinstance(item, Mapping)]
    texts = [_text_of(item.get("content") or item.get("output")) for item in items]
    script = script_of(_middle(max(texts, key=len, default="")))
    outputs = any(str(item.get("type")).endswith("_output") for item in items)
    return WITH_RESULTS[script] if outputs else script


def _middle(content: Any) -> str:
    text = content if type(content) is str else _text_of(content)
    start = (len(text) - _CHARS) >> 1
    return text[start : start + _CHARS] if start > 0 else text


def _text_of(content: Any) -> str:
    """Return a content that is a string, or the longest text of its parts."""
    if isinstance(content, str):
        return content
    texts = [
        part["text"]
        for part in (content if isinstance(content, (list, tuple)) else ())
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
    ]
    return max(texts, key=len, default="")


def is_all_text(body: Mapping[Any, Any], text: CallText) -> bool:
    """Return True if all that the server makes tokens of was counted: no media, no text elsewhere.

    Args:
        body: a chat completion or Responses request.
        text: what was counted of it.
    """
    if isinstance(text, CountedText):
        contents = text.others
    elif any(body.get(field) for field in _ELSEWHERE):
        return False
    else:
        given = body.get("input")
        contents = given if isinstance(given, (list, tuple)) else ()
    return len(contents) <= _MAX_CONTENTS and not any(map(_has_media, contents))


def _has_media(content: Any) -> bool:
    """Return True if a content or an item has a part that is not text."""
    if content is None or isinstance(content, str):
        return False
    if isinstance(content, (list, tuple)):
        return any(
            not isinstance(part, Mapping) or part.get("type") in MEDIA_PARTS for part in content
        )
    if isinstance(content, Mapping):
        return content.get("type") in MEDIA_PARTS or _has_media(content.get("content"))
    return True  # an object of some library: it may hold anything

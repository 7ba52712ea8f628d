"""The trace formats that replay reads: recognize a line and turn it into requests."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ....policy.counting import REPLY_ROLES, SYSTEM_ROLES
from ....telemetry import names
from .trace import CHARS_PER_TOKEN, Request

_CONVERSATION_KEYS: Final = ("traj", "conversation", "conversations")

_START_SECONDS: Final = 5.0
"""Assumed time between the starts of two conversations that have no timestamps."""
_TURN_SECONDS: Final = 15.0
"""Assumed time between two calls of one conversation."""


@dataclass(frozen=True)
class Format:
    """A trace format.

    Attributes:
        name: display name.
        matches: whether a document is in this format.
        read: yields the requests in a document. Its second argument is the number of documents read
            before. Raises ``ValueError``, ``KeyError`` or ``TypeError`` if the document is broken.
        block_tokens: tokens in a block if the format fixes them, otherwise ``None``.
        note: assumptions about the traffic, if the format lacks facts that a simulation needs.
    """

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], int], Iterator[Request]]
    block_tokens: int | None = None
    note: str = ""


def format_of(document: Any) -> Format | None:
    """Return the format of a parsed line, or ``None`` if replay does not support it."""
    if not isinstance(document, Mapping):
        return None
    return next((format_ for format_ in FORMATS if format_.matches(document)), None)


def _count(value: Any, what: str) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        raise ValueError(f"{what} must be a count, not {value!r}")
    return int(value)


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"timestamp must be a time, not {value!r}")
    return float(value)


def _blocks(value: Any) -> list[int | str]:
    if not isinstance(value, list) or not all(type(item) in {int, str} for item in value):
        raise ValueError("the hashes must be a list of integers or strings")
    return value


def _role(document: Mapping[str, Any], *keys: str) -> str | None:
    return next((document[key] for key in keys if isinstance(document.get(key), str)), None)


def _mooncake(document: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Read a line of a Mooncake trace, whose times are in milliseconds.

    Derived traces may add ``turns``, ``system_tokens`` and ``class``.
    """
    turns, system = document.get("turns"), document.get("system_tokens")
    yield Request(
        time=_seconds(document.get("timestamp", index * 1000)) / 1000,
        input_tokens=_count(document["input_length"], "input_length"),
        output_tokens=_count(document.get("output_length", 0), "output_length"),
        blocks=_blocks(document["hash_ids"]),
        turns=None if turns is None else _count(turns, "turns"),
        prefix_tokens=None if system is None else _count(system, "system_tokens"),
        role=_role(document, "class", "type"),
    )


def _bailian(document: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Read a line of Alibaba's Qwen-Bailian traces.

    Times are in seconds, turns count from 1, and each block is hashed by itself.
    """
    yield Request(
        time=_seconds(document.get("timestamp", index)),
        input_tokens=_count(document["input_length"], "input_length"),
        output_tokens=_count(document.get("output_length", 0), "output_length"),
        blocks=_blocks(document["hash_ids"]),
        turns=max(0, _count(document.get("turn", 1), "turn") - 1),
        role=_role(document, "type"),
    )


def _lmcache(document: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Read a line of LMCache's lookup-hash log (``--lookup-hash-log-dir``).

    Times are in seconds, and there is one hash per full chunk.
    """
    chunks = _blocks(document["chunk_hashes"])
    size = _count(document["chunk_size"], "chunk_size")
    yield Request(
        time=_seconds(document.get("timestamp", index)),
        input_tokens=max(_count(document.get("seq_len", 0), "seq_len"), len(chunks) * size),
        output_tokens=0,
        blocks=chunks,
        role=_role(document, "model_name"),
    )


_HASH_KEY: Final = secrets.token_bytes(16)
"""Random per process, so that a hash cannot be tested against a guessed prompt."""

_TEXT_BLOCK: Final = 256
"""Tokens in a block, for formats whose blocks are hashed or made up here."""


def _block_hashes(text: str) -> list[int]:
    """Return chained hashes of the full blocks of ``text``; the text itself is not kept."""
    size = _TEXT_BLOCK * CHARS_PER_TOKEN
    chain, blocks = b"", []
    for start in range(0, len(text) - size + 1, size):
        digest = hashlib.blake2b(
            text[start : start + size].encode("utf-8", "surrogatepass"),
            digest_size=8,
            key=_HASH_KEY,
            salt=chain[:16],
        )
        chain = digest.digest()
        blocks.append(int.from_bytes(chain, "big"))
    return blocks


def _rendered(message: Any) -> tuple[str, str]:
    """Return the role of a message, and its text as it would stand in a prompt."""
    if not isinstance(message, Mapping):
        raise TypeError(f"a message must be an object, not a {type(message).__name__}")
    role = message.get("role", message.get("from"))
    if not isinstance(role, str):
        raise TypeError("a message has no role")
    content = message.get("content", message.get("value"))
    text = (
        content
        if isinstance(content, str)
        else ""
        if content is None
        else json.dumps(content, ensure_ascii=False)
    )
    calls = message.get("tool_calls")
    return role, f"<{role}>{text}{json.dumps(calls, ensure_ascii=False) if calls else ''}\n"


def _conversation(document: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Read OpenAI messages: a conversation, or the body of one request.

    In a conversation each reply stands for one call. Messages that do not end with a reply are the
    body of one request. A token counts as four characters.
    """
    key = next((key for key in _CONVERSATION_KEYS if key in document), "messages")
    messages = document[key]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{key} must be a list of messages")
    rendered = [_rendered(message) for message in messages]
    tools = document.get("tools")
    texts = [json.dumps(tools, ensure_ascii=False) + "\n"] if tools else [""]
    texts += [text for _, text in rendered]
    blocks = _block_hashes("".join(texts))
    roles = [role for role, _ in rendered]
    head = next((i for i, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))
    replies = [i for i, role in enumerate(roles) if role in {*REPLY_ROLES, "gpt"}]
    calls = (
        [len(roles)]
        if key == "messages" and (not replies or replies[-1] != len(roles) - 1)
        else replies
    )
    start = document.get("timestamp", document.get("created", document.get("created_at")))
    begin = index * _START_SECONDS if start is None else _seconds(start)
    for number, end in enumerate(calls):
        tokens = sum(map(len, texts[: end + 1])) // CHARS_PER_TOKEN
        yield Request(
            time=begin + number * _TURN_SECONDS,
            input_tokens=tokens,
            output_tokens=len(rendered[end][1]) // CHARS_PER_TOKEN if end < len(rendered) else 0,
            blocks=blocks[: tokens // _TEXT_BLOCK],
            turns=sum(reply < end for reply in replies),
            prefix_tokens=sum(map(len, texts[: head + 1])) // CHARS_PER_TOKEN,
            role=_role(document, "agent", "role", "class"),
        )


def _is_log_entry(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("attributes"), Mapping) and "trace_id" in document


def _is_otlp(document: Mapping[str, Any]) -> bool:
    return any(key in document for key in ("resourceSpans", "resource_spans", "batches"))


def _spans(document: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Read a line of OTLP JSON; spans without a decision are left out."""
    from ...spans.otlp import spans_of

    for span in spans_of(document):
        if span.decided:
            yield _recorded(span.attributes, (span.started or 0) / 1e9, span.trace_id, span.service)


def _log_entry(document: Mapping[str, Any], index: int) -> Iterator[Request]:
    """Read a line of the decision log (``KV_CACHE_DECISION_LOG``)."""
    attributes = document["attributes"]
    if isinstance(attributes, Mapping) and names.DECISION in attributes:
        service = document.get("service")
        trace = document["trace_id"] or f"line {index}"
        yield _recorded(
            attributes,
            _seconds(document["timestamp"]),
            str(trace),
            service if isinstance(service, str) else None,
        )


def _recorded(
    attributes: Mapping[str, Any], time: float, trace_id: str, service: str | None
) -> Request:
    """Return the request of a recorded call.

    The record has no content, so the blocks that it shares with other calls are assumed; see
    :data:`_RECORDED_NOTE`.
    """
    counted = attributes.get(names.USAGE_INPUT_TOKENS)
    estimate = _count(attributes.get(names.SIGNAL_TOTAL_TOKENS, 0), names.SIGNAL_TOTAL_TOKENS)
    tokens = estimate if counted is None else _count(counted, names.USAGE_INPUT_TOKENS)
    prefix = _count(attributes.get(names.SIGNAL_PREFIX_TOKENS, 0), names.SIGNAL_PREFIX_TOKENS)
    agent = _role(attributes, names.AGENT_NAME)
    group = attributes.get(names.CONVERSATION_ID) or trace_id
    head = min(prefix, tokens) // _TEXT_BLOCK
    shared: list[int | str] = [
        f"{service}/{agent}/{attributes.get(names.REQUEST_MODEL)}/{prefix}/{block}"
        for block in range(head)
    ]
    own: list[int | str] = [
        f"{group}/{prefix}/{block}" for block in range(head, tokens // _TEXT_BLOCK)
    ]
    return Request(
        time=time,
        input_tokens=tokens,
        output_tokens=_count(
            attributes.get(names.USAGE_OUTPUT_TOKENS, 0), names.USAGE_OUTPUT_TOKENS
        ),
        blocks=shared + own,
        turns=_count(attributes.get(names.SIGNAL_HISTORY_TURNS, 0), names.SIGNAL_HISTORY_TURNS),
        prefix_tokens=prefix,
        role=agent,
    )


_RECORDED_NOTE: Final = (
    "recorded calls have no content: replay assumes that calls by one agent with equally long"
    " system prompts share them, and that calls in one conversation or trace continue each other"
)

_CONVERSATION_NOTE: Final = (
    "conversations are hashed with four characters per token; conversations without timestamps are"
    f" assumed to start {_START_SECONDS:g} seconds apart and to make a call every"
    f" {_TURN_SECONDS:g} seconds"
)

FORMATS: Final = (
    Format("recorded spans (OTLP JSON lines)", _is_otlp, _spans, _TEXT_BLOCK, _RECORDED_NOTE),
    Format("decision log", _is_log_entry, _log_entry, _TEXT_BLOCK, _RECORDED_NOTE),
    Format("Qwen-Bailian", lambda line: "hash_ids" in line and "chat_id" in line, _bailian, 16),
    Format("Mooncake", lambda line: "hash_ids" in line, _mooncake),
    Format("LMCache lookup hashes", lambda line: "chunk_hashes" in line, _lmcache),
    Format(
        "OpenAI messages",
        lambda line: any(
            isinstance(line.get(key), list) for key in (*_CONVERSATION_KEYS, "messages")
        ),
        _conversation,
        _TEXT_BLOCK,
        _CONVERSATION_NOTE,
    ),
)
"""The supported formats, the most specific first: the first one that matches a document is used."""

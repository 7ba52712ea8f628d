"""One line of a trace -> requests, for each kind of trace that replay reads. Told apart by what is in them, not by name."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ....policy.counting import REPLY_ROLES, SYSTEM_ROLES
from ....telemetry import names
from .trace import CHARS_PER_TOKEN, Request

_CONVERSATION_KEYS: Final = ("traj", "conversation", "conversations")

_START_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 15.0
"""Conversations without times are taken to start so far apart, and to wait so long between their calls."""


@dataclass(frozen=True)
class Format:
    """A kind of trace.

    Attributes:
        name: for people.
        read: one document, and the number of those read before it, -> requests. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for
            one that is broken.
        block_tokens: tokens of a block where the format fixes them; ``None`` where they are to be told or found out.
        note: what is assumed of the traffic, where the format does not say all that a simulation needs.
    """

    name: str
    read: Callable[[Mapping[str, Any], int], Iterator[Request]]
    block_tokens: int | None = None
    note: str = ""
    marks: Callable[[Mapping[str, Any]], bool] = field(default=lambda _: False)


def format_of(document: Any) -> Format | None:
    """The format that a parsed line is in; ``None`` for what is none of them."""
    if not isinstance(document, Mapping):
        return None
    return next((each for each in FORMATS if each.marks(document)), None)


def _count(value: Any, what: str) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        raise ValueError(f"{what} is {value!r}, not a count")
    return int(value)


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"timestamp is {value!r}, not a time")
    return float(value)


def _blocks(value: Any) -> list[int | str]:
    if not isinstance(value, list) or not all(type(each) in {int, str} for each in value):
        raise ValueError("its hashes are not a list of numbers or strings")
    return value


def _role(document: Mapping[str, Any], *keys: str) -> str | None:
    return next((document[key] for key in keys if isinstance(document.get(key), str)), None)


def _mooncake(document: Mapping[str, Any], at: int) -> Iterator[Request]:
    """Mooncake's traces: times in milliseconds. Derived ones may add ``turns``, ``system_tokens`` and ``class``."""
    turns, system = document.get("turns"), document.get("system_tokens")
    yield Request(
        time=_seconds(document.get("timestamp", at * 1000)) / 1000,
        input_tokens=_count(document["input_length"], "input_length"),
        output_tokens=_count(document.get("output_length", 0), "output_length"),
        blocks=_blocks(document["hash_ids"]),
        turns=None if turns is None else _count(turns, "turns"),
        prefix_tokens=None if system is None else _count(system, "system_tokens"),
        role=_role(document, "class", "type"),
    )


def _bailian(document: Mapping[str, Any], at: int) -> Iterator[Request]:
    """Alibaba's Qwen-Bailian traces: times in seconds, turns from 1, each block hashed by itself."""
    yield Request(
        time=_seconds(document.get("timestamp", at)),
        input_tokens=_count(document["input_length"], "input_length"),
        output_tokens=_count(document.get("output_length", 0), "output_length"),
        blocks=_blocks(document["hash_ids"]),
        turns=max(0, _count(document.get("turn", 1), "turn") - 1),
        role=_role(document, "type"),
    )


def _lmcache(document: Mapping[str, Any], at: int) -> Iterator[Request]:
    """LMCache's lookup-hash log (``--lookup-hash-log-dir``): times in seconds, one hash for each full chunk."""
    chunks = _blocks(document["chunk_hashes"])
    size = _count(document["chunk_size"], "chunk_size")
    yield Request(
        time=_seconds(document.get("timestamp", at)),
        input_tokens=max(_count(document.get("seq_len", 0), "seq_len"), len(chunks) * size),
        output_tokens=0,
        blocks=chunks,
        role=_role(document, "model_name"),
    )


_key: Final = secrets.token_bytes(16)


def _hashed(text: str, block_tokens: int) -> list[int]:
    """Chained hashes of the text's full blocks, under a key that is forgotten: no content stays."""
    size = block_tokens * CHARS_PER_TOKEN
    chain, blocks = b"", []
    for start in range(0, len(text) - size + 1, size):
        digest = hashlib.blake2b(
            text[start : start + size].encode("utf-8", "surrogatepass"),
            digest_size=8,
            key=_key,
            salt=chain[:16],
        )
        chain = digest.digest()
        blocks.append(int.from_bytes(chain, "big"))
    return blocks


_TEXT_BLOCK: Final = 256


def _rendered(message: Any) -> tuple[str, str]:
    """Whose a message is, and its text as it would reach a prompt."""
    if not isinstance(message, Mapping):
        raise TypeError(f"a message is a {type(message).__name__}")
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


def _conversation(document: Mapping[str, Any], at: int) -> Iterator[Request]:
    """OpenAI messages: a conversation, each reply of which is a call, or one request, which ends before the reply.

    Tokens are taken for four characters each.
    """
    key = next((key for key in _CONVERSATION_KEYS if key in document), "messages")
    messages = document[key]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{key} is no list of messages")
    rendered = [_rendered(message) for message in messages]
    tools = document.get("tools")
    texts = [json.dumps(tools, ensure_ascii=False) + "\n"] if tools else [""]
    texts += [text for _, text in rendered]
    blocks = _hashed("".join(texts), _TEXT_BLOCK)
    roles = [role for role, _ in rendered]
    head = next((place for place, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))
    replies = [place for place, role in enumerate(roles) if role in {*REPLY_ROLES, "gpt"}]
    calls = (
        [len(roles)]
        if key == "messages" and (not replies or replies[-1] != len(roles) - 1)
        else replies
    )
    start = document.get("timestamp", document.get("created", document.get("created_at")))
    begin = at * _START_SECONDS if start is None else _seconds(start)
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


def _spans(document: Mapping[str, Any], at: int) -> Iterator[Request]:
    """OTLP JSON lines with spans of ours."""
    from ...spans.otlp import spans_of

    for span in spans_of(document):
        if span.decided:
            yield _recorded(span.attributes, (span.started or 0) / 1e9, span.trace_id, span.service)


def _log_entry(document: Mapping[str, Any], at: int) -> Iterator[Request]:
    """A line of our decision log."""
    attributes = document["attributes"]
    if isinstance(attributes, Mapping) and names.DECISION in attributes:
        service = document.get("service")
        trace = document["trace_id"] or f"line {at}"
        yield _recorded(
            attributes,
            _seconds(document["timestamp"]),
            str(trace),
            service if isinstance(service, str) else None,
        )


def _recorded(
    attributes: Mapping[str, Any], time: float, trace_id: str, service: str | None
) -> Request:
    """A recorded call. It carries no content: what it shares with others is assumed, as the format's note says."""
    counted = attributes.get(names.USAGE_INPUT_TOKENS)
    estimate = _count(attributes.get(names.SIGNAL_TOTAL_TOKENS, 0), names.SIGNAL_TOTAL_TOKENS)
    tokens = estimate if counted is None else _count(counted, names.USAGE_INPUT_TOKENS)
    prefix = _count(attributes.get(names.SIGNAL_PREFIX_TOKENS, 0), names.SIGNAL_PREFIX_TOKENS)
    agent = _role(attributes, names.AGENT_NAME)
    group = attributes.get(names.CONVERSATION_ID) or trace_id
    head = min(prefix, tokens) // _TEXT_BLOCK
    shared: list[int | str] = [
        f"{service}/{agent}/{attributes.get(names.REQUEST_MODEL)}/{prefix}/{at}"
        for at in range(head)
    ]
    own: list[int | str] = [f"{group}/{prefix}/{at}" for at in range(head, tokens // _TEXT_BLOCK)]
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
    "recorded calls carry no content: calls of one agent with a system prompt of one length are taken to share it, calls of one "
    "conversation or trace to continue each other"
)

FORMATS: Final = (
    Format("recorded spans (OTLP JSON lines)", _spans, _TEXT_BLOCK, _RECORDED_NOTE, marks=_is_otlp),
    Format("decision log", _log_entry, _TEXT_BLOCK, _RECORDED_NOTE, marks=_is_log_entry),
    Format(
        "Qwen-Bailian", _bailian, 16, marks=lambda line: "hash_ids" in line and "chat_id" in line
    ),
    Format("Mooncake", _mooncake, None, marks=lambda line: "hash_ids" in line),
    Format("LMCache lookup hashes", _lmcache, None, marks=lambda line: "chunk_hashes" in line),
    Format(
        "OpenAI messages",
        _conversation,
        _TEXT_BLOCK,
        "conversations are hashed here, four characters to a token; without times they are taken to start five seconds apart and to make a "
        "call every fifteen",
        marks=lambda line: any(
            isinstance(line.get(key), list) for key in (*_CONVERSATION_KEYS, "messages")
        ),
    ),
)
"""The traces that replay reads, the most particular first."""

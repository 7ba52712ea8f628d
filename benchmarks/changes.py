"""The gain of each optimization: the plain way and the fast way, measured in one run.

The plain ways are written here. The fast ways are the functions that the package uses. The figures
are CPU time, so that other processes of a busy machine disturb them less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseTextDeltaEvent

from otel_kvpolicy import KVCacheDecision, settings
from otel_kvpolicy._fast import field
from otel_kvpolicy.policy import counting
from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
from otel_kvpolicy.requests import read_chat, read_chunk, tools

from .decision import body
from .measure import interleave

CALLS = 500


def run(*, rounds: int = 25) -> list[dict[str, Any]]:
    """Measure each plain way and each fast way, in microseconds of CPU time."""
    return [_measured(name, plain, fast, rounds) for name, plain, fast in _changes()]


def _measured(
    name: str, plain: Callable[[], Any], fast: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    samples = interleave(
        {"plain": plain, "fast": fast},
        rounds=rounds,
        repeat={"plain": CALLS, "fast": CALLS},
        clock=time.process_time,
    )
    before, after = samples["plain"].median, samples["fast"].median
    return {
        "change": name,
        "plain_us": before * 1e6,
        "fast_us": after * 1e6,
        "ratio": before / after,
    }


def _changes() -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    short, long, tooled = body(2, "ascii"), body(100, "ascii"), body(10, "tools")
    current = settings.current()
    names = [settings.env_name(field) for field in settings.Settings.model_fields]
    raw: dict[str, Any] = {
        "min_prefix_tokens": "1024",
        "min_context_tokens": "2048",
        "chars_per_token": "4",
        "targets": "*.lan",
    }
    decided = current.policy.judge(read_chat(short))
    values = {**decided.model_dump()}
    trusted = {name: values[name] for name in ("cache_worthy", "score", "reasons", "signals")}
    text, given = read_chat(long), tooled["tools"]
    reads = _reads(ANSWER)

    def read_plainly() -> Any:
        messages = long["messages"]
        return [counting.speaker(message) for message in messages], [
            counting.message_chars(message) for message in messages
        ]

    return [
        (
            "settings: compare the raw environment instead of os.environ.get",
            lambda: [os.environ.get(name) for name in names],
            settings.current,
        ),
        (
            "settings: validate on change instead of on every call",
            lambda: settings.Settings(**raw),
            settings.current,
        ),
        (
            "rule: keep it with its settings",
            lambda: vars(settings.Settings)["policy"].func(current),
            lambda: current.policy,
        ),
        (
            "decision: build it without validation",
            lambda: KVCacheDecision(**values),
            lambda: KVCacheDecision.trusted(**trusted),
        ),
        (
            "body: read 100 plain messages without a Python loop",
            read_plainly,
            lambda: read_chat(long),
        ),
        (
            "tools: remember their sizes",
            lambda: counting.json_chars(given),
            lambda: tools.tool_chars(given),
        ),
        (
            "adaptive rule: reuse the character counts of the body",
            lambda: boundaries_of(long, 7),
            lambda: boundaries_of(long, 7, text),
        ),
        (
            "answers: read a model's `__dict__` instead of missing attributes",
            lambda: [_attribute(value, name) for value, name in reads],
            lambda: [field(value, name) for value, name in reads],
        ),
        (
            "streams: recognize a chat chunk of text by one check",
            lambda: _reports(CHUNK),
            lambda: read_chunk(CHUNK),
        ),
        (
            "streams: recognize a Responses event of text by one check",
            lambda: _reports(EVENT),
            lambda: read_chunk(EVENT),
        ),
    ]


# Built without validation, as the openai client builds what it parses.
ANSWER = ChatCompletion.construct(
    id="c",
    object="chat.completion",
    created=1,
    model="m",
    choices=[{"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}],
    usage={
        "prompt_tokens": 900,
        "completion_tokens": 5,
        "total_tokens": 905,
        "prompt_tokens_details": {"cached_tokens": 512},
    },
)
CHUNK = ChatCompletionChunk.construct(
    id="c",
    object="chat.completion.chunk",
    created=1,
    model="m",
    choices=[{"index": 0, "delta": {"content": "word "}, "finish_reason": None}],
)
EVENT = ResponseTextDeltaEvent.construct(
    type="response.output_text.delta",
    delta="word ",
    item_id="i",
    content_index=0,
    output_index=0,
    sequence_number=3,
)


def _reads(answer: Any) -> list[tuple[Any, str]]:
    """Return what ``read_answer`` reads of a chat completion: objects and field names."""
    return [
        (answer, "usage"),
        (answer.usage, "prompt_tokens_details"),
        (answer, "kv_transfer_params"),
        (None, "cached_token_stats"),
        (answer.usage, "prompt_tokens"),
        (answer.usage, "completion_tokens"),
        (answer.usage.prompt_tokens_details, "cached_tokens"),
        (None, "num_vllm_cached_tokens"),
        (None, "num_lmcache_cached_tokens"),
        (answer, "id"),
        (answer, "model"),
        (answer, "choices"),
        (answer.choices[0], "finish_reason"),
    ]


def _attribute(value: Any, name: str) -> Any:
    """Read a field in the plain way, which is slow if a pydantic model lacks it."""
    if isinstance(value, Mapping):
        return value.get(name)
    return None if value is None else getattr(value, name, None)


def _reports(chunk: Any) -> bool:
    """Return True if a chunk reports anything, without the check for text that comes first."""
    if field(chunk, "response") is not None or field(chunk, "usage") is not None:
        return True
    choices = field(chunk, "choices")
    return (
        isinstance(choices, (list, tuple))
        and bool(choices)
        and field(choices[0], "finish_reason") is not None
    )

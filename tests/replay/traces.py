"""Traces for the tests: written by hand, or excerpts of public traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from otel_kvpolicy.cli.replay.trace import Request, Trace, build_trace, load

from .full_traces import full_trace_path

EXCERPTS = Path(__file__).parents[1] / "data" / "traces"
MOONCAKE_EXCERPT = EXCERPTS / "mooncake_conversation_first_400.jsonl.gz"
CODING_EXCERPT = EXCERPTS / "kv_cache_tester_coding_first_110.jsonl.gz"
AIRLINE_EXCERPT = EXCERPTS / "tau_bench_airline_first_8.jsonl.gz"


@lru_cache
def trace_at(path: Path) -> Trace:
    return load([path]).trace


def full_trace(name: str) -> Trace:
    """Return a full trace, or skip the test if it is missing."""
    return trace_at(full_trace_path(name))


def request(blocks: Sequence[int | str], time: float = 0, *, size: int = 1, **more: Any) -> Request:
    return Request(time, len(blocks) * size, 1, blocks, **more)


def trace_of(prompts: Sequence[Sequence[int | str]], **more: Any) -> Trace:
    """Return a trace with one request per second and one token per block."""
    return build_trace((request(blocks, time) for time, blocks in enumerate(prompts)), 1, **more)


def write_lines(path: Path, documents: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    return path


def mooncake_line(blocks: Sequence[int], seconds: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": seconds * 1000,
        "input_length": len(blocks) * 512,
        "output_length": 9,
        "hash_ids": list(blocks),
        **more,
    }

"""Traces for the tests: written by hand, generated, and real ones where they are at hand."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.cli.replay.trace.readers import load
from otel_kvpolicy.cli.replay.trace.trace import Request, Trace, build_trace

MOONCAKE = "mooncake_conversation_trace.jsonl.gz"
CODING = "kv_cache_tester_claude_code_60sessions_blk256.jsonl.gz"
AIRLINE = "tau_bench_gpt4o_airline_trajectories.jsonl.gz"

FOLDER = Path(os.environ.get("KVPOLICY_TRACES") or Path(__file__).parents[3] / "shared" / "data")
"""Real traces: public data that is not part of this repository."""


def real(name: str) -> Path:
    """A real trace, or the test is skipped."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no {name} in {FOLDER}: set KVPOLICY_TRACES to a folder that has it")
    return path


@lru_cache
def real_trace(name: str) -> Trace:
    return load([real(name)]).trace


def request(blocks: Sequence[int | str], time: float = 0, *, size: int = 1, **more: Any) -> Request:
    return Request(time, len(blocks) * size, 1, blocks, **more)


def trace_of(prompts: Sequence[Sequence[int | str]], **more: Any) -> Trace:
    """One request a second, each block one token."""
    return build_trace((request(blocks, at) for at, blocks in enumerate(prompts)), 1, **more)


def write_lines(path: Path, documents: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    return path


def mooncake_line(blocks: Sequence[int], at: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": at * 1000,
        "input_length": len(blocks) * 512,
        "output_length": 9,
        "hash_ids": list(blocks),
        **more,
    }

"""Where the full public traces are. They are not part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

from tests import needs

MOONCAKE = "mooncake_conversation_trace.jsonl.gz"
CODING = "kv_cache_tester_claude_code_60sessions_blk256.jsonl.gz"
AIRLINE = "tau_bench_gpt4o_airline_trajectories.jsonl.gz"

VARIABLE = "KVPOLICY_TRACES"
FOLDER = Path(os.environ.get(VARIABLE) or Path(__file__).parents[3] / "shared" / "data")


def full_trace_path(name: str) -> Path:
    """Return the path of a full trace. Skip the test if the trace is missing.

    In CI the test fails instead if ``KVPOLICY_TRACES`` promises the traces.
    """
    path = FOLDER / name
    if not path.exists():
        needs.missing(
            name,
            f"set {VARIABLE} to a folder that has it; see tests/data/traces/SOURCES.md",
            optional=not os.environ.get(VARIABLE),
        )
    return path

"""Real conversations through both pairs. A random model answers; hints, stores, and hits are real.

``KVPOLICY_CONVERSATIONS`` names the file, in the format of ``otel-kvpolicy demo --input``.
``KVPOLICY_CONVERSATIONS_LIMIT`` limits the number of its conversations. The real pair needs a
context length that holds them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy import series
from otel_kvpolicy.cli.demo.runner import write_workload
from otel_kvpolicy.cli.demo.workload import read_conversations, steps

from .. import needs
from .pairs import CHUNK, Pair, wait_until
from .receiver import DecidedCall

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_every_conversation_leaves_decisions_and_hits(
    pair: Pair, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    source = os.environ.get("KVPOLICY_CONVERSATIONS")
    if not source:
        needs.missing("conversations", "set KVPOLICY_CONVERSATIONS", optional=True)
    limit = int(os.environ.get("KVPOLICY_CONVERSATIONS_LIMIT", "0")) or None
    conversations = read_conversations(Path(source))[:limit]
    order = steps(conversations, users=8)
    workload = tmp_path / "workload.json"
    write_workload(workload, pair.model, conversations, order, max_tokens=1)
    before, seen = pair.chunks_written(), len(pair.receiver.spans)
    hits, asked = pair.counter(series.LOOKUP_HIT), pair.counter(series.LOOKUP_REQUESTED)
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    command: list[str | Path] = [
        instrument,
        sys.executable,
        "-m",
        "otel_kvpolicy.cli.demo.application",
        workload,
    ]
    done = subprocess.run(
        command, env=pair.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    calls = [call for span in pair.receiver.spans[seen:] if (call := DecidedCall.of(span))]
    assert len(calls) == len(order)
    assert {call.outcome for call in calls} == {"applied"}
    wait_until(
        lambda: (
            pair.counter(series.LOOKUP_REQUESTED) - asked
            >= sum(c.prompt_tokens // CHUNK for c in calls) * CHUNK
        ),
        "the lookups",
    )
    totals: dict[str, Any] = {
        "calls": len(calls),
        "decisions": dict(Counter(call.decision for call in calls)),
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "cached_tokens": sum(call.cached_tokens for call in calls),
        "chunks_written": pair.chunks_written() - before,
        "lookup_requested_tokens": pair.counter(series.LOOKUP_REQUESTED) - asked,
        "lookup_hit_tokens": pair.counter(series.LOOKUP_HIT) - hits,
    }
    record_property(f"{pair.name}_conversations", json.dumps(totals))
    print(pair.name, totals)
    assert totals["chunks_written"] > 0
    assert 0 < totals["cached_tokens"] < totals["prompt_tokens"]
    assert 0 < totals["lookup_hit_tokens"] <= totals["lookup_requested_tokens"]

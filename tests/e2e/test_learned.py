"""What the adaptive rule needs from the servers: cached tokens per cache, and partial stores.

Checked on the stand-in and on the real pair.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
from otel_kvpolicy.policy.adaptive.rule import AdaptiveRule
from otel_kvpolicy.requests import read_chat

from .pairs import CHUNK, Pair, wait_until
from .receiver import attributes
from .test_contract import _cached, _call, _chunks, _second_turn, _text

pytestmark = pytest.mark.slow


def last_decided(spans: list[Span]) -> dict[str, Any]:
    """Return the attributes of the last decided call."""
    decided = [span for span in spans if "kvpolicy.decision" in attributes(span)]
    return attributes(max(decided, key=lambda span: span.start_time_unix_nano))


def test_the_cached_tokens_of_each_cache_are_on_the_span(pair: Pair) -> None:
    call = _call(pair, "chat", False, _second_turn())
    before = pair.chunks_written()
    (usage,), spans = pair.call([call], KV_CACHE_CACHED_TOKEN_STATS="true")
    first = last_decided(spans)
    wait_until(lambda: pair.chunks_written() - before >= _chunks(usage), "the stored chunks")
    pair.empty_vllm()
    _, spans = pair.call([call], KV_CACHE_CACHED_TOKEN_STATS="true")
    second = last_decided(spans)
    _, spans = pair.call([call], KV_CACHE_CACHED_TOKEN_STATS="true")
    third = last_decided(spans)
    held = _chunks(usage) * CHUNK
    assert (first["kvpolicy.cached.vllm_tokens"], first["kvpolicy.cached.lmcache_tokens"]) == (0, 0)
    assert (second["kvpolicy.cached.vllm_tokens"], second["kvpolicy.cached.lmcache_tokens"]) == (
        0,
        held,
    )
    assert (
        third["kvpolicy.cached.vllm_tokens"]
        == third["gen_ai.usage.cache_read.input_tokens"]
        >= held
    )
    assert third["kvpolicy.cached.lmcache_tokens"] == held


def task(system: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": _text(120)}]


def write_state_of_one_off_tasks(path: Path) -> None:
    """Write the state of a rule that saw 2,000 tasks, none of which came back."""
    now = [0.0]
    rule = AdaptiveRule(clock=lambda: now[0])
    shared = _text(120)
    for number in range(2000):
        body = {"model": "m", "messages": task(shared if number % 2 else _text(120))}
        rule.decide(read_chat(body), None, boundaries_of(body, rule.key))
        now[0] += 1
    path.write_text(json.dumps(rule.export()))


def test_the_head_that_came_back_is_stored_though_its_call_is_skipped(
    pair: Pair, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    write_state_of_one_off_tasks(state)
    system = _text(120)
    settings = {
        "KV_CACHE_RULE": "adaptive",
        "KV_CACHE_STATE_FILE": str(state),
        "KV_CACHE_PARTIAL_STORE": "true",
    }
    before = pair.chunks_written()
    _, spans = pair.call([_call(pair, "chat", False, task(system)) for _ in range(2)], **settings)
    last = last_decided(spans)
    assert (last["kvpolicy.decision"], last["kvpolicy.keep_tokens"]) == ("skip", CHUNK)
    wait_until(lambda: pair.chunks_written() - before >= 1, "the head's chunk")
    pair.empty_vllm()
    (usage,), _ = pair.call([_call(pair, "chat", False, task(system))], KV_CACHE_LAYERING="false")
    assert _cached(usage) == CHUNK
    wait_until(
        lambda: pair.chunks_written() - before >= _chunks(usage),
        "the chunks of a call without a hint",
    )
    assert pair.chunks_written() - before == _chunks(usage)

"""The contract with the servers, checked on the stand-in and on a real vLLM with LMCache.

Hints are honored, hits are reported, and traces join.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_kvpolicy import series

from .pairs import CHUNK, Pair, wait_until
from .receiver import attributes

pytestmark = pytest.mark.slow

SURFACES = [("chat", False), ("chat", True), ("responses", False), ("responses", True)]


def _text(words: int) -> str:
    """Return a new text of ten characters per word.

    240 words are at least one chunk on either tokenizer, and below every threshold.
    """
    return " ".join(secrets.token_hex(4) + "." for _ in range(words))


def _one_off() -> list[dict[str, str]]:
    return [{"role": "user", "content": _text(240)}]


def _second_turn() -> list[dict[str, str]]:
    return [
        {"role": "user", "content": _text(240)},
        {"role": "assistant", "content": "Go on."},
        {"role": "user", "content": "That was all."},
    ]


def _call(
    pair: Pair, endpoint: str, stream: bool, messages: list[dict[str, str]], **extra: Any
) -> dict[str, Any]:
    if endpoint == "chat":
        request = {"model": pair.model, "messages": messages, "max_tokens": 2, **extra}
    else:
        request = {"model": pair.model, "input": messages, "max_output_tokens": 2, **extra}
    return {"endpoint": endpoint, "stream": stream, "request": request}


def _prompt_tokens(usage: dict[str, Any]) -> int:
    tokens: int = usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"]
    return tokens


def _cached(usage: dict[str, Any]) -> int:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached: int = details["cached_tokens"]
    return cached


def _chunks(usage: dict[str, Any]) -> int:
    return _prompt_tokens(usage) // CHUNK


@dataclass
class Rounds:
    """Every surface with a prompt that the rule skips and one that it stores, in two rounds.

    vLLM's own cache is emptied between the rounds.
    """

    first: dict[tuple[str, bool, str], dict[str, Any]]
    second: dict[tuple[str, bool, str], dict[str, Any]]
    written: int
    written_again: int
    lmcache_hits: int
    spans: list[Span]


@pytest.fixture(scope="module")
def rounds(pair: Pair) -> Rounds:
    keys = [
        (endpoint, stream, decision)
        for endpoint, stream in SURFACES
        for decision in ("skip", "store")
    ]
    prompts = {"skip": _one_off, "store": _second_turn}
    calls = [
        _call(pair, endpoint, stream, prompts[decision]()) for endpoint, stream, decision in keys
    ]
    before, hits_before = pair.chunks_written(), pair.counter(series.LOOKUP_HIT)
    usages, spans = pair.call(calls)
    first = dict(zip(keys, usages, strict=True))
    stored = sum(_chunks(usage) for key, usage in first.items() if key[2] == "store")
    wait_until(lambda: pair.chunks_written() - before >= stored, "the stored chunks")
    pair.empty_vllm()
    usages, again = pair.call(calls)
    second = dict(zip(keys, usages, strict=True))
    # The last call must store: once its chunks are written, everything before it is written too.
    written = pair.chunks_written() - before
    sentinel, _ = pair.call([_call(pair, "chat", False, _second_turn())])
    wait_until(
        lambda: pair.chunks_written() - before >= written + _chunks(sentinel[0]),
        "the sentinel's chunks",
    )
    written_again = pair.chunks_written() - before - written - _chunks(sentinel[0])
    hits = pair.counter(series.LOOKUP_HIT) - hits_before
    return Rounds(first, second, written, written_again, hits, [*spans, *again])


@pytest.mark.parametrize(("endpoint", "stream"), SURFACES)
def test_a_skipped_prompt_comes_back_uncached(rounds: Rounds, endpoint: str, stream: bool) -> None:
    first, second = rounds.first[endpoint, stream, "skip"], rounds.second[endpoint, stream, "skip"]
    assert _chunks(first) >= 1
    assert _cached(first) == _cached(second) == 0


@pytest.mark.parametrize(("endpoint", "stream"), SURFACES)
def test_a_stored_prompt_comes_back_from_lmcache(
    rounds: Rounds, endpoint: str, stream: bool
) -> None:
    first, second = (
        rounds.first[endpoint, stream, "store"],
        rounds.second[endpoint, stream, "store"],
    )
    assert _cached(first) == 0
    assert _cached(second) == _chunks(first) * CHUNK >= CHUNK


def test_only_stored_prompts_write_chunks_and_only_once(rounds: Rounds) -> None:
    stored = sum(_chunks(usage) for key, usage in rounds.first.items() if key[2] == "store")
    assert (rounds.written, rounds.written_again) == (stored, 0)
    assert rounds.lmcache_hits == stored * CHUNK


def test_decisions_and_cached_tokens_are_on_the_chat_spans(rounds: Rounds) -> None:
    recorded = [
        (
            span["kvpolicy.decision"],
            span["kvpolicy.hint.outcome"],
            span["gen_ai.usage.cache_read.input_tokens"],
        )
        for span in map(
            attributes, sorted(rounds.spans, key=lambda span: span.start_time_unix_nano)
        )
        if "kvpolicy.decision" in span
    ]
    expected = [
        (key[2], "applied", _cached(usage))
        for usages in (rounds.first, rounds.second)
        for key, usage in usages.items()
    ]
    assert recorded == expected


def test_the_chat_span_is_the_ancestor_of_the_servers(pair: Pair, rounds: Rounds) -> None:
    if not pair.exports_spans:
        pytest.skip("not applicable: the stand-in exports no spans of its own")
    chats = {span.span_id: span for span in rounds.spans if "kvpolicy.decision" in attributes(span)}
    posts = {
        span.span_id: chats[span.parent_span_id]
        for span in rounds.spans
        if span.parent_span_id in chats
    }

    def served() -> list[Span]:
        return [
            span
            for span in list(pair.receiver.spans)
            if span.name == "llm_request" and span.parent_span_id in posts
        ]

    wait_until(lambda: len(served()) == len(chats), "vLLM's spans")
    assert all(span.trace_id == posts[span.parent_span_id].trace_id for span in served())


CAPS: list[tuple[dict[str, Any], int | None]] = [
    ({}, None),
    ({"lmcache.skip_save": True}, None),
    ({"lmcache.max_offload_tokens": 0}, 0),
    ({"lmcache.max_offload_tokens": CHUNK - 1}, 0),
    ({"lmcache.max_offload_tokens": CHUNK + 44}, 1),
    ({"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}, 0),
    ({"lmcache.max_offload_tokens": -5}, 0),
    ({"lmcache.max_offload_tokens": False}, 0),
]
"""Keys that a caller sets, and the chunks that the multi-process server stores; None for all."""


@pytest.fixture(scope="module")
def kept(pair: Pair) -> list[int]:
    """For each of ``CAPS``, the number of its chunks that are found again, or -1 for all."""
    prompts = [_text(240) for _ in CAPS]

    def calls(*, keys: bool) -> list[dict[str, Any]]:
        extras = [
            {"extra_body": {"kv_transfer_params": {"unrelated": 1, **params}}} if keys else {}
            for params, _ in CAPS
        ]
        return [
            _call(pair, "chat", False, [{"role": "user", "content": prompt}], **extra)
            for prompt, extra in zip(prompts, extras, strict=True)
        ]

    sentinel = _call(pair, "chat", False, _second_turn())
    before = pair.chunks_written()
    usages, _ = pair.call([*calls(keys=True), sentinel], KV_CACHE_LAYERING="false")
    expected = sum(
        _chunks(usage) if kept is None else kept
        for usage, (_, kept) in zip(usages, CAPS, strict=False)
    )
    wait_until(
        lambda: pair.chunks_written() - before >= expected + _chunks(usages[-1]),
        "the stored chunks",
    )
    pair.empty_vllm()
    again, _ = pair.call(calls(keys=False), KV_CACHE_LAYERING="false")
    return [
        -1 if _cached(usage) == _chunks(usage) * CHUNK else _cached(usage) // CHUNK
        for usage in again
    ]


@pytest.mark.parametrize("index", range(len(CAPS)), ids=[str(params) for params, _ in CAPS])
def test_the_multi_process_server_reads_the_cap_alone(kept: list[int], index: int) -> None:
    _, expected = CAPS[index]
    assert kept[index] == (-1 if expected is None else expected)


def test_the_connector_reports_its_cached_tokens_on_request(pair: Pair) -> None:
    body = {
        "model": pair.model,
        "messages": _one_off(),
        "max_tokens": 2,
        "kv_transfer_params": {"cached_token_stats": True},
    }
    answers = [
        pair.http.post(f"{pair.base_url}/chat/completions", json=body).json() for _ in range(2)
    ]
    shares = [answer["kv_transfer_params"]["cached_token_stats"] for answer in answers]
    assert shares[0] == {
        "num_vllm_cached_tokens": 0,
        "num_lmcache_cached_tokens": 0,
        "num_lmcache_extra_cached_tokens": 0,
    }
    assert (
        shares[1]["num_vllm_cached_tokens"]
        == answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        > 0
    )


@pytest.mark.e2e
def test_the_stand_ins_metrics_have_names_and_labels_of_real_ones(
    standin_pair: Pair, request: pytest.FixtureRequest
) -> None:
    real_pair: Pair = request.getfixturevalue("real_pair")
    for side in ("url", "lmcache_url"):
        real, ours = (
            real_pair.page(getattr(real_pair, side)),
            standin_pair.page(getattr(standin_pair, side)),
        )
        assert set(ours.labels) <= set(real.labels)
        for name in ours.labels:
            labels = [
                {key for key in page.labels[name] if not key.startswith("otel_scope_")}
                for page in (ours, real)
            ]
            assert labels[0] == labels[1], name

"""The stand-in's engine: what each mode stores, and what it serves from the caches."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from otel_kvpolicy.standin.engine import Engine, EngineDeadError
from otel_kvpolicy.standin.options import Mode, Options
from otel_kvpolicy.standin.prompt import Prompt

LONG = Prompt.of("x" * 4 * 700)  # 700 tokens: two chunks, 43 blocks


def stored(mode: Mode, params: dict[str, Any] | None, **options: Any) -> int:
    return Engine(Options(mode=mode, **options)).prefill(LONG, params).stored_chunks


@pytest.mark.parametrize(
    ("params", "chunks"),
    [
        (None, 2),
        ({"lmcache.skip_save": True}, 2),
        ({"lmcache.max_offload_tokens": 0}, 0),
        ({"lmcache.max_offload_tokens": 255}, 0),
        ({"lmcache.max_offload_tokens": 600}, 2),
        ({"lmcache.max_offload_tokens": 300}, 1),
        ({"lmcache.max_offload_tokens": -5}, 0),
        ({"lmcache.max_offload_tokens": False}, 0),
        ({"lmcache.max_offload_tokens": None}, 2),
        ({"max_offload_tokens": 0}, 2),
    ],
    ids=str,
)
def test_multi_process_mode_reads_only_the_cap(params: dict[str, Any] | None, chunks: int) -> None:
    assert stored("mp", params) == chunks


@pytest.mark.parametrize("value", ["0", "300", [], {}], ids=repr)
def test_a_cap_that_is_not_a_number_stops_the_engine(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(Options())
    with caplog.at_level(logging.CRITICAL), pytest.raises(EngineDeadError):
        engine.prefill(LONG, {"lmcache.max_offload_tokens": value})
    assert "lmcache.max_offload_tokens" in caplog.text
    with pytest.raises(EngineDeadError):
        engine.prefill(LONG, None)


@pytest.mark.parametrize(
    ("params", "chunks"),
    [
        (None, 2),
        ({"lmcache.skip_save": True}, 0),
        ({"lmcache.skip_save": 1}, 0),
        ({"lmcache.skip_save": "false"}, 0),
        ({"lmcache.skip_save": False}, 2),
        ({"lmcache.skip_save": ""}, 2),
        ({"lmcache.skip_save": None}, 2),
        ({"lmcache.max_offload_tokens": 0}, 2),
        ({"lmcache.max_offload_tokens": "0"}, 2),
    ],
    ids=str,
)
def test_in_process_mode_skips_if_skip_save_is_true_in_python(
    params: dict[str, Any] | None, chunks: int
) -> None:
    assert stored("in_process", params) == chunks


def test_the_two_keys_together_skip_in_both_modes() -> None:
    both = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}
    assert stored("mp", both) == stored("in_process", both) == 0


def test_an_lmcache_that_ignores_hints_stores_every_call() -> None:
    assert stored("mp", {"lmcache.max_offload_tokens": 0}, honour_hints=False) == 2


def test_without_a_connector_nothing_is_stored_and_the_hint_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert stored("none", {"lmcache.skip_save": True}) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "kv_transfer_params" in caplog.text


def test_a_skipped_prompt_is_still_served_from_the_cache() -> None:
    engine = Engine(Options())
    engine.prefill(LONG, None)
    engine.reset_gpu_cache()
    served = engine.prefill(LONG, {"lmcache.max_offload_tokens": 0})
    assert (
        served.gpu_tokens,
        served.lmcache_tokens,
        served.external_tokens,
        served.stored_chunks,
    ) == (0, 512, 512, 0)


def test_tokens_in_vllms_own_cache_are_not_loaded_from_lmcache() -> None:
    engine = Engine(Options())
    engine.prefill(LONG, None)
    again = engine.prefill(LONG, None)
    assert (again.gpu_tokens, again.lmcache_tokens, again.external_tokens, again.cached_tokens) == (
        688,
        512,
        0,
        688,
    )


def test_the_last_token_of_a_cached_prompt_is_computed() -> None:
    exact = Prompt.of("y" * 4 * 512)
    engine = Engine(Options())
    engine.prefill(exact, None)
    assert engine.prefill(exact, None).gpu_tokens == 496
    engine.reset_gpu_cache()
    assert engine.prefill(exact, None).cached_tokens == 511


def test_a_prompt_shorter_than_a_chunk_is_neither_stored_nor_looked_up() -> None:
    engine = Engine(Options())
    engine.prefill(Prompt.of("z" * 4 * 255), None)
    assert engine.counts.total("l1_write_chunks") == 0
    assert (
        dict(next(iter(engine.counts.values["lookup_early_exit_requests"])))["reason"]
        == "empty_chunk_hashes"
    )


def test_vllms_own_cache_evicts_the_oldest_prompt() -> None:
    engine = Engine(Options(mode="none", gpu_tokens=1024))
    prompts = [Prompt.of(letter * 4 * 496) for letter in "abc"]
    for prompt in prompts:
        engine.prefill(prompt, None)
    assert engine.prefill(prompts[2], None).gpu_tokens == 480
    # Two prompts of 31 blocks leave 2 of 64 blocks to the first prompt: its first two, because a
    # prompt is evicted from its end.
    assert engine.prefill(prompts[0], None).gpu_tokens == 32


def test_a_salt_separates_prompts_and_is_a_metric_label() -> None:
    engine = Engine(Options())
    text = "x" * 4 * 700
    engine.prefill(Prompt.of(text), None)
    assert engine.prefill(Prompt.of(text, "tenant"), None).cached_tokens == 0
    assert {dict(key)["cache_salt"] for key in engine.counts.values["lookup_requested_tokens"]} == {
        "",
        "tenant",
    }

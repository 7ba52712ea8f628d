"""The hint: exact keys and types. The caller's hint wins, and nothing else changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from otel_kvpolicy import KVCacheLayeringPolicy, decide, fold_kv_hint
from otel_kvpolicy.hints.lmcache import LMCACHE

SKIP = {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}
STORE = {"lmcache.skip_save": False}
LONG = "x" * 4 * 1024


@pytest.mark.parametrize(
    ("skip", "keys", "params"),
    [
        (True, "both", SKIP),
        (False, "both", STORE),
        (True, "skip_save", {"lmcache.skip_save": True}),
        (False, "skip_save", STORE),
        (True, "max_offload_tokens", {"lmcache.max_offload_tokens": 0}),
        (False, "max_offload_tokens", {}),
    ],
)
def test_keys_and_exact_types(skip: bool, keys: Any, params: dict[str, Any]) -> None:
    built = LMCACHE.params(skip=skip, keys=keys)
    assert built == params
    assert all(type(value) in {bool, int} for value in built.values())
    assert all(type(value) is int for key, value in built.items() if key.endswith("tokens"))


def test_folding_keeps_all_other_settings() -> None:
    settings = {
        "temperature": 0.2,
        "reasoning_effort": "low",
        "extra_body": {
            "top_k": 5,
            "priority": 3,
            "kv_transfer_params": {"do_remote_decode": True, "lmcache.tag.user": "u"},
        },
    }
    before = copy.deepcopy(settings)
    folded = fold_kv_hint(settings, user_prompt="hi")
    assert settings == before
    assert folded == {
        "temperature": 0.2,
        "reasoning_effort": "low",
        "extra_body": {
            "top_k": 5,
            "priority": 3,
            "kv_transfer_params": {"do_remote_decode": True, "lmcache.tag.user": "u", **SKIP},
        },
    }
    assert fold_kv_hint(None, system_prompt=LONG) == {"extra_body": {"kv_transfer_params": STORE}}
    assert fold_kv_hint({"extra_body": None}, system_prompt=LONG) == {
        "extra_body": {"kv_transfer_params": STORE}
    }


@pytest.mark.parametrize(
    "given_hint",
    [
        {"lmcache.skip_save": False},
        {"lmcache.max_offload_tokens": 512},
        {"lmcache.skip_save": None},
        "garbled",
        [],
    ],
)
def test_a_hint_of_the_caller_is_kept(given_hint: Any) -> None:
    settings = {"extra_body": {"kv_transfer_params": given_hint}}
    assert fold_kv_hint(settings, user_prompt="hi") == settings


@pytest.mark.parametrize(
    ("name", "value"), [("KV_CACHE_LAYERING", "false"), ("KV_CACHE_MODE", "observe")]
)
def test_no_hint_is_folded_if_disabled_or_observing(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert fold_kv_hint({"seed": 1}, user_prompt="hi") == {"seed": 1}


def test_hint_keys_limits_the_keys_that_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_CACHE_HINT_KEYS", "max_offload_tokens")
    assert fold_kv_hint({}, user_prompt="hi") == {
        "extra_body": {"kv_transfer_params": {"lmcache.max_offload_tokens": 0}}
    }
    assert fold_kv_hint({}, system_prompt=LONG) == {}


@pytest.mark.parametrize(
    ("params", "skips"),
    [
        ({"lmcache.skip_save": True}, True),
        ({"lmcache.skip_save": "false"}, True),  # true in Python, as LMCache reads it
        ({"lmcache.skip_save": 0}, False),
        ({"lmcache.max_offload_tokens": 0}, True),
        ({"lmcache.max_offload_tokens": 512}, False),
        ({"lmcache.max_offload_tokens": None}, False),
        ({"lmcache.skip_save": False, "lmcache.max_offload_tokens": False}, True),
        ("garbled", False),
    ],
)
def test_a_hint_of_the_caller_is_interpreted_like_lmcache_does(params: Any, skips: bool) -> None:
    assert LMCACHE.caller_skips(params) is skips


def test_a_cap_that_would_stop_the_server_is_recognized() -> None:
    assert LMCACHE.malformed({"lmcache.max_offload_tokens": "0"})
    assert not LMCACHE.malformed({"lmcache.max_offload_tokens": 0})
    assert not LMCACHE.malformed({})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=10,
)
params_strategy = st.none() | st.dictionaries(
    st.sampled_from(
        [
            "lmcache.skip_save",
            "lmcache.max_offload_tokens",
            "do_remote_decode",
            "lmcache.tag.a",
            "x",
        ]
    ),
    json_values,
    max_size=4,
)


@hypothesis_settings(deadline=None)
@given(
    settings=st.dictionaries(st.text(max_size=10), json_values, max_size=4),
    body=st.none() | st.dictionaries(st.text(max_size=10), json_values, max_size=4),
    params=params_strategy,
    prompt=st.text(max_size=50),
)
def test_folding_adds_our_keys_and_nothing_else(
    settings: dict[str, Any], body: dict[str, Any] | None, params: Any, prompt: str
) -> None:
    settings = {key: value for key, value in settings.items() if key != "extra_body"}
    if body is not None:
        settings["extra_body"] = {**body, "kv_transfer_params": params}
    before = copy.deepcopy(settings)
    folded = fold_kv_hint(settings, user_prompt=prompt)
    assert settings == before
    if body is not None and LMCACHE.is_callers(params):
        assert folded == settings
        return
    added = folded["extra_body"].pop("kv_transfer_params")
    assert added == {**(params or {}), **SKIP} if body is not None else SKIP
    assert {**folded, "extra_body": folded["extra_body"]} == {
        **settings,
        "extra_body": {
            key: value for key, value in (body or {}).items() if key != "kv_transfer_params"
        },
    }


def test_stats_and_partial_stores_add_their_keys() -> None:
    assert LMCACHE.params(skip=True) == SKIP
    assert LMCACHE.params(skip=False, stats=True) == {**STORE, "cached_token_stats": True}
    assert LMCACHE.params(skip=True, keep_tokens=512) == {
        "lmcache.skip_save": True,
        "lmcache.max_offload_tokens": 512,
    }
    assert LMCACHE.params(skip=True, keys="max_offload_tokens", keep_tokens=512) == {
        "lmcache.max_offload_tokens": 512
    }


def test_a_cap_of_one_token_does_not_skip_and_a_string_is_not_a_cap() -> None:
    assert not LMCACHE.caller_skips({"lmcache.max_offload_tokens": 1})
    assert not LMCACHE.malformed("garbled")
    assert not LMCACHE.malformed(None)


REPLY = [{"role": "assistant", "content": "ok"}]
PARTS: dict[str, dict[str, Any]] = {
    "system_prompt": {"system_prompt": LONG},
    "user_prompt": {"user_prompt": 2 * LONG},
    "message_history": {"message_history": REPLY},
    "rag_context": {"rag_context": LONG},
    "role": {"role": "planner", "user_prompt": LONG},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]},
}


@pytest.mark.parametrize("part", PARTS)
def test_every_argument_affects_the_decision(part: str) -> None:
    call = PARTS[part]
    decision = decide(**call)
    assert decision == KVCacheLayeringPolicy().decide(**call)
    assert decision.cache_worthy
    assert fold_kv_hint({}, **call) == {"extra_body": {"kv_transfer_params": STORE}}
    without = {name: value for name, value in call.items() if name != part}
    assert fold_kv_hint({}, **without) == {"extra_body": {"kv_transfer_params": SKIP}}


def test_folding_asks_for_cached_token_stats_if_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KV_CACHE_CACHED_TOKEN_STATS", "true")
    assert fold_kv_hint({}, user_prompt="hi") == {
        "extra_body": {"kv_transfer_params": {**SKIP, "cached_token_stats": True}}
    }

"""``KV_CACHE_DIALECT``: which dialect each server is sent, and what vLLM's own offloading reads."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from openai import OpenAI

from otel_kvpolicy import fold_kv_hint
from otel_kvpolicy.cli.explain.dry_run import destination_of, dry_run, settings_with
from otel_kvpolicy.hints.dialects import ALL, Dialects
from otel_kvpolicy.hints.lmcache import LMCACHE
from otel_kvpolicy.hints.targets import Origin
from otel_kvpolicy.hints.vllm_offload import VLLM_OFFLOAD
from otel_kvpolicy.settings import current
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry, attributes

CALL: dict[str, Any] = {
    "model": "stand-in",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}
LONG = "x" * 4 * 1024


def dialect_of(text: str, url: str) -> str:
    return Dialects(text).of(Origin.of(httpx2.URL(url))).name


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("lmcache", "http://a.lan:8000/v1", "lmcache"),
        ("vllm-offload", "http://a.lan:8000/v1", "vllm-offload"),
        (" VLLM-Offload ", "http://a.lan/v1", "vllm-offload"),
        ("lmcache,vllm-offload@*.lan:8001", "http://a.lan:8001/v1", "vllm-offload"),
        ("lmcache,vllm-offload@*.lan:8001", "http://a.lan:8000/v1", "lmcache"),
        ("vllm-offload@a.lan", "http://b.lan/v1", "lmcache"),
        ("vllm-offload, lmcache@a.lan", "http://a.lan/v1", "lmcache"),
        ("vllm-offload@a.lan,lmcache@*.lan,vllm-offload", "http://a.lan/v1", "vllm-offload"),
        ("vllm-offload@a.lan,lmcache@*.lan,vllm-offload", "http://b.lan/v1", "lmcache"),
        ("vllm-offload@a.lan,lmcache@*.lan,vllm-offload", "http://c.example/v1", "vllm-offload"),
        ("vllm-offload@[::1]:8001", "http://[::1]:8001/v1", "vllm-offload"),
        ("vllm-offload@bücher.lan", "http://xn--bcher-kva.lan/v1", "vllm-offload"),
        ("vllm-offload@A.LAN.", "http://a.lan/v1", "vllm-offload"),
    ],
)
def test_the_first_entry_that_matches_a_server_counts(text: str, url: str, name: str) -> None:
    assert dialect_of(text, url) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "sglang",
        "lmcache,vllm-offload",
        "lmcache@",
        "lmcache@http://a",
        "@a.lan",
        "lmcache@all",
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Dialects(text)


def test_a_bad_setting_falls_back_to_lmcache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KV_CACHE_DIALECT", "sglang")
    assert current().dialect == Dialects("lmcache")
    assert "KV_CACHE_DIALECT" in caplog.text


def test_an_unknown_server_gets_the_dialect_for_all_others() -> None:
    assert Dialects("vllm-offload@a.lan").of(None) is LMCACHE
    assert Dialects("vllm-offload,lmcache@a.lan").of(None) is VLLM_OFFLOAD
    assert list(ALL) == ["lmcache", "vllm-offload"]


def test_dialects_compare_by_their_text() -> None:
    assert Dialects("LMCache") == Dialects("lmcache")
    assert hash(Dialects("LMCache")) == hash(Dialects("lmcache"))
    assert Dialects("lmcache") != "lmcache"
    assert repr(Dialects("lmcache")) == "Dialects('lmcache')"


@pytest.mark.parametrize("keys", ["both", "skip_save", "max_offload_tokens"])
def test_skip_is_a_cap_of_exactly_type_int_and_store_is_no_key(keys: Any) -> None:
    skip = VLLM_OFFLOAD.params(skip=True, keys=keys, stats=True)
    assert skip == {"max_offload_tokens": 0}
    assert type(skip["max_offload_tokens"]) is int
    assert VLLM_OFFLOAD.params(skip=True, keys=keys, keep_tokens=512) == {"max_offload_tokens": 512}
    assert VLLM_OFFLOAD.params(skip=False, keys=keys, stats=True) == {}
    assert VLLM_OFFLOAD.keeps_parts(keys)


@pytest.mark.parametrize(
    ("given", "callers", "skips", "caps"),
    [
        (None, False, False, False),
        ({}, False, False, False),
        ({"do_remote_decode": True}, False, False, False),
        ({"lmcache.skip_save": True}, False, False, False),  # of another connector
        ({"max_offload_tokens": 0}, True, True, True),
        ({"max_offload_tokens": 64}, True, False, True),
        ({"max_offload_tokens": False}, True, False, False),  # vLLM ignores a bool
        ({"max_offload_tokens": -1}, True, False, False),
        ({"max_offload_tokens": "0"}, True, False, False),
        ({"max_offload_tokens": 0.0}, True, False, False),
        ({"max_offload_tokens": None}, True, False, False),
        ("garbled", True, False, False),
        ([], True, False, False),
    ],
)
def test_the_callers_cap_is_read_as_vllm_reads_it(
    given: Any, callers: bool, skips: bool, caps: bool
) -> None:
    assert VLLM_OFFLOAD.is_callers(given) is callers
    assert VLLM_OFFLOAD.caller_skips(given) is skips
    assert VLLM_OFFLOAD.caller_caps(given) is caps
    assert VLLM_OFFLOAD.malformed(given) is None


def test_folding_by_hand_uses_the_dialect_for_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_CACHE_DIALECT", "vllm-offload,lmcache@a.lan")
    assert fold_kv_hint({}, user_prompt="hi") == {
        "extra_body": {"kv_transfer_params": {"max_offload_tokens": 0}}
    }
    assert fold_kv_hint({"seed": 1}, system_prompt=LONG) == {"seed": 1}
    own = {"extra_body": {"kv_transfer_params": {"max_offload_tokens": 64}}}
    assert fold_kv_hint(own, user_prompt="hi") == own


def test_a_live_call_is_sent_the_dialect_of_its_server(
    server: StandIn, instrumented: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_DIALECT", "lmcache,vllm-offload@127.0.0.1")
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        client.chat.completions.create(
            **CALL, extra_body={"kv_transfer_params": {"do_remote_decode": True}}
        )
        assert server.last.body["kv_transfer_params"] == {
            "do_remote_decode": True,
            "max_offload_tokens": 0,
        }
        client.chat.completions.create(
            **{**CALL, "messages": [{"role": "system", "content": LONG}, *CALL["messages"]]}
        )
        assert "kv_transfer_params" not in server.last.body
        client.chat.completions.create(
            **CALL, extra_body={"kv_transfer_params": {"max_offload_tokens": 0}}
        )
    assert [
        (attributes(span)["kvpolicy.decision"], attributes(span)["kvpolicy.hint.outcome"])
        for span in instrumented.decided
    ] == [("skip", "applied"), ("store", "applied"), ("skip", "caller")]


@pytest.mark.parametrize(
    ("base_url", "sent"),
    [
        ("http://gb10.lan:8001/v1", {"max_offload_tokens": 0}),
        ("http://gb10.lan:8000/v1", LMCACHE.params(skip=True)),
        (None, LMCACHE.params(skip=True)),
    ],
)
def test_a_dry_run_shows_what_the_server_would_be_sent(
    base_url: str | None, sent: dict[str, Any]
) -> None:
    now = settings_with(("KV_CACHE_DIALECT=lmcache,vllm-offload@gb10.lan:8001",))
    destination = base_url and destination_of(base_url, now)
    assert dry_run(CALL, now, None, destination or None).sent == sent

"""What no stand-in does: other servers, other releases, late stores, half strict servers, a server that goes away."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from otel_kvpolicy.standin import StandIn

from .asking import found_at, found_in, notes, outcomes
from .relay import Exchange, Relay

PAGE = (
    Path(__file__).parents[1] / "dashboards" / "pages" / "lmcache_mp_0.5.6_metrics.prom"
).read_text()


def _html(_: Exchange) -> Response:
    return Response("<html>\n<body>hello</body></html>", media_type="text/html")


def _missing(_: Exchange) -> Response:
    return JSONResponse({"detail": "Not Found"}, 404)


# --- no vLLM, or no LMCache ---------------------------------------------------------------------------------------------------------


def test_a_web_site_is_no_openai_server() -> None:
    with StandIn() as server, Relay(server.url, **{"v1/models": _html}) as site:
        found = found_at("--base-url", site.base_url)
    assert found["exit_code"] == 3
    assert (
        found["trouble"]
        == f"{site.url}/v1/models lists no model: is this an OpenAI-compatible server?"
    )


@pytest.mark.parametrize("edit", [_html, _missing, lambda _: Response("oh\nno", 500)])
def test_a_server_that_only_lists_models_is_one_line(edit: Any) -> None:
    with StandIn() as server, Relay(server.url, chat=edit) as half:
        found = found_at("--base-url", half.base_url)
    assert found["exit_code"] == 3
    assert found["trouble"].startswith(f"{half.url}/v1/chat/completions answered ")
    assert "\n" not in found["trouble"]


def test_another_openai_server_is_said_to_be_no_vllm() -> None:
    with (
        StandIn(mode="none", prompt_tokens_details=False) as server,
        Relay(server.url, version=_missing, metrics=_missing) as other,
    ):
        found = found_at("--base-url", other.base_url)
    assert outcomes(found) == ("inconclusive",) * 3
    assert found["exit_code"] == 3
    assert "This does not look like vLLM" in notes(found)


def test_an_lmcache_address_that_leads_nowhere_is_one_line() -> None:
    with StandIn() as server:
        found = found_at("--base-url", server.base_url, "--lmcache-url", "http://127.0.0.1:9")
    assert found["exit_code"] == 3
    assert found["trouble"].startswith("cannot reach http://127.0.0.1:9: ")
    assert found["vllm"]["version"] == "0.32.0"


def test_an_lmcache_address_of_something_else_is_one_line() -> None:
    with StandIn() as server:
        found = found_at("--base-url", server.base_url, "--lmcache-url", server.url)
    assert found["exit_code"] == 3
    assert (
        found["trouble"]
        == f"{server.url} answers, but neither /status nor /metrics is of LMCache's multi-process server"
    )


def test_an_lmcache_address_that_asks_for_a_key_is_doubted() -> None:
    with (
        StandIn() as server,
        Relay(server.url, status=lambda _: Response(status_code=403)) as guarded,
    ):
        found = found_at("--base-url", server.base_url, "--lmcache-url", guarded.url)
    assert found["exit_code"] == 3
    assert found["trouble"].endswith(
        "LMCache's own server asks for none, so is this its address (--lmcache-url)?"
    )


def test_the_lmcache_of_another_vllm_is_told_and_not_relied_on() -> None:
    with StandIn() as server, StandIn() as stranger:
        found = found_at("--base-url", server.base_url, "--lmcache-url", str(stranger.lmcache_url))
    assert outcomes(found) == ("ignored", "honoured", "honoured")
    assert "it is another vLLM's" in notes(found)


def test_a_multi_process_server_beside_an_in_process_lmcache_is_not_used() -> None:
    with StandIn(mode="in_process") as server, StandIn() as stranger:
        found = found_at("--base-url", server.base_url, "--lmcache-url", str(stranger.lmcache_url))
    assert (outcomes(found), found["mode"]) == (("honoured", "ignored", "honoured"), "in_process")
    assert "The server at --lmcache-url is not used" in notes(found)


# --- other releases -----------------------------------------------------------------------------------------------------------------


def test_an_lmcache_before_the_cap_is_to_be_upgraded() -> None:
    with (
        StandIn(honour_hints=False) as server,
        Relay(str(server.lmcache_url), version=lambda _: JSONResponse("0.5.4")) as old,
    ):
        found = found_at("--base-url", server.base_url, "--lmcache-url", old.url)
    assert (outcomes(found), found["lmcache"]["version"]) == (("ignored",) * 3, "0.5.4")
    assert "LMCache 0.5.4 has no control of single requests" in notes(found)


@pytest.mark.parametrize(
    ("page", "release"),
    [
        (
            "lmcache_mp_lookup_request_hit_tokens_total 1\nlmcache_mp_l1_staging_bytes 0\n",
            "0.5.7 or later",
        ),
        (PAGE, "0.5.6 or later"),
        ("lmcache_mp_lookups_requests_total 1\n", "0.5.5"),
        ("lmcache_mp_l2_store_adapters 1\n", "0.5.3 or 0.5.4"),
        ("lmcache_mp_l1_memory_usage_bytes 1\n", "0.4.7 to 0.5.0"),
        ("lmcache_mp_l1_write_keys_total 1\n", "before 0.4.7"),
        ("lmcache_mp:l1_write_keys_total 1\n", "before 0.4.7"),
        ("something_else 1\n", None),
    ],
    ids=lambda value: None if value and "\n" in value else str(value),
)
def test_the_release_is_known_by_its_metric_names(page: str, release: str | None) -> None:
    with (
        StandIn(fail_first=1) as server,
        Relay(str(server.lmcache_url), metrics=lambda _: page) as lmcache,
    ):
        found = found_at(
            "--base-url", server.base_url, "--lmcache-url", lmcache.url
        )  # what is read before the first prompt tells
    assert (found["metrics_release"], found["exit_code"]) == (release, 3)


def test_names_that_the_dashboards_do_not_read_are_told() -> None:
    page = "lmcache_mp_l1_write_keys_total 1\n"
    with StandIn() as server, Relay(str(server.lmcache_url), metrics=lambda _: page) as lmcache:
        found = found_at("--base-url", server.base_url, "--lmcache-url", lmcache.url)
    assert outcomes(found) == ("ignored", "honoured", "honoured")
    assert "names are those of before 0.4.7" in notes(found)


def test_series_that_the_dashboards_need_are_missed_by_name() -> None:
    def without(exchange: Exchange) -> str:
        return (
            "\n".join(
                line
                for line in exchange.answer.text.splitlines()
                if "lmcache_mp_l1_memory_usage_bytes" not in line
            )
            + "\n"
        )

    with StandIn() as server, Relay(str(server.lmcache_url), metrics=without) as lmcache:
        found = found_at("--base-url", server.base_url, "--lmcache-url", lmcache.url)
    assert found["exit_code"] == 0
    assert found["missing_metrics"] == ["lmcache_mp_l1_memory_usage_bytes"]
    assert "not there: lmcache_mp_l1_memory_usage_bytes." in notes(found)


def test_a_page_that_is_no_prometheus_text_counts_as_none() -> None:
    with StandIn() as server, Relay(server.url, metrics=_html) as vllm:
        found = found_at("--base-url", vllm.base_url, "--lmcache-url", str(server.lmcache_url))
    assert (found["exit_code"], found["vllm"]["metrics"]) == (0, False)


def test_a_connector_that_shows_with_the_first_prompt_is_seen() -> None:
    """LMCache's in-process series are not on the page of a vLLM that has served nothing yet."""
    fresh = True

    def page(exchange: Exchange) -> str | None:
        return (
            "\n".join(line for line in exchange.answer.text.splitlines() if "lmcache:" not in line)
            + "\n"
            if fresh
            else None
        )

    def chat(_: Exchange) -> None:
        nonlocal fresh
        fresh = False

    with StandIn(mode="in_process") as server, Relay(server.url, metrics=page, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url)
    assert (found["mode"], outcomes(found)) == ("in_process", ("honoured", "ignored", "honoured"))


def test_usage_that_names_cached_tokens_only_where_there_are_some_reports_them() -> None:
    """As vLLM did for long: no details beside a prompt that was not cached."""

    def chat(exchange: Exchange) -> Any:
        told = exchange.told
        if not told.get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens"):
            told["usage"].pop("prompt_tokens_details", None)
        return told

    with StandIn(mode="in_process") as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url)
    assert found["vllm"]["reports_cached_tokens"] is True
    assert (found["exit_code"], outcomes(found)) == (0, ("honoured", "ignored", "honoured"))


# --- half strict, late, gone ----------------------------------------------------------------------------------------------------------


def test_a_server_that_refuses_long_prompts_does_not_refuse_the_hint() -> None:
    def chat(exchange: Exchange) -> Response | None:
        return (
            JSONResponse({"error": "prompt\ntoo long"}, 400)
            if len(exchange.prompt) > 1000
            else None
        )

    with StandIn() as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url)
    assert found["exit_code"] == 3
    assert found["trouble"].startswith(
        "the server refuses a prompt of 3 chunks of 256 tokens: 400 "
    )


def test_a_server_that_refuses_every_call_is_one_line() -> None:
    with (
        StandIn() as server,
        Relay(server.url, chat=lambda _: JSONResponse({"error": "no\nmax_tokens"}, 400)) as vllm,
    ):
        found = found_at("--base-url", vllm.base_url)
    assert found["trouble"].startswith("the server refuses a plain chat call: 400 ")


def test_a_server_that_refuses_the_salt_is_judged_without() -> None:
    def chat(exchange: Exchange) -> Response | None:
        return (
            JSONResponse({"error": "unknown field cache_salt"}, 422)
            if "cache_salt" in exchange.body
            else None
        )

    with StandIn(mode="in_process") as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url, "--refresh", "0")
    assert (found["exit_code"], outcomes(found)) == (0, ("honoured", "ignored", "honoured"))


def test_a_store_that_shows_late_is_not_taken_for_a_skip() -> None:
    """LMCache stores in the background: at the first asking it may not have begun."""
    sent: Counter[str] = Counter()

    def chat(exchange: Exchange) -> Any:
        told = exchange.told
        sent[exchange.prompt] += 1
        if sent[exchange.prompt] == 2:
            told["kv_transfer_params"]["cached_token_stats"]["num_lmcache_cached_tokens"] = 0
        return told

    with (
        StandIn(honour_hints=False, serve_metrics=False) as server,
        Relay(server.url, chat=chat) as vllm,
    ):
        found = found_at("--base-url", vllm.base_url)
    assert outcomes(found) == ("ignored",) * 3


def test_counters_that_others_move_prove_no_skip() -> None:
    """A store that shows late, on a busy server: others move the counter in its stead, and it stands still just after a hint."""
    chunks, busy = 0, True

    def chat(exchange: Exchange) -> None:
        nonlocal busy
        params = exchange.body.get("kv_transfer_params", {})
        busy = "cached_token_stats" in params or not (
            params.get("lmcache.skip_save") or "lmcache.max_offload_tokens" in params
        )

    def page(_: Exchange) -> str:
        nonlocal chunks
        chunks += 10 if busy else 0
        return f"lmcache_mp_l1_write_chunks_total {chunks}\n"

    with (
        StandIn(vendored_connector=True) as server,
        Relay(server.url, chat=chat) as vllm,
        Relay(str(server.lmcache_url), metrics=page) as lmcache,
    ):
        found = found_at("--base-url", vllm.base_url, "--lmcache-url", lmcache.url)
    assert outcomes(found) == ("inconclusive",) * 3
    assert found["exit_code"] == 3


def test_a_server_that_goes_away_in_the_middle_leaves_no_verdict() -> None:
    calls = 0

    def chat(_: Exchange) -> Response | None:
        nonlocal calls
        calls += 1
        return Response("gone", 503) if calls > 20 else None

    with StandIn() as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url, "--rounds", "5")
    assert found["trials"]
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    assert "answered 503: gone" in found["trouble"]


def test_nothing_is_asked_but_pages_and_chat_and_nothing_is_cleared() -> None:
    with StandIn() as server, Relay(server.url) as vllm, Relay(str(server.lmcache_url)) as lmcache:
        before = found_in(server)
        stored = server.chunks_stored
        found = found_at("--base-url", vllm.base_url, "--lmcache-url", lmcache.url)
        assert len(server.engine.cache.l1) >= stored
    assert found["exit_code"] == before["exit_code"] == 0
    assert set(vllm.asked) == {
        ("GET", "/v1/models"),
        ("GET", "/version"),
        ("GET", "/metrics"),
        ("POST", "/v1/chat/completions"),
    }
    assert set(lmcache.asked) <= {
        ("GET", "/status"),
        ("GET", "/version"),
        ("GET", "/config"),
        ("GET", "/metrics"),
    }


def test_no_hint_that_ends_a_server_is_ever_sent() -> None:
    with StandIn() as server:
        found_in(server)
        caps = [
            request.body["kv_transfer_params"].get("lmcache.max_offload_tokens")
            for request in server.requests
            if _hinted(request.body)
        ]
    assert caps
    assert all(cap is None or type(cap) is int for cap in caps)


def _hinted(body: dict[str, Any]) -> bool:
    return "kv_transfer_params" in body

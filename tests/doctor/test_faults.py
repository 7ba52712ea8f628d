"""What the stand-in cannot do: other servers and releases, late stores, servers that go away."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from otel_kvpolicy.standin import StandIn

from .asking import codes, found_at, found_in, outcomes, values
from .relay import Exchange, Relay

PAGE = (
    Path(__file__).parents[1] / "dashboards" / "pages" / "lmcache_mp_0.5.6_metrics.prom"
).read_text()


def _html(_: Exchange) -> Response:
    return Response("<html>\n<body>hello</body></html>", media_type="text/html")


def _missing(_: Exchange) -> Response:
    return JSONResponse({"detail": "Not Found"}, 404)


# --- not vLLM, or not LMCache ---------------------------------------------------------------------


def test_a_web_site_is_not_an_openai_server() -> None:
    with StandIn() as server, Relay(server.url, **{"v1/models": _html}) as site:
        found = found_at("--base-url", site.base_url)
    assert (found["exit_code"], found["trouble_code"]) == (3, "no_models")
    assert f"{site.url}/v1/models" in found["trouble"]


@pytest.mark.parametrize("edit", [_html, _missing, lambda _: Response("oh\nno", 500)])
def test_a_server_that_only_lists_models_ends_the_examination(edit: Any) -> None:
    with StandIn() as server, Relay(server.url, chat=edit) as half:
        found = found_at("--base-url", half.base_url)
    assert (found["exit_code"], found["trouble_code"]) == (3, "unusable_answer")
    assert f"{half.url}/v1/chat/completions" in found["trouble"]
    assert "\n" not in found["trouble"]


def test_another_openai_server_is_not_taken_for_vllm() -> None:
    with (
        StandIn(mode="none", prompt_tokens_details=False) as server,
        Relay(server.url, version=_missing, metrics=_missing) as other,
    ):
        found = found_at("--base-url", other.base_url)
    assert outcomes(found) == ("inconclusive",) * 3
    assert found["exit_code"] == 3
    assert codes(found)[0] == "not_vllm"


def test_an_unreachable_lmcache_ends_the_examination() -> None:
    with StandIn() as server:
        found = found_at("--base-url", server.base_url, "--lmcache-url", "http://127.0.0.1:9")
    assert (found["exit_code"], found["trouble_code"]) == (3, "unreachable")
    assert "http://127.0.0.1:9" in found["trouble"]
    assert found["vllm"]["version"] == "0.32.0"


def test_an_lmcache_address_of_another_server_ends_the_examination() -> None:
    with StandIn() as server:
        found = found_at("--base-url", server.base_url, "--lmcache-url", server.url)
    assert (found["exit_code"], found["trouble_code"]) == (3, "not_lmcache")
    assert server.url in found["trouble"]


def test_an_lmcache_address_that_asks_for_a_key_points_to_its_option() -> None:
    with (
        StandIn() as server,
        Relay(server.url, status=lambda _: Response(status_code=403)) as guarded,
    ):
        found = found_at("--base-url", server.base_url, "--lmcache-url", guarded.url)
    assert (found["exit_code"], found["trouble_code"]) == (3, "credentials_required")
    assert "--lmcache-url" in found["trouble"]


def test_counters_of_an_lmcache_of_another_vllm_are_not_used() -> None:
    with StandIn() as server, StandIn() as stranger:
        found = found_at("--base-url", server.base_url, "--lmcache-url", str(stranger.lmcache_url))
    assert outcomes(found) == ("ignored", "honoured", "honoured")
    assert "other_lmcache" in codes(found)


def test_a_multi_process_server_beside_an_in_process_lmcache_is_not_used() -> None:
    with StandIn(mode="in_process") as server, StandIn() as stranger:
        found = found_at("--base-url", server.base_url, "--lmcache-url", str(stranger.lmcache_url))
    assert (outcomes(found), found["mode"]) == (("honoured", "ignored", "honoured"), "in_process")
    assert "lmcache_not_used" in codes(found)


# --- other releases -------------------------------------------------------------------------------


def test_an_lmcache_too_old_for_the_cap_needs_an_upgrade() -> None:
    with (
        StandIn(honour_hints=False) as server,
        Relay(str(server.lmcache_url), version=lambda _: JSONResponse("0.5.4")) as old,
    ):
        found = found_at("--base-url", server.base_url, "--lmcache-url", old.url)
    assert (outcomes(found), found["lmcache"]["version"]) == (("ignored",) * 3, "0.5.4")
    assert values(found, "upgrade_lmcache") == {"version": "0.5.4"}


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
def test_the_release_is_recognized_by_its_metric_names(page: str, release: str | None) -> None:
    with (
        StandIn(fail_first=1) as server,
        Relay(str(server.lmcache_url), metrics=lambda _: page) as lmcache,
    ):
        # The first prompt fails, so only what was read before it counts.
        found = found_at("--base-url", server.base_url, "--lmcache-url", lmcache.url)
    assert (found["metrics_release"], found["exit_code"]) == (release, 3)


def test_metric_names_that_the_dashboards_do_not_query_are_reported() -> None:
    page = "lmcache_mp_l1_write_keys_total 1\n"
    with StandIn() as server, Relay(str(server.lmcache_url), metrics=lambda _: page) as lmcache:
        found = found_at("--base-url", server.base_url, "--lmcache-url", lmcache.url)
    assert outcomes(found) == ("ignored", "honoured", "honoured")
    assert "old_metric_names" in codes(found)


def test_series_that_the_dashboards_need_are_reported_if_missing() -> None:
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
    assert values(found, "missing_series") == {"series": ["lmcache_mp_l1_memory_usage_bytes"]}


def test_a_page_that_is_not_prometheus_text_counts_as_missing() -> None:
    with StandIn() as server, Relay(server.url, metrics=_html) as vllm:
        found = found_at("--base-url", vllm.base_url, "--lmcache-url", str(server.lmcache_url))
    assert (found["exit_code"], found["vllm"]["metrics"]) == (0, False)


def test_a_connector_whose_series_appear_with_the_first_prompt_is_recognized() -> None:
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


def test_a_usage_with_cached_tokens_only_if_there_are_some_counts_as_reporting() -> None:
    """Older vLLM leaves the details out if nothing was cached."""

    def chat(exchange: Exchange) -> Any:
        answer = exchange.answered
        if not answer.get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens"):
            answer["usage"].pop("prompt_tokens_details", None)
        return answer

    with StandIn(mode="in_process") as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url)
    assert found["vllm"]["reports_cached_tokens"] is True
    assert (found["exit_code"], outcomes(found)) == (0, ("honoured", "ignored", "honoured"))


# --- partly strict, late, gone --------------------------------------------------------------------


def test_refusing_long_prompts_is_not_refusing_the_hint() -> None:
    def chat(exchange: Exchange) -> Response | None:
        return (
            JSONResponse({"error": "prompt\ntoo long"}, 400)
            if len(exchange.prompt) > 1000
            else None
        )

    with StandIn() as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url)
    assert (found["exit_code"], found["trouble_code"]) == (3, "prompt_refused")
    assert "400" in found["trouble"]
    assert "\n" not in found["trouble"]


def test_a_server_that_refuses_every_call_ends_the_examination() -> None:
    with (
        StandIn() as server,
        Relay(server.url, chat=lambda _: JSONResponse({"error": "no\nmax_tokens"}, 400)) as vllm,
    ):
        found = found_at("--base-url", vllm.base_url)
    assert (found["exit_code"], found["trouble_code"]) == (3, "plain_call_refused")
    assert "400" in found["trouble"]
    assert "\n" not in found["trouble"]


def test_a_server_that_refuses_the_salt_is_examined_without_it() -> None:
    def chat(exchange: Exchange) -> Response | None:
        return (
            JSONResponse({"error": "unknown field cache_salt"}, 422)
            if "cache_salt" in exchange.body
            else None
        )

    with StandIn(mode="in_process") as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url, "--refresh", "0")
    assert (found["exit_code"], outcomes(found)) == (0, ("honoured", "ignored", "honoured"))


def test_a_late_store_is_not_taken_for_a_skip() -> None:
    """LMCache stores in the background, so the first time it is asked it may not have begun."""
    sent: Counter[str] = Counter()

    def chat(exchange: Exchange) -> Any:
        answer = exchange.answered
        sent[exchange.prompt] += 1
        if sent[exchange.prompt] == 2:
            answer["kv_transfer_params"]["cached_token_stats"]["num_lmcache_cached_tokens"] = 0
        return answer

    with (
        StandIn(honour_hints=False, serve_metrics=False) as server,
        Relay(server.url, chat=chat) as vllm,
    ):
        found = found_at("--base-url", vllm.base_url)
    assert outcomes(found) == ("ignored",) * 3


def test_counters_that_other_traffic_moves_prove_no_skip() -> None:
    """Other traffic moves the counter, except just after a hint. Stores of the trials show late."""
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


def test_a_server_that_goes_away_leaves_no_outcome() -> None:
    calls = 0

    def chat(_: Exchange) -> Response | None:
        nonlocal calls
        calls += 1
        return Response("gone", 503) if calls > 20 else None

    with StandIn() as server, Relay(server.url, chat=chat) as vllm:
        found = found_at("--base-url", vllm.base_url, "--rounds", "5")
    assert found["trials"]
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    assert found["trouble_code"] == "unusable_answer"
    assert "503" in found["trouble"]


def test_only_pages_and_chat_are_requested_and_nothing_is_cleared() -> None:
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


def test_no_hint_that_crashes_a_server_is_sent() -> None:
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

"""Which dialect a server speaks, and how the doctor knows."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from otel_kvpolicy import series
from otel_kvpolicy.standin import StandIn

from .asking import codes, found_at, found_in, outcomes
from .relay import Edit, Relay

OFFLOADING = f"{series.VLLM_OFFLOAD_PREFIX}store_bytes_total 0\n"


def _page(text: str) -> Edit:
    return lambda _: PlainTextResponse(text)


def _version(version: str) -> Edit:
    return lambda _: JSONResponse({"version": version})


def found_behind(server: StandIn, edits: dict[str, Edit], **environment: str) -> dict[str, Any]:
    with Relay(server.url, **edits) as relay:
        return found_at("--base-url", relay.base_url, **environment)


def test_trials_prove_lmcache() -> None:
    with StandIn() as server:
        found = found_in(server)
    dialect = found["dialect"]
    assert (dialect["configured"], dialect["speaks"], dialect["proof"]) == (
        "lmcache",
        "lmcache",
        "trials",
    )
    assert "wrong_dialect" not in codes(found)


def test_lmcaches_metrics_alone_show_that_it_runs() -> None:
    with StandIn(honour_hints=False) as server:
        found = found_in(server)
    assert (found["dialect"]["speaks"], found["dialect"]["proof"]) == ("lmcache", "metrics")
    assert found["outcome"] == "ignored"


def test_a_server_that_refuses_the_field_speaks_none() -> None:
    with StandIn(strict="openai") as server:
        found = found_in(server)
    assert (found["dialect"]["speaks"], found["dialect"]["proof"]) == (None, "trials")
    assert found["outcome"] == "refused"


def test_vllm_without_a_connector_speaks_none() -> None:
    with StandIn(mode="none") as server:
        found = found_in(server)
    assert (found["dialect"]["speaks"], found["dialect"]["proof"]) == (None, "trials")


def test_a_server_without_metrics_is_unknown() -> None:
    with StandIn(mode="none", serve_metrics=False, prompt_tokens_details=False) as server:
        found = found_in(server)
    assert (found["dialect"]["speaks"], found["dialect"]["proof"]) == (None, "none")


def test_offloading_is_recognized_and_the_setting_named() -> None:
    with StandIn(mode="none", prompt_tokens_details=False) as server:
        found = found_behind(server, {"metrics": _page(OFFLOADING), "version": _version("0.34.0")})
    assert (found["dialect"]["speaks"], found["dialect"]["proof"]) == ("vllm-offload", "metrics")
    assert codes(found)[0] == "wrong_dialect"
    assert found["advice"][0]["values"] == {"use": "vllm-offload", "configured": "lmcache"}


def test_offloading_as_configured_is_not_called_ignored() -> None:
    with StandIn(mode="none", prompt_tokens_details=False) as server:
        found = found_behind(
            server,
            {"metrics": _page(OFFLOADING), "version": _version("0.23.0")},
            KV_CACHE_DIALECT="lmcache@elsewhere,vllm-offload@127.0.0.1",
        )
    assert found["dialect"]["configured"] == found["dialect"]["speaks"] == "vllm-offload"
    assert (found["outcome"], found["exit_code"]) == ("inconclusive", 3)
    assert codes(found)[0] == "dialect_not_tried"


def test_offloading_of_an_old_vllm_has_no_switch() -> None:
    with StandIn(mode="none", prompt_tokens_details=False) as server:
        found = found_behind(server, {"metrics": _page(OFFLOADING), "version": _version("0.22.1")})
    assert (found["dialect"]["speaks"], found["dialect"]["proof"]) == (None, "version")
    assert "wrong_dialect" not in codes(found)


def test_lmcache_configured_as_offloading_is_corrected() -> None:
    with StandIn() as server:
        found = found_in(server, KV_CACHE_DIALECT="vllm-offload")
    assert outcomes(found) == ("ignored", "honoured", "honoured")
    assert (found["dialect"]["speaks"], found["outcome"]) == ("lmcache", "inconclusive")
    assert codes(found)[0] == "wrong_dialect"


@pytest.mark.parametrize(
    "prefix", [series.SGLANG_PREFIX, series.TENSORRT_LLM_PREFIX, series.DYNAMO_PREFIX]
)
def test_a_program_without_a_switch_is_named(prefix: str) -> None:
    with StandIn(mode="none", prompt_tokens_details=False) as server:
        found = found_behind(server, {"metrics": _page(f"{prefix}requests_total 1\n")})
    assert (found["dialect"]["speaks"], found["dialect"]["proof"]) == (None, "metrics")

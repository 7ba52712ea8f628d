"""What each dialect sends, against the request schema of each server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_kvpolicy.hints.dialect import Dialect
from otel_kvpolicy.hints.dialects import ALL
from otel_kvpolicy.hints.rejection import rejects
from otel_kvpolicy.hints.vllm_offload import VLLM_OFFLOAD
from tests.hints.schemas import SERVERS, Server, offloading_cap

CALL: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def hinted(dialect: Dialect, **how: Any) -> dict[str, Any]:
    params = dialect.params(**{"skip": True, "keys": "both", **how})
    return {**CALL, dialect.field: dialect.merge(None, params)} if params else CALL


@pytest.mark.parametrize("dialect", ALL.values(), ids=list(ALL))
@pytest.mark.parametrize("how", [{"skip": True}, {"skip": False}, {"keep_tokens": 512}])
@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_a_server_that_takes_unknown_fields_accepts_every_hint(
    server: Server, how: dict[str, Any], dialect: Dialect
) -> None:
    status, _ = SERVERS[server](json.loads(json.dumps(hinted(dialect, **how))))
    assert status == 200


@pytest.mark.parametrize("dialect", ALL.values(), ids=list(ALL))
@pytest.mark.parametrize("server", ["tensorrt-llm", "dynamo"])
def test_a_server_that_refuses_unknown_fields_is_recognized_by_its_answer(
    server: Server, dialect: Dialect
) -> None:
    """So the call is repeated without the hint, and the server is sent no hint afterwards."""
    accepts = SERVERS[server]
    status, answer = accepts(hinted(dialect))
    assert rejects(dialect.field, status, json.dumps(answer))
    assert accepts(CALL)[0] == 200


@pytest.mark.parametrize("server", ["tensorrt-llm", "dynamo"])
def test_a_refusal_of_another_field_is_not_taken_for_one_of_the_hint(server: Server) -> None:
    status, answer = SERVERS[server]({**CALL, "top_q": 1})
    assert status == 400
    assert not rejects(VLLM_OFFLOAD.field, status, json.dumps(answer))


@pytest.mark.parametrize(
    ("how", "cap"), [({"skip": True}, 0), ({"skip": False}, None), ({"keep_tokens": 512}, 512)]
)
def test_vllms_offloading_reads_the_cap_that_is_sent(how: dict[str, Any], cap: int | None) -> None:
    _, accepted = SERVERS["vllm"](json.loads(json.dumps(hinted(VLLM_OFFLOAD, **how))))
    assert offloading_cap(accepted) == cap


def test_sglang_drops_the_field_so_nothing_is_lost_and_nothing_is_gained() -> None:
    _, accepted = SERVERS["sglang"](hinted(VLLM_OFFLOAD))
    assert "kv_transfer_params" not in accepted


def test_vllm_refuses_a_field_that_is_not_a_mapping() -> None:
    """The reason that a hint is never merged into such a value of the caller's."""
    status, _ = SERVERS["vllm"]({**CALL, "kv_transfer_params": "garbled"})
    assert status == 400
    assert all(dialect.is_callers("garbled") for dialect in ALL.values())

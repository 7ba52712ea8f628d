"""Servers that reject the hint: the call is repeated once without it. Other errors stay."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI

from otel_kvpolicy.hints.kv_transfer_params import FIELD
from otel_kvpolicy.hints.rejection import rejects
from otel_kvpolicy.instrumentation.openai.adapter import rejection_of
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

STYLES = [
    "openai",
    "azure",
    "mistral",
    "mistral_text",
    "nim",
    "groq",
    "gemini",
    "anthropic",
    "fireworks",
    "vllm_2024",
]
BODY: dict[str, Any] = {
    "model": "stand-in",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_rejected_call_is_repeated_once_and_the_hint_is_not_sent_again(
    style: Any, stream: bool, instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        StandIn(strict=style) as strict,
        OpenAI(base_url=strict.base_url, api_key="key", max_retries=0) as client,
    ):
        for _ in range(2):
            answer: Any = client.chat.completions.create(**BODY, stream=stream)
            if stream:
                assert [chunk for chunk in answer]
        assert ["kv_transfer_params" in request.body for request in strict.requests] == [
            True,
            False,
            False,
        ]
    assert [(span.attributes or {})["kvpolicy.hint.outcome"] for span in instrumented.decided] == [
        "rejected",
        "rejected",
    ]
    assert all(not span.status.description for span in instrumented.decided)
    [(attributes, count)] = instrumented.points("kvpolicy.decisions")
    assert (attributes["kvpolicy.hint.outcome"], count) == ("rejected", 2)
    assert len([record for record in caplog.records if record.name == "otel_kvpolicy"]) == 1


def test_a_rejected_async_responses_call_is_repeated_without_the_hint(
    instrumented: Telemetry,
) -> None:
    async def run(base_url: str) -> None:
        async with AsyncOpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
            assert (
                await client.responses.create(model="stand-in", input="hi", max_output_tokens=16)
            ).id

    with StandIn(strict="openai_responses") as strict:
        asyncio.run(run(strict.base_url))
        assert ["kv_transfer_params" in request.body for request in strict.requests] == [
            True,
            False,
        ]


def test_another_400_reaches_the_caller_without_a_second_request(
    server: StandIn, instrumented: Telemetry
) -> None:
    with (
        OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client,
        pytest.raises(APIStatusError) as raised,
    ):
        client.chat.completions.create(
            model="stand-in", messages=[{"role": "user", "content": "x" * 800_000}]
        )
    assert raised.value.status_code == 400
    assert len(server.requests) == 1
    assert (instrumented.decided[0].attributes or {})["kvpolicy.hint.outcome"] == "applied"


def test_a_rejected_hint_of_the_caller_is_not_repeated(instrumented: Telemetry) -> None:
    with (
        StandIn(strict="openai") as strict,
        OpenAI(base_url=strict.base_url, api_key="key", max_retries=0) as client,
    ):
        with pytest.raises(APIStatusError):
            client.chat.completions.create(
                **BODY, extra_body={"kv_transfer_params": {"lmcache.skip_save": True}}
            )
        assert len(strict.requests) == 1


def is_rejection(status: int, text: str) -> bool:
    error: Any = SimpleNamespace(status_code=status, response=SimpleNamespace(text=text))
    return rejects(FIELD, *rejection_of(error))


@pytest.mark.parametrize(
    "text",
    [
        (
            '{"error": {"message": "Unrecognized request argument supplied: kv_transfer_params",'
            ' "param": null}}'
        ),
        '{"error": {"message": "Unknown parameter", "param": "kv_transfer_params"}}',
        '{"error": {"message": "m", "param": "kv_transfer_params.lmcache.skip_save"}}',
        (
            '{"detail": [{"type": "extra_forbidden", "loc": ["body", "kv_transfer_params"],'
            ' "msg": "Extra inputs are not permitted"}]}'
        ),
        (
            "{\"message\": \"[{'type': 'extra_forbidden', 'loc': ('body', 'kv_transfer_params'),"
            " 'input': {}}]\"}"
        ),
        (
            '[{"error": {"message": "Invalid JSON payload received. Unknown name'
            ' \\"kv_transfer_params\\": Cannot find field."}}]'
        ),
        "kv_transfer_params: Extra inputs are not permitted",
    ],
)
def test_rejections_are_recognized(text: str) -> None:
    assert is_rejection(400, text)
    assert is_rejection(422, text)
    assert not is_rejection(500, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"error": {"message": "max_tokens is invalid", "param": "max_tokens"}}',
        (
            '{"detail": [{"type": "missing", "loc": ["body", "messages"],'
            ' "input": {"kv_transfer_params": {"lmcache.skip_save": true}}}]}'
        ),
        (
            '{"message": "messages is invalid: {\'messages\': [],'
            " 'kv_transfer_params': {'lmcache.skip_save': True}}\"}"
        ),
        '{"error": {"message": "Explain what kv_transfer_params does", "param": "messages"}}',
        "",
        "<html>",
    ],
)
def test_other_errors_are_not_rejections(text: str) -> None:
    assert not is_rejection(400, text)


def test_an_exception_without_a_status_is_not_a_rejection() -> None:
    assert rejection_of(ValueError("kv_transfer_params is unknown")) == (None, "")


def test_an_answer_that_cannot_be_read_is_not_a_rejection() -> None:
    class Unread:
        status_code = 400

        @property
        def response(self) -> Any:
            raise RuntimeError("the stream was not read")

    assert rejection_of(Unread()) == (None, "")  # type: ignore[arg-type]

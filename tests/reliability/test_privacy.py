"""No content is exported: a canary in every field of a call appears in no span, metric, or log."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import pytest
from openai import OpenAI

from otel_kvpolicy import kv_context
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

CANARY = "CaNaRy7319"


def call(client: OpenAI, *, stream: bool, broken: bool) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": CANARY,
            "description": CANARY,
            "parameters": {"type": "object", "properties": {CANARY: {}}},
        },
    }
    answer: Any = client.chat.completions.create(
        model="stand-in",
        messages=[
            {"role": "system", "content": CANARY},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": CANARY},
                    {"type": "image_url", "image_url": {"url": f"http://{CANARY}"}},
                ],
            },
            {
                "role": "assistant",
                "content": CANARY,
                "tool_calls": [
                    {
                        "id": CANARY,
                        "type": "function",
                        "function": {"name": CANARY, "arguments": CANARY},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": CANARY, "content": CANARY},
        ],
        tools=[tool],
        user=CANARY,
        metadata={CANARY: CANARY},
        max_tokens=4,
        stream=stream,
        extra_headers={"x-secret": CANARY, **({"x-standin-fault": "500"} if broken else {})},
        extra_query={"q": CANARY},
        extra_body={CANARY: CANARY, "kv_transfer_params": {"lmcache.tag.user": CANARY}},
    )
    if stream:
        for _ in answer:
            pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_no_content_of_a_call_is_exported(
    server: StandIn,
    instrumented: Telemetry,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    broken: bool,
) -> None:
    caplog.set_level(logging.DEBUG, logger="otel_kvpolicy")
    base_url = server.base_url.replace("http://", f"http://user:{CANARY}@")
    failing = pytest.raises(Exception, match="500") if broken else nullcontext()
    with (
        OpenAI(base_url=base_url, api_key=CANARY, max_retries=0) as client,
        kv_context(rag_context=CANARY),
        failing,
    ):
        call(client, stream=stream, broken=broken)
    [span] = instrumented.spans("otel_kvpolicy")
    exported = [
        span.to_json(),
        *(
            str(instrumented.points(f"kvpolicy.{name}"))
            for name in ("decisions", "prompt.tokens", "score", "errors")
        ),
    ]
    exported += [
        record.getMessage() for record in caplog.records if record.name.startswith("otel_kvpolicy")
    ]
    assert "kvpolicy.decision" in exported[0]
    assert not [text for text in exported if CANARY.lower() in text.lower()]


def test_an_internal_error_does_not_quote_the_call(
    server: StandIn,
    instrumented: Telemetry,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def quoting(text: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError(CANARY)

    monkeypatch.setattr("otel_kvpolicy.policy.thresholds.ThresholdsRule.judge", quoting)
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        call(client, stream=False, broken=False)
    assert instrumented.total("kvpolicy.errors") == 1
    assert CANARY not in " ".join(
        record.getMessage() for record in caplog.records if record.levelno >= logging.INFO
    )
    assert CANARY not in str(instrumented.points("kvpolicy.errors"))

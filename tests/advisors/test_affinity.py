"""The affinity header: its value, and the servers that get it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import AzureOpenAI, OpenAI

from otel_kvpolicy import configure, kv_context, settings
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

HEADER = "x-kv-affinity"
SYSTEM = {"role": "system", "content": "You answer briefly."}


def values(server: StandIn) -> list[str | None]:
    return [request.headers.get(HEADER) for request in server.requests]


def ask(server: StandIn, *questions: str, **options: Any) -> None:
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        for question in questions:
            client.chat.completions.create(
                model="stand-in",
                messages=[SYSTEM, {"role": "user", "content": question}],  # type: ignore[list-item]
                max_tokens=4,
                **options,
            )


def test_no_header_is_sent_by_default(server: StandIn, instrumented: Telemetry) -> None:
    ask(server, "one")
    assert values(server) == [None]


def test_calls_that_share_a_system_prompt_share_the_value(
    server: StandIn, instrumented: Telemetry
) -> None:
    configure(affinity_header=HEADER, affinity_key="k")
    ask(server, "one", "two")
    first, second = values(server)
    assert first == second
    assert first is not None
    assert len(first) == 32


def test_in_the_scope_of_the_opening_each_conversation_has_its_value(
    server: StandIn, instrumented: Telemetry
) -> None:
    configure(affinity_header=HEADER, affinity_key="k", affinity_scope="opening")
    ask(server, "one", "two", "one")
    first, second, third = values(server)
    assert first == third != second


def test_a_known_conversation_has_one_value(server: StandIn, instrumented: Telemetry) -> None:
    configure(affinity_header=HEADER, affinity_key="k", affinity_scope="opening")
    with kv_context(conversation_id="c"):
        ask(server, "one", "two")
    with kv_context(conversation_id="d"):
        ask(server, "one")
    first, second, third = values(server)
    assert first == second != third


def test_the_conversation_id_on_a_chat_span_is_used(
    server: StandIn, instrumented: Telemetry
) -> None:
    configure(affinity_header=HEADER, affinity_key="k")
    tracer = instrumented.tracer_provider.get_tracer("other")
    for conversation in ("c", "d"):
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": conversation}
        with tracer.start_as_current_span("chat", attributes=attributes):
            ask(server, "one")
    first, second = values(server)
    assert first != second


def test_the_callers_own_header_wins(server: StandIn, instrumented: Telemetry) -> None:
    configure(affinity_header=HEADER, affinity_key="k")
    ask(server, "one", extra_headers={HEADER.upper(): "mine"})
    assert values(server) == ["mine"]


def test_a_missing_key_is_warned_of_once(
    server: StandIn, instrumented: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    configure(affinity_header=HEADER)
    ask(server, "one", "two")
    assert None not in values(server)
    assert caplog.text.count("KV_CACHE_AFFINITY_KEY") == 1


@pytest.mark.parametrize("targets", ["auto", "all", "api.openai.com,*.azure.com"])
def test_hosted_vendors_never_get_the_header(targets: str, instrumented: Telemetry) -> None:
    configure(affinity_header=HEADER, affinity_key="k", targets=targets)
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(400, json={"error": {"message": "no"}})

    def clients() -> Any:
        # openai 1 and 2 take a client of httpx, openai 3 also one of httpx2.
        http_client: Any = httpx.Client(transport=httpx.MockTransport(answer))
        yield OpenAI(api_key="key", http_client=http_client)
        yield AzureOpenAI(
            api_key="key",
            azure_endpoint="https://gateway.example",
            api_version="2024-10-21",
            http_client=http_client,
        )

    for client in clients():
        with pytest.raises(Exception, match="no"):
            client.chat.completions.create(model="m", messages=[SYSTEM])
    assert len(seen) >= 2
    assert not [request for request in seen if HEADER in request.headers]


@pytest.mark.parametrize("name", ["two words", "x:y", "ü", "a" * 129])
def test_a_name_that_is_no_header_turns_affinity_off(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KV_CACHE_AFFINITY_HEADER", name)
    assert settings.current().affinity_header is None
    assert "KV_CACHE_AFFINITY_HEADER" in caplog.text


def test_the_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_CACHE_AFFINITY_KEY", "hidden")
    assert settings.current().affinity_key == "hidden"
    assert "hidden" not in repr(settings.current())
    assert settings.shown("affinity_key", "hidden") == "***"

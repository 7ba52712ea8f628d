"""Agents that talk to the stand-in, traced by pydantic-ai or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry


@pytest.fixture(autouse=True)
def no_context_is_left_behind(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """OpenTelemetry logs where a context is detached in another task than it was attached in."""
    yield
    assert "detach" not in "".join(
        record.getMessage() for phase in ("setup", "call") for record in caplog.get_records(phase)
    )


@pytest.fixture(params=["traced", "not-traced"])
def traced(request: pytest.FixtureRequest, telemetry: Telemetry) -> Iterator[bool]:
    """pydantic-ai's own instrumentation, on and off."""
    if request.param == "traced":
        Agent.instrument_all(InstrumentationSettings(tracer_provider=telemetry.tracer_provider))
    yield request.param == "traced"
    Agent.instrument_all(False)


@pytest.fixture(params=["chat", "responses"])
def kind(request: pytest.FixtureRequest) -> str:
    """The model class: ``chat`` or ``responses``."""
    return str(request.param)


Model = Callable[..., Any]


@pytest.fixture
def model(server: StandIn) -> Model:
    """Makes a model on the stand-in with a client of its own, since a client belongs to one event loop."""
    kinds: dict[str, Any] = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}

    def make(
        kind: str = "chat", base_url: str | None = None, max_retries: int = 0, **settings: Any
    ) -> Any:
        # the timeout holds for connecting too, where many agents begin at once
        client = AsyncOpenAI(
            base_url=base_url or server.base_url,
            api_key="key",
            max_retries=max_retries,
            timeout=120,
        )
        return kinds[kind]("stand-in", provider=OpenAIProvider(openai_client=client), **settings)

    return make


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One event loop for all calls of a test, also those of ``run_sync``."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()
    asyncio.set_event_loop(None)


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span as a dict."""
    return dict(span.attributes or {})

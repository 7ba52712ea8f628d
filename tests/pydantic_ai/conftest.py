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
    """Fail if a context was detached in another task than it was attached in, which is logged."""
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
    """Return a function that makes a model on the stand-in.

    Each model has its own client, because a client belongs to one event loop.
    """
    kinds: dict[str, Any] = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}

    def make(
        kind: str = "chat", base_url: str | None = None, max_retries: int = 0, **settings: Any
    ) -> Any:
        # The timeout includes connecting, which takes long if many agents start at once.
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
    """One event loop for all calls of a test, including those of ``run_sync``."""
    new_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(new_loop)
    yield new_loop
    new_loop.run_until_complete(new_loop.shutdown_asyncgens())
    new_loop.close()
    asyncio.set_event_loop(None)


def attributes(span: Any) -> dict[str, Any]:
    """Return the attributes of a span as a dict."""
    return dict(span.attributes or {})

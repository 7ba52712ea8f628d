"""Providers, prefixes and model classes that use the openai client: each call is decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models import infer_model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

from . import run_styles
from .conftest import attributes
from .test_runs import SKIP, hints

NAME = "openai/stand-in"  # OpenRouter and Together expect a vendor before the slash


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(models=("stand-in", NAME)) as server:
        yield server


def _provider(module_name: str, name: str, **options: Any) -> Any:
    module = pytest.importorskip(
        f"pydantic_ai.providers.{module_name}", reason=f"this pydantic-ai has no {name}"
    )
    return getattr(module, name)(**options)


PROVIDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "OpenAIProvider": ("openai", {"base_url": True, "api_key": "key"}),
    "VLLMProvider": ("vllm", {"base_url": True, "api_key": "key"}),
    "OllamaProvider": ("ollama", {"base_url": True, "api_key": "key"}),
    "LiteLLMProvider": ("litellm", {"api_base": True, "api_key": "key"}),
    "OpenRouterProvider": ("openrouter", {"openai_client": True}),
    "AzureProvider": ("azure", {"openai_client": True}),
    "TogetherProvider": ("together", {"openai_client": True}),
}


def _provider_of(name: str, server: StandIn) -> Any:
    module_name, wanted = PROVIDERS[name]
    values = {
        "base_url": server.base_url,
        "api_base": server.base_url,
        "openai_client": AsyncOpenAI(base_url=server.base_url, api_key="key", max_retries=0),
    }
    options = {key: values[key] if value is True else value for key, value in wanted.items()}
    return _provider(module_name, name, **options)


@pytest.mark.parametrize("model_class", [OpenAIChatModel, OpenAIResponsesModel])
@pytest.mark.parametrize("name", PROVIDERS)
def test_each_provider_is_decided_and_hinted(
    name: str, model_class: Any, server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    agent = Agent(model_class(NAME, provider=_provider_of(name, server)), name="scout")
    run_styles.run(loop, agent, "hi")
    assert hints(server) == [SKIP]
    [span] = instrumented.decided
    assert attributes(span)["gen_ai.agent.name"] == "scout"
    assert instrumented.total("kvpolicy.decisions") == 1


def test_a_model_class_for_one_provider_is_decided(
    server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    module = pytest.importorskip(
        "pydantic_ai.models.ollama", reason="this pydantic-ai has no OllamaModel"
    )
    run_styles.run(
        loop,
        Agent(
            module.OllamaModel(NAME, provider=_provider_of("OllamaProvider", server)), name="scout"
        ),
        "hi",
    )
    assert hints(server) == [SKIP]
    assert [attributes(span)["gen_ai.agent.name"] for span in instrumented.decided] == ["scout"]


def test_a_call_is_decided_even_if_the_model_class_rejects_the_answer(
    server: StandIn, instrumented: Telemetry, loop: Any
) -> None:
    from pydantic_ai.models.openrouter import OpenRouterModel

    agent = Agent(
        OpenRouterModel(NAME, provider=_provider_of("OpenRouterProvider", server)), name="scout"
    )
    # The answer lacks a field that only OpenRouter sends.
    with pytest.raises(UnexpectedModelBehavior, match="provider"):
        run_styles.run(loop, agent, "hi")
    assert hints(server) == [SKIP]
    assert [attributes(span)["gen_ai.agent.name"] for span in instrumented.decided] == ["scout"]


@pytest.mark.parametrize("prefix", ["openai", "openai-chat", "openai-responses", "vllm", "ollama"])
@pytest.mark.filterwarnings("ignore:In v2.0")
def test_a_model_given_by_name_is_decided(
    prefix: str,
    server: StandIn,
    instrumented: Telemetry,
    loop: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("OPENAI_BASE_URL", "VLLM_BASE_URL", "OLLAMA_BASE_URL"):
        monkeypatch.setenv(variable, server.base_url)
        monkeypatch.setenv(variable.replace("BASE_URL", "API_KEY"), "key")
    try:
        model = infer_model(f"{prefix}:stand-in")
    except Exception as error:  # the type for an unknown prefix differs between versions
        pytest.skip(f"this pydantic-ai has no prefix {prefix!r}: {error}")
    run_styles.run(loop, Agent(model), "hi")
    [request] = server.requests
    expected = (
        "/v1/responses" if isinstance(model, OpenAIResponsesModel) else "/v1/chat/completions"
    )
    assert request.path == expected
    assert request.body["kv_transfer_params"] == SKIP
    assert len(instrumented.decided) == 1


def test_a_call_to_an_excluded_server_is_decided_but_gets_no_hint(
    server: StandIn, instrumented: Telemetry, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "gb10.local")
    run_styles.run(
        loop,
        Agent(OpenAIChatModel("stand-in", provider=_provider_of("OpenAIProvider", server))),
        "hi",
    )
    assert hints(server) == [None]
    assert [attributes(span)["kvpolicy.hint.outcome"] for span in instrumented.decided] == [
        "excluded_target"
    ]

"""The other instrumentations: what each one needs, and how to switch it on and off."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

Off = Callable[[], object]


@dataclass(frozen=True)
class Other:
    """An instrumentation that runs in the same process as this package's.

    Attributes:
        title: its name in the table.
        modules: modules that must be importable.
        on: switches it on and returns a function that switches it off again.
        over: the library it instruments: ``openai`` or ``pydantic_ai``.
        provide: sets the process's tracer provider and adds the test's span processor.
        stays: its own ``uninstrument`` leaves it in place, with or without this package.
    """

    title: str
    modules: tuple[str, ...]
    on: Callable[[], Off]
    over: str
    provide: Callable[[SpanProcessor], object]
    stays: bool = False

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [name for name in self.modules if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _plain_provider(processor: SpanProcessor) -> object:
    provider = TracerProvider()
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return provider


def _logfire_provider(processor: SpanProcessor) -> object:
    import logfire

    return logfire.configure(
        send_to_logfire=False,
        console=False,
        additional_span_processors=[processor],
        inspect_arguments=False,
    )


def _instrumentor(kind: Any) -> Off:
    instrumentor = kind()
    instrumentor.instrument()
    off: Off = instrumentor.uninstrument
    return off


def _genai() -> Off:
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    return _instrumentor(OpenAIInstrumentor)


def _openinference() -> Off:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    return _instrumentor(OpenAIInstrumentor)


def _traceloop() -> Off:
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    return _instrumentor(OpenAIInstrumentor)


def _leaving(entered: AbstractContextManager[None]) -> Off:
    def off() -> None:
        with entered:
            pass

    return off


def _logfire_openai() -> Off:
    import logfire

    return _leaving(logfire.instrument_openai())


def _pydantic_ai() -> Off:
    from pydantic_ai import Agent

    Agent.instrument_all()
    return lambda: Agent.instrument_all(False)


def _logfire_pydantic_ai() -> Off:
    import logfire
    from pydantic_ai import Agent

    logfire.instrument_pydantic_ai()
    return lambda: Agent.instrument_all(False)


OTHERS = {
    "genai": Other(
        "opentelemetry-instrumentation-genai-openai",
        ("opentelemetry.instrumentation.genai.openai",),
        _genai,
        "openai",
        _plain_provider,
    ),
    "openinference": Other(
        "openinference-instrumentation-openai",
        ("openinference.instrumentation.openai",),
        _openinference,
        "openai",
        _plain_provider,
    ),
    "traceloop": Other(
        "opentelemetry-instrumentation-openai (Traceloop)",
        ("opentelemetry.instrumentation.openai",),
        _traceloop,
        "openai",
        _plain_provider,
        stays=True,  # with openai 3 its first unwrap fails, so that it unwraps nothing
    ),
    "logfire": Other(
        "Logfire, `instrument_openai()`", ("logfire",), _logfire_openai, "openai", _logfire_provider
    ),
    "pydantic-ai": Other(
        "pydantic-ai, `Agent.instrument_all()`",
        ("pydantic_ai",),
        _pydantic_ai,
        "pydantic_ai",
        _plain_provider,
    ),
    "logfire-pydantic-ai": Other(
        "Logfire, `instrument_pydantic_ai()`",
        ("logfire", "pydantic_ai"),
        _logfire_pydantic_ai,
        "pydantic_ai",
        _logfire_provider,
    ),
}

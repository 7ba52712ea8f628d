"""The HTTP client's instrumentation, which carries ``traceparent`` to vLLM, so that vLLM's span is a child of the chat span."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from opentelemetry.instrumentation import httpx as httpx_instrumentation

_INSTRUMENTORS: Final = {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}
"""openai 3 rides httpx2, earlier ones httpx; pydantic-ai may bring either."""


class HttpInstrumentation:
    """Switches on what is not on yet, and off again only what it switched on."""

    def __init__(self) -> None:
        self._ours: list[Any] = []

    def instrument(self, **providers: Any) -> None:
        """Args:
        providers: ``tracer_provider`` and ``meter_provider``, where given.
        """
        for module, name in _INSTRUMENTORS.items():
            kind = getattr(httpx_instrumentation, name, None)
            if kind is None or importlib.util.find_spec(module) is None:
                continue
            instrumentor = kind()
            if not instrumentor.is_instrumented_by_opentelemetry:
                instrumentor.instrument(**providers)
                self._ours.append(instrumentor)

    def uninstrument(self) -> None:
        """Leaves instrumentation that others switched on."""
        for instrumentor in self._ours:
            if instrumentor.is_instrumented_by_opentelemetry:
                instrumentor.uninstrument()
        self._ours.clear()

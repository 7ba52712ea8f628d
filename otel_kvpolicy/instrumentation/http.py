"""Instruments the HTTP client, so that vLLM gets ``traceparent`` and its spans join the trace."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from opentelemetry.instrumentation import httpx as httpx_instrumentation

_INSTRUMENTORS: Final = {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}
"""openai 3 uses httpx2, earlier versions use httpx, and pydantic-ai can bring either."""


class HttpInstrumentation:
    """Instruments the HTTP clients that are not instrumented yet, and uninstruments only those."""

    def __init__(self) -> None:
        self._ours: list[Any] = []

    def instrument(self, **providers: Any) -> None:
        """Instrument every HTTP client that is installed.

        Args:
            providers: ``tracer_provider`` and ``meter_provider``, if given.
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
        """Uninstrument the clients that :meth:`instrument` instrumented."""
        for instrumentor in self._ours:
            if instrumentor.is_instrumented_by_opentelemetry:
                instrumentor.uninstrument()
        self._ours.clear()

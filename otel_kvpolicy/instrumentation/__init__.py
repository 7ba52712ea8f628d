"""The instrumentor: ``opentelemetry-instrument python app.py``, or ``KVPolicyInstrumentor().instrument()``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from ..telemetry.instruments import Instruments
from ..telemetry.names import SCOPE
from ..version import __version__
from .call import DecisionHook, Runtime
from .http import HttpInstrumentation
from .pydantic_ai import PydanticAIPatches

__all__ = ["DecisionHook", "KVPolicyInstrumentor"]


class KVPolicyInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Makes every chat call of the openai client carry its KV hint and its decision.

    Options of ``instrument()``:
        tracer_provider: for spans of ours; the global one by default.
        meter_provider: for metrics; the global one by default.
        policy: a :class:`~otel_kvpolicy.KVCacheLayeringPolicy` (or a subclass with its own ``decide``) to use instead of the live settings.
        decision_hook: called as ``decision_hook(span, decision, request)``; ``request`` is a read-only view of the body.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """The openai client; versions as tested."""
        return ("openai >= 1.66.0",)

    def instrument(self, **kwargs: Any) -> None:
        """Switches the instrumentation on; see the class for the options."""
        # opentelemetry-instrument checks dependencies itself and loads the HTTP client's instrumentation by its own entry point, unless the
        # user disabled it; switching it on here too would make the loader warn.
        self._loaded_by_distro = not kwargs.keys().isdisjoint(
            {"skip_dep_check", "raise_exception_on_conflict"}
        )
        super().instrument(**kwargs)

    def _instrument(self, **kwargs: Any) -> None:
        from .openai.choke_point import (
            OpenAIPatches,  # openai need not be there before someone instruments it
        )

        tracer_provider, meter_provider = (
            kwargs.get("tracer_provider"),
            kwargs.get("meter_provider"),
        )
        tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        runtime = Runtime(
            tracer, Instruments(meter), kwargs.get("policy"), kwargs.get("decision_hook")
        )
        self._openai = OpenAIPatches(runtime)
        self._openai.apply()
        self._pydantic_ai = PydanticAIPatches(runtime.faults)
        self._pydantic_ai.apply()
        self._http = HttpInstrumentation()
        if not self._loaded_by_distro:
            self._http.instrument(tracer_provider=tracer_provider, meter_provider=meter_provider)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._openai.remove()
        self._pydantic_ai.remove()
        self._http.uninstrument()

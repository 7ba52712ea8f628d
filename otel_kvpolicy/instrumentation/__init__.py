"""The instrumentor.

Usage::

    opentelemetry-instrument python app.py     # no code change

    from otel_kvpolicy import KVPolicyInstrumentor

    KVPolicyInstrumentor().instrument()        # from code

Every chat call of the openai client, and of libraries that use it such as pydantic-ai, is then
decided once. It carries the hint if the server may get it, and its decision is recorded on the chat
span and in the metrics. Settings are read from the environment for each call: see
:mod:`otel_kvpolicy.settings`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from ..telemetry.instruments import Instruments
from ..telemetry.names import SCOPE
from ..version import __version__
from .http import HttpInstrumentation
from .pydantic_ai import PydanticAIPatches
from .runtime import DecisionHook, Runtime

__all__ = ["DecisionHook", "KVPolicyInstrumentor"]


class KVPolicyInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Adds a KV hint and a recorded decision to every chat call of the openai client.

    Options of ``instrument()``:
        tracer_provider: for spans of this package; the global one by default.
        meter_provider: for metrics; the global one by default.
        policy: a :class:`~otel_kvpolicy.KVCacheLayeringPolicy`, or a subclass with its own
            ``decide``, to use instead of the rule that the settings name.
        decision_hook: called as ``decision_hook(span, decision, request)`` for every call.
            ``request`` is a read-only view of the body.
        advisors: subscribers to the decisions: see :mod:`otel_kvpolicy.advisors`.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the supported versions of the openai client."""
        return ("openai >= 1.66.0",)

    def instrument(self, **kwargs: Any) -> None:
        """Turn the instrumentation on. The class documents the options."""
        # opentelemetry-instrument checks dependencies itself and loads the instrumentation of the
        # HTTP client by its own entry point, unless the user disabled it. Turning it on here too
        # would make the loader warn.
        self._loaded_by_distro = not kwargs.keys().isdisjoint(
            {"skip_dep_check", "raise_exception_on_conflict"}
        )
        super().instrument(**kwargs)

    def _instrument(self, **kwargs: Any) -> None:
        # Imported here because openai may be missing until someone instruments it.
        from .openai.choke_point import OpenAIPatches

        tracer_provider, meter_provider = (
            kwargs.get("tracer_provider"),
            kwargs.get("meter_provider"),
        )
        tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._runtime = Runtime(
            tracer,
            Instruments(meter),
            kwargs.get("policy"),
            kwargs.get("decision_hook"),
            advisors=kwargs.get("advisors") or (),
        )
        self._openai = OpenAIPatches(self._runtime)
        self._openai.apply()
        self._pydantic_ai = PydanticAIPatches(self._runtime.errors)
        self._pydantic_ai.apply()
        self._http = HttpInstrumentation()
        if not self._loaded_by_distro:
            self._http.instrument(tracer_provider=tracer_provider, meter_provider=meter_provider)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._openai.remove()
        self._pydantic_ai.remove()
        self._http.uninstrument()
        self._runtime.close()

"""Adds what pydantic-ai knows about a request and its body lacks: agent, role and agent span.

Nothing is decided here.

pydantic-ai is patched when the application imports it, so an application without it pays nothing.
The patched coroutines run once for each model that is tried, streamed or not, with the same
signature from 1.0 to 2.68. If pydantic-ai traces its runs, the span of the run is the current one
when a model request begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import wrapt
from opentelemetry import trace

from ..context import CallContext, call_context, within
from ..policy import REUSE_HEAVY_ROLES, TOOL_AGENT_ROLE
from ..telemetry import spans
from ..telemetry.errors import ErrorReporter

_MODELS: Final = "pydantic_ai.models.openai"
_TRACING: Final = "pydantic_ai.capabilities.instrumentation"  # from 1.95
_SEAMS: Final = {
    _MODELS: (
        ("OpenAIChatModel", "_completions_create"),
        ("OpenAIResponsesModel", "_responses_create"),
    ),
    _TRACING: (("Instrumentation", "wrap_model_request"),),
}

# Import hooks cannot be removed, so each is registered once per process.
_hooked: Final[set[str]] = set()
_active: list[PydanticAIPatches] = []


def _imported(module: ModuleType) -> None:
    for patches in _active:
        patches.patch(module)


class PydanticAIPatches:
    """Patches pydantic-ai, now or when it is imported, and removes the patches again.

    Args:
        errors: reports internal errors.
    """

    def __init__(self, errors: ErrorReporter) -> None:
        self._errors = errors
        self._on = False
        self._patched: list[tuple[type, str, Any]] = []

    def apply(self) -> None:
        """Patch the modules that are imported, and the others when they are."""
        self._on = True
        _active.append(self)
        for name in _SEAMS:
            module = sys.modules.get(name)
            if module is not None:
                self.patch(module)
            elif name not in _hooked:
                _hooked.add(name)
                wrapt.register_post_import_hook(_imported, name)

    def remove(self) -> None:
        """Remove the wrappers. One that another library has wrapped stays and does nothing."""
        self._on = False
        _active.remove(self)
        for owner, method, wrapper in self._patched:
            outermost = owner.__dict__[method]
            if getattr(outermost, "_self_wrapper", None) == wrapper:
                setattr(owner, method, outermost.__wrapped__)
        self._patched.clear()

    def patch(self, module: ModuleType) -> None:
        """Wrap the coroutines of a module. Never raises, because it runs inside an import."""
        wrapper = self._traced_request if module.__name__ == _TRACING else self._model_request
        try:
            for name, method in _SEAMS[module.__name__]:
                owner = getattr(module, name)
                wrapt.wrap_function_wrapper(owner, method, wrapper)
                self._patched.append((owner, method, wrapper))
        except Exception as error:  # noqa: BLE001 - an unsupported version of pydantic-ai
            self._errors.report("pydantic_ai", error)

    async def _model_request(
        self, wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Wrap one attempt of a model. A websocket retry enters it again, which is harmless."""
        if not self._on:
            return await wrapped(*args, **kwargs)
        try:
            context = _enriched(
                call_context(), kwargs.get("model_request_parameters", args[-1] if args else None)
            )
        except Exception as error:  # noqa: BLE001
            self._errors.report("pydantic_ai", error)
            return await wrapped(*args, **kwargs)
        with within(context):
            return await wrapped(*args, **kwargs)

    async def _traced_request(
        self,
        wrapped: Callable[..., Any],
        tracing: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Wrap one model request of a traced run, before its chat span starts."""
        span = trace.get_current_span()
        if not self._on or not spans.is_agent_span(span):
            return await wrapped(*args, **kwargs)
        with within(call_context()._replace(agent_span=span)):
            return await wrapped(*args, **kwargs)


def _enriched(outer: CallContext, parameters: Any) -> CallContext:
    """Add the facts of the agent run to those of the enclosing context.

    The agent's own role wins over that of the context, and an explicit role over an inferred one.
    """
    run = _current_run()
    name = getattr(getattr(run, "agent", None), "name", None)
    name = name if isinstance(name, str) and name else None
    metadata = getattr(run, "metadata", None)
    role = metadata.get("role") if isinstance(metadata, Mapping) else None
    role = (
        role if isinstance(role, str) and role else outer.role or _inferred_role(name, parameters)
    )
    return outer._replace(role=role, agent_name=name or outer.agent_name)


def _inferred_role(name: str | None, parameters: Any) -> str | None:
    """Infer a role: the agent's name if it is one, otherwise that of an agent with tools.

    The next step of an agent with tools most likely starts with this prompt.
    """
    if name is not None and name.strip().lower() in REUSE_HEAVY_ROLES:
        return name
    return TOOL_AGENT_ROLE if getattr(parameters, "function_tools", None) else name


def _current_run() -> Any:
    """Return the ``RunContext`` of the request; None outside an agent or before version 1.71."""
    current = getattr(sys.modules.get("pydantic_ai._run_context"), "get_current_run_context", None)
    return None if current is None else current()

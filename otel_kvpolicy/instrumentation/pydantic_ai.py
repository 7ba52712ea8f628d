"""What pydantic-ai knows of a model request and its body does not say: the agent, its role, its span. Decides nothing.

pydantic-ai is patched when the application imports it, so an application without it pays nothing. The seams are the coroutines that run
once for each model tried, streamed or not, under the same signature from 1.0 to 2.68. Where pydantic-ai traces its runs, the run's span is
the current one when a model request begins.
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
from ..telemetry.errors import Faults

_MODELS: Final = "pydantic_ai.models.openai"
_TRACING: Final = "pydantic_ai.capabilities.instrumentation"  # from 1.95
_SEAMS: Final = {
    _MODELS: (
        ("OpenAIChatModel", "_completions_create"),
        ("OpenAIResponsesModel", "_responses_create"),
    ),
    _TRACING: (("Instrumentation", "wrap_model_request"),),
}

_hooked: Final[set[str]] = (
    set()
)  # import hooks cannot be taken back, so each is registered once in a process
_active: list[PydanticAIPatches] = []


def _imported(module: ModuleType) -> None:
    for patches in _active:
        patches.patch(module)


class PydanticAIPatches:
    """Puts the enrichment into pydantic-ai, now or when it is imported, and takes it out again.

    Args:
        faults: where faults of ours end.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._on = False
        self._patched: list[tuple[type, str, Any]] = []

    def apply(self) -> None:
        """Patches what is imported, and has the rest patched when it is."""
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
        """Unwraps; where another library has wrapped over ours, ours stays in place and does nothing."""
        self._on = False
        _active.remove(self)
        for owner, method, wrapper in self._patched:
            outermost = owner.__dict__[method]
            if getattr(outermost, "_self_wrapper", None) == wrapper:
                setattr(owner, method, outermost.__wrapped__)
        self._patched.clear()

    def patch(self, module: ModuleType) -> None:
        """Wraps the seams of ``module``. Never raises: this runs inside the application's own import."""
        wrapper = self._traced_request if module.__name__ == _TRACING else self._model_request
        try:
            for name, method in _SEAMS[module.__name__]:
                owner = getattr(module, name)
                wrapt.wrap_function_wrapper(owner, method, wrapper)
                self._patched.append((owner, method, wrapper))
        except Exception as error:  # noqa: BLE001 - a pydantic-ai of another shape: calls are decided without what it knows
            self._faults.caught("pydantic_ai", error)

    async def _model_request(
        self, wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Around one model attempt. A re-entry, as on the retry of a websocket, says the same again."""
        if not self._on:
            return await wrapped(*args, **kwargs)
        try:
            known = _enriched(
                call_context(), kwargs.get("model_request_parameters", args[-1] if args else None)
            )
        except Exception as error:  # noqa: BLE001
            self._faults.caught("pydantic_ai", error)
            return await wrapped(*args, **kwargs)
        with within(known):
            return await wrapped(*args, **kwargs)

    async def _traced_request(
        self,
        wrapped: Callable[..., Any],
        tracing: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Around one model request of a traced run, before its chat span is opened."""
        span = trace.get_current_span()
        if not self._on or not spans.is_agent_span(span):
            return await wrapped(*args, **kwargs)
        with within(call_context()._replace(agent_span=span)):
            return await wrapped(*args, **kwargs)


def _enriched(outer: CallContext, parameters: Any) -> CallContext:
    """What is known outside, completed by the run. What is said nearest to the agent wins, and anything said wins over what we infer."""
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
    """An agent's name may be a role. One with tools will most likely call again with what this call leaves in the cache."""
    if name is not None and name.strip().lower() in REUSE_HEAVY_ROLES:
        return name
    return TOOL_AGENT_ROLE if getattr(parameters, "function_tools", None) else name


def _current_run() -> Any:
    """The ``RunContext`` of the model request; ``None`` outside an agent and before pydantic-ai 1.71."""
    current = getattr(sys.modules.get("pydantic_ai._run_context"), "get_current_run_context", None)
    return None if current is None else current()

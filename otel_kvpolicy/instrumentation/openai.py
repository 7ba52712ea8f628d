"""The patches of the openai client: its one choke point, sync and async, and what it returns.

``SyncAPIClient.request`` and ``AsyncAPIClient.request`` run once per call, outside the retry loop, for every surface of the client and
for clients made before the patch. What they return is left the very object it is; streams are watched from inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import wrapt
from openai import _base_client
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from .answers import follow, observed_parser
from .call import ChatCall, Runtime

__all__ = ["OpenAIPatches"]

_CHOKE_POINTS: Final = ("SyncAPIClient", "AsyncAPIClient")


class OpenAIPatches:
    """Puts the decision into the openai client, and takes it out again.

    Args:
        runtime: what the calls share.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime: Runtime | None = runtime

    def apply(self) -> None:
        """Wraps both choke points."""
        for name, wrapper in zip(_CHOKE_POINTS, (self._request, self._async_request), strict=True):
            wrapt.wrap_function_wrapper(_base_client, f"{name}.request", wrapper)

    def remove(self) -> None:
        """Unwraps them; where another library has wrapped over ours, ours stays in place and does nothing."""
        self._runtime = None
        for name, wrapper in zip(_CHOKE_POINTS, (self._request, self._async_request), strict=True):
            owner = getattr(_base_client, name)
            outermost = owner.__dict__["request"]
            if getattr(outermost, "_self_wrapper", None) == wrapper:
                owner.request = outermost.__wrapped__

    def _begin(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ChatCall | None:
        runtime = self._runtime
        if runtime is None or not is_instrumentation_enabled():
            return None
        try:
            options = kwargs["options"] if "options" in kwargs else args[1]
            return runtime.begin(client, options, observed_parser if kwargs.get("stream") else None)
        except Exception as error:  # noqa: BLE001 - an openai client that calls its choke point otherwise
            runtime.faults.caught("request", error)
            return None

    def _request(self, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._begin(client, args, kwargs)
        if call is None:
            return wrapped(*args, **kwargs)
        call.enter()
        try:
            args, kwargs = _with_options(args, kwargs, call.options)
            again = None
            try:
                result = wrapped(*args, **kwargs)
            except Exception as error:
                again = call.without_hint(error)
                if again is None:
                    raise
            if again is not None:
                args, kwargs = _with_options(args, kwargs, again)
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            call.leave()
        follow(call, result, stream=bool(kwargs.get("stream")))
        return result

    async def _async_request(self, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._begin(client, args, kwargs)
        if call is None:
            return await wrapped(*args, **kwargs)
        call.enter()
        try:
            args, kwargs = _with_options(args, kwargs, call.options)
            again = None
            try:
                result = await wrapped(*args, **kwargs)
            except Exception as error:
                again = call.without_hint(error)
                if again is None:
                    raise
            if again is not None:
                args, kwargs = _with_options(args, kwargs, again)
                result = await wrapped(*args, **kwargs)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            call.leave()
        follow(call, result, stream=bool(kwargs.get("stream")))
        return result


def _with_options(args: tuple[Any, ...], kwargs: dict[str, Any], options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if "options" in kwargs:
        return args, {**kwargs, "options": options}
    return (args[0], options, *args[2:]), kwargs

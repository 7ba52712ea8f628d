"""Patches the choke point of the openai client, sync and async.

``SyncAPIClient.request`` and ``AsyncAPIClient.request`` run once per call, outside the retry loop,
for every surface of the client and for clients made before the patch. They return the same
object as without the patch; streams are watched from inside.

The code of the two functions is replaced in place, not the attributes that hold them. OpenInference
and Logfire keep a reference to the function when they are installed and restore it when they are
uninstalled, which would bypass a wrapper. So the decision is made inside the span of any other
instrumentation, in any order of installation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final

from openai import _base_client
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from ...telemetry.spans import current_chat_span
from ..call import ChatCall
from ..redirects import GUARD
from ..runtime import Runtime
from .adapter import OpenAIRequest, rejection_of
from .streams import follow


def _sync_entry(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement code of ``SyncAPIClient.request``.

    It runs with the globals of openai's module, so it imports what it needs.
    """
    from otel_kvpolicy.instrumentation.openai.choke_point import enter

    return enter(self, args, kwargs)


async def _async_entry(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement code of ``AsyncAPIClient.request``."""
    from otel_kvpolicy.instrumentation.openai.choke_point import enter_async

    return await enter_async(self, args, kwargs)


class _ChokePoint:
    """A function whose code is replaced while the instrumentation is on.

    Args:
        entry: function that provides the replacement code.
    """

    def __init__(self, entry: Any) -> None:
        self._code: Any = entry.__code__
        self._function: Any = None
        self.original: Any = None
        self.patches: OpenAIPatches | None = None

    def open(self, owner: type, patches: OpenAIPatches) -> None:
        """Replace the code of the function, beneath any wrappers other libraries have installed."""
        self.patches = patches
        if self._function is not None:  # close() left it: another library replaced our code
            return
        function = inspect.unwrap(owner.__dict__["request"])
        self.original = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        self.original.__qualname__ = function.__qualname__
        vars(function)["__signature__"] = inspect.signature(function)
        function.__code__ = self._code
        self._function = function

    def close(self) -> None:
        """Restore the code of the function, unless another library has replaced ours."""
        self.patches = None
        function = self._function
        if function is not None and function.__code__ is self._code:
            function.__code__ = self.original.__code__
            vars(function).pop("__signature__", None)
            self._function = None


_sync: Final = _ChokePoint(_sync_entry)
_async: Final = _ChokePoint(_async_entry)


def enter(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a sync request through the active instrumentation, if any."""
    patches, original = _sync.patches, partial(_sync.original, client)
    if patches is None:
        return original(*args, **kwargs)
    return patches.request(original, client, args, kwargs)


async def enter_async(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an async request through the active instrumentation, if any."""
    patches, original = _async.patches, partial(_async.original, client)
    if patches is None:
        return await original(*args, **kwargs)
    return await patches.async_request(original, client, args, kwargs)


class OpenAIPatches:
    """Instruments the openai client, and removes the instrumentation again.

    Args:
        runtime: what all calls share.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def apply(self) -> None:
        """Replace the code of both functions."""
        try:
            _sync.open(_base_client.SyncAPIClient, self)
            _async.open(_base_client.AsyncAPIClient, self)
        except Exception as error:  # noqa: BLE001 - an unsupported version of openai
            self._runtime.errors.report("openai", error)

    def remove(self) -> None:
        """Restore both functions. Calls in flight finish instrumented."""
        _sync.close()
        _async.close()
        GUARD.remove()

    def _start(
        self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[OpenAIRequest, ChatCall] | None:
        """Start a call; None if the request should go out untouched."""
        try:
            if _is_suppressed():
                return None
            request = OpenAIRequest(client, args, kwargs)
            call = self._runtime.start(request)
        except Exception as error:  # noqa: BLE001 - an unsupported version of openai
            self._runtime.errors.report("request", error)
            return None
        return None if call is None else (request, call)

    def request(
        self,
        send: Callable[..., Any],
        client: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Decide a sync request and send it."""
        started = self._start(client, args, kwargs)
        if started is None:
            return send(*args, **kwargs)
        request, call = started
        with call:
            args, kwargs = request.arguments
            repeat = False
            try:
                result = send(*args, **kwargs)
            except Exception as error:
                repeat = call.is_rejection(*rejection_of(error))
                if not repeat:
                    raise
            if repeat:
                args, kwargs = request.arguments_without_hint
                result = send(*args, **kwargs)
        follow(call, result, stream=request.stream)
        return result

    async def async_request(
        self,
        send: Callable[..., Any],
        client: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Decide an async request and send it."""
        started = self._start(client, args, kwargs)
        if started is None:
            return await send(*args, **kwargs)
        request, call = started
        with call:
            args, kwargs = request.arguments
            repeat = False
            try:
                result = await send(*args, **kwargs)
            except Exception as error:
                repeat = call.is_rejection(*rejection_of(error))
                if not repeat:
                    raise
            if repeat:
                args, kwargs = request.arguments_without_hint
                result = await send(*args, **kwargs)
        follow(call, result, stream=request.stream)
        return result


def _is_suppressed() -> bool:
    """Return True if the application wants no instrumentation here.

    Logfire suppresses instrumentation below its own chat span, which does not mean this package. If
    its trace is not sampled, that span cannot be recognized, and what the server stores must not
    depend on sampling.
    """
    if is_instrumentation_enabled():
        return False
    context = trace.get_current_span().get_span_context()
    sampled_out = context.is_valid and not context.trace_flags.sampled
    return not sampled_out and current_chat_span() is None

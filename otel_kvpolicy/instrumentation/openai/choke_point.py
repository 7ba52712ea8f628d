"""The patches of the openai client: its one choke point, sync and async, and what it returns.

``SyncAPIClient.request`` and ``AsyncAPIClient.request`` run once per call, outside the retry loop, for every surface of the client and
for clients made before the patch. What they return is left the very object it is; streams are watched from inside.

Their code is replaced in place, not the attributes that hold them: OpenInference and Logfire take the function itself when they are
installed and put it back when they are uninstalled, and a wrapper would be passed by then. So the decision is made inside the span of any
other instrumentation, whatever the order.
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
from ..call import ChatCall, Runtime
from .streams import follow, observed_parser


def _sync_entry(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``SyncAPIClient.request`` runs instead, with the names of its own module: so it imports what it needs."""
    from otel_kvpolicy.instrumentation.openai.choke_point import enter

    return enter(self, args, kwargs)


async def _async_entry(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``AsyncAPIClient.request`` runs instead."""
    from otel_kvpolicy.instrumentation.openai.choke_point import enter_async

    return await enter_async(self, args, kwargs)


class _ChokePoint:
    """A function whose code is replaced while the instrumentation is on.

    Args:
        entry: the function that lends its code.
    """

    def __init__(self, entry: Any) -> None:
        self._code: Any = entry.__code__
        self._function: Any = None
        self.original: Any = None
        self.patches: OpenAIPatches | None = None

    def open(self, owner: type, patches: OpenAIPatches) -> None:
        """Replaces the code of the function under whatever wrappers others have put on ``owner.request``."""
        self.patches = patches
        if (
            self._function is not None
        ):  # it could not be closed: another has replaced the code over ours
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
        """Gives the function its code back, where nobody has replaced ours."""
        self.patches = None
        function = self._function
        if function is not None and function.__code__ is self._code:
            function.__code__ = self.original.__code__
            vars(function).pop("__signature__", None)
            self._function = None


_sync: Final = _ChokePoint(_sync_entry)
_async: Final = _ChokePoint(_async_entry)


def enter(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a sync request through the instrumentation that is on, if any."""
    patches, original = _sync.patches, partial(_sync.original, client)
    return (
        original(*args, **kwargs)
        if patches is None
        else patches.request(original, client, args, kwargs)
    )


async def enter_async(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an async request through the instrumentation that is on, if any."""
    patches, original = _async.patches, partial(_async.original, client)
    return await (
        original(*args, **kwargs)
        if patches is None
        else patches.async_request(original, client, args, kwargs)
    )


class OpenAIPatches:
    """Puts the decision into the openai client, and takes it out again.

    Args:
        runtime: what the calls share.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def apply(self) -> None:
        """Replaces the code of both choke points."""
        try:
            _sync.open(_base_client.SyncAPIClient, self)
            _async.open(_base_client.AsyncAPIClient, self)
        except Exception as error:  # noqa: BLE001 - an openai client of another make: the application starts without us
            self._runtime.faults.caught("openai", error)

    def remove(self) -> None:
        """Gives them their code back. A call that is on its way goes on with what it began."""
        _sync.close()
        _async.close()

    def _begin(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ChatCall | None:
        runtime = self._runtime
        try:
            if _is_suppressed():
                return None
            options = kwargs["options"] if "options" in kwargs else args[1]
            return runtime.begin(client, options, observed_parser if kwargs.get("stream") else None)
        except Exception as error:  # noqa: BLE001 - an openai client that calls its choke point otherwise
            runtime.faults.caught("request", error)
            return None

    def request(
        self,
        wrapped: Callable[..., Any],
        client: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Decides for a sync request and sends it by ``wrapped``."""
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

    async def async_request(
        self,
        wrapped: Callable[..., Any],
        client: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Decides for an async request and sends it by ``wrapped``."""
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


def _is_suppressed() -> bool:
    """Whether the user wants no instrumentation here.

    Logfire suppresses what lies below its own chat span, which does not mean us. Where its trace is not sampled that span cannot be told
    from others, and what the server stores must not depend on sampling.
    """
    if is_instrumentation_enabled():
        return False
    context = trace.get_current_span().get_span_context()
    sampled_out = context.is_valid and not context.trace_flags.sampled
    return not sampled_out and current_chat_span() is None


def _with_options(
    args: tuple[Any, ...], kwargs: dict[str, Any], options: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if "options" in kwargs:
        return args, {**kwargs, "options": options}
    return (args[0], options, *args[2:]), kwargs

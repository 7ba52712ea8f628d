"""Reads what the openai client returns, without changing it: streams are watched from inside."""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from openai import AsyncStream, BaseModel, Stream
from openai._legacy_response import LegacyAPIResponse
from openai._response import AsyncAPIResponse, BaseAPIResponse

from ...requests import read_answer, read_chunk
from ..call import ChatCall
from ..finalizers import end_later, in_finalizer, prepare


def follow(call: ChatCall, result: Any, *, stream: bool) -> None:
    """Record the outcome and the answer of a call. Never raises.

    Args:
        call: the call that was answered.
        result: what the client returned. If it holds a stream, the call ends with the stream.
        stream: True if the caller asked for a stream.
    """
    call.on_response()
    try:
        _follow(call, result, stream)
    except Exception as error:  # noqa: BLE001 - the caller gets its answer even if we cannot read it
        call.report("answer", error)
        call.stop()


def _follow(call: ChatCall, result: Any, stream: bool) -> None:
    if isinstance(result, BaseModel):  # a parsed answer, the most common case
        call.on_answer(read_answer(result))
        call.stop()
    elif isinstance(result, (Stream, AsyncStream)):
        _watch_chunks(call, result)
        _watch_closing(call, result.response)
    elif stream and isinstance(result, LegacyAPIResponse):
        _watch_closing(call, result.http_response)
    elif isinstance(result, BaseAPIResponse):
        _watch_response(call, result)
    else:
        raw = getattr(result, "http_response", None)
        call.on_answer(read_answer(result if raw is None else _json_of(raw)))
        call.stop()


def observed_parser(call: ChatCall, original: Any) -> Callable[[Any], Any]:
    """Return a ``post_parser`` that watches the stream a raw response is parsed into.

    Args:
        call: the call that watches.
        original: the ``post_parser`` of the request, which runs afterwards.
    """

    def parse(parsed: Any) -> Any:
        if isinstance(parsed, (Stream, AsyncStream)):
            try:
                _watch_chunks(call, parsed)
            except Exception as error:  # noqa: BLE001
                call.report("answer", error)
        return original(parsed) if callable(original) else parsed

    return parse


def _json_of(http_response: Any) -> Any:
    try:
        return json.loads(http_response.content)
    except Exception:  # noqa: BLE001 - not JSON, or not read yet
        return None


def _watch_chunks(call: ChatCall, stream: Any) -> None:
    """Replace the private iterator that a stream reads from (openai 1.66 to 3.57)."""
    inner = stream._iterator  # noqa: SLF001
    if not isinstance(inner, (_Chunks, _AsyncChunks)):
        watch = _Chunks if isinstance(stream, Stream) else _AsyncChunks
        stream._iterator = watch(inner, call)  # noqa: SLF001


def _watch_closing(call: ChatCall, response: Any) -> None:
    """End the call when its HTTP response is closed or garbage-collected."""

    def end() -> None:
        if not call.pulling:  # otherwise the iterator sees how the stream ended
            call.stop()

    _after_closing(call, response, "aclose" if hasattr(response.stream, "aclose") else "close", end)
    _after_dropping(call, response)


def _after_dropping(call: ChatCall, response: Any) -> None:
    prepare()
    weakref.finalize(response, end_later, call)


def _after_closing(call: ChatCall, response: Any, name: str, then: Callable[[], None]) -> None:
    """Call ``then`` once after the method ``name`` of a response, and restore the method."""
    original = getattr(response, name)

    def done(dropped: bool) -> None:
        vars(response).pop(name, None)  # the patched method would keep the response alive
        if dropped:
            end_later(call)
        else:
            then()

    if name == "aclose" or isinstance(response, AsyncAPIResponse):

        async def aclose(*args: Any, **kwargs: Any) -> Any:
            dropped = in_finalizer()
            try:
                return await original(*args, **kwargs)
            finally:
                done(dropped)

        setattr(response, name, aclose)
    else:

        def close(*args: Any, **kwargs: Any) -> Any:
            dropped = in_finalizer()
            try:
                return original(*args, **kwargs)
            finally:
                done(dropped)

        setattr(response, name, close)


def _watch_response(call: ChatCall, response: BaseAPIResponse[Any]) -> None:
    """End a call of ``with_streaming_response`` when its ``with`` block closes the response."""
    http_response = response.http_response

    def end() -> None:
        try:
            if getattr(http_response, "_content", None) is not None:
                call.on_answer(read_answer(_json_of(http_response)))
        except Exception as error:  # noqa: BLE001 - the caller's with block must not raise it
            call.report("answer", error)
        call.stop()

    _after_closing(call, response, "close", end)
    _after_dropping(call, http_response)


class _Chunks:
    """Iterator of a sync stream that reports each chunk to the call."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: Iterator[Any], call: ChatCall) -> None:
        self._inner = inner
        self._call = call

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        call = self._call
        call.pulling = True
        try:
            chunk = next(self._inner)
        except StopIteration:
            call.stop()
            raise
        except BaseException as error:
            call.stop(error)
            raise
        finally:
            call.pulling = False
        _note(call, chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _AsyncChunks:
    """Iterator of an async stream that reports each chunk to the call."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: AsyncIterator[Any], call: ChatCall) -> None:
        self._inner = inner
        self._call = call

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        call = self._call
        call.pulling = True
        try:
            chunk = await self._inner.__anext__()
        except StopAsyncIteration:
            call.stop()
            raise
        except BaseException as error:
            call.stop(error)
            raise
        finally:
            call.pulling = False
        _note(call, chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _note(call: ChatCall, chunk: Any) -> None:
    try:
        call.on_answer(read_chunk(chunk))
    except Exception as error:  # noqa: BLE001
        call.report("answer", error)

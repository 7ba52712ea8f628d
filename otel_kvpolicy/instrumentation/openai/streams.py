"""What the openai client returns, read without changing what the caller gets: the very object, whose stream is watched from inside."""

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
from ..finalizers import being_dropped, end_later, stand_ready


def follow(call: ChatCall, result: Any, *, stream: bool) -> None:
    """Records the call's outcome and its answer: at once, or when the stream in ``result`` is over. Never raises."""
    call.answered()
    try:
        _follow(call, result, stream)
    except Exception as error:  # noqa: BLE001 - an answer we cannot read is still the caller's answer
        call.fault("answer", error)
        call.finish()


def _follow(call: ChatCall, result: Any, stream: bool) -> None:
    if isinstance(result, BaseModel):  # parsed: nearly all
        call.saw(read_answer(result))
        call.finish()
    elif isinstance(result, (Stream, AsyncStream)):
        _watch_chunks(call, result)
        _watch_closing(call, result.response)
    elif stream and isinstance(result, LegacyAPIResponse):
        _watch_closing(call, result.http_response)
    elif isinstance(result, BaseAPIResponse):
        _watch_response(call, result)
    else:
        raw = getattr(result, "http_response", None)
        call.saw(read_answer(result if raw is None else _json_of(raw)))
        call.finish()


def observed_parser(call: ChatCall, original: Any) -> Callable[[Any], Any]:
    """A ``post_parser`` that watches the stream a raw response is parsed into, then does what ``original`` did."""

    def parse(parsed: Any) -> Any:
        if isinstance(parsed, (Stream, AsyncStream)):
            try:
                _watch_chunks(call, parsed)
            except Exception as error:  # noqa: BLE001
                call.fault("answer", error)
        return original(parsed) if callable(original) else parsed

    return parse


def _json_of(http_response: Any) -> Any:
    try:
        return json.loads(http_response.content)
    except Exception:  # noqa: BLE001 - no JSON, or not read: then it says nothing to us
        return None


# --- watching ----------------------------------------------------------------------------------------------------------------------


def _watch_chunks(call: ChatCall, stream: Any) -> None:
    """Puts our iterator under the stream's own ``__iter__`` and ``__next__``, which both read ``_iterator`` (openai 1.66 to 3.57)."""
    inner = stream._iterator  # noqa: SLF001
    if not isinstance(inner, (_Chunks, _AsyncChunks)):
        watch = _Chunks if isinstance(stream, Stream) else _AsyncChunks
        stream._iterator = watch(inner, call)  # noqa: SLF001


def _watch_closing(call: ChatCall, response: Any) -> None:
    """Ends the call when the HTTP response is closed, by whomever, or dropped."""

    def over() -> None:
        if not call.pulling:  # else the iterator above sees how the stream ended
            call.finish()

    _after_closing(
        call, response, "aclose" if hasattr(response.stream, "aclose") else "close", over
    )
    _after_dropping(call, response)


def _after_dropping(call: ChatCall, response: Any) -> None:
    stand_ready()
    weakref.finalize(response, end_later, call)


def _after_closing(call: ChatCall, response: Any, name: str, then: Callable[[], None]) -> None:
    """Calls ``then`` after the response's own method ``name``, once; the response is then as it was."""
    original = getattr(response, name)

    def done(dropped: bool) -> None:
        vars(response).pop(
            name, None
        )  # the patched method refers to the response: without it, nothing of ours keeps it alive
        if dropped:
            end_later(call)
        else:
            then()

    if name == "aclose" or isinstance(response, AsyncAPIResponse):

        async def aclose(*args: Any, **kwargs: Any) -> Any:
            dropped = being_dropped()
            try:
                return await original(*args, **kwargs)
            finally:
                done(dropped)

        setattr(response, name, aclose)
    else:

        def close(*args: Any, **kwargs: Any) -> Any:
            dropped = being_dropped()
            try:
                return original(*args, **kwargs)
            finally:
                done(dropped)

        setattr(response, name, close)


def _watch_response(call: ChatCall, response: BaseAPIResponse[Any]) -> None:
    """``with_streaming_response``: the caller reads as it likes, and leaving the ``with`` block closes the response."""
    http_response = response.http_response

    def over() -> None:
        try:
            if getattr(http_response, "_content", None) is not None:
                call.saw(read_answer(_json_of(http_response)))
        except Exception as error:  # noqa: BLE001 - else the caller's with block would raise it
            call.fault("answer", error)
        call.finish()

    _after_closing(call, response, "close", over)
    _after_dropping(call, http_response)


class _Chunks:
    """The iterator of a sync stream, seen by the call."""

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
            call.finish()
            raise
        except BaseException as error:
            call.finish(error)
            raise
        finally:
            call.pulling = False
        _saw(call, chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _AsyncChunks:
    """The iterator of an async stream, seen by the call."""

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
            call.finish()
            raise
        except BaseException as error:
            call.finish(error)
            raise
        finally:
            call.pulling = False
        _saw(call, chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _saw(call: ChatCall, chunk: Any) -> None:
    try:
        call.saw(read_chunk(chunk))
    except Exception as error:  # noqa: BLE001
        call.fault("answer", error)

"""The two HTTP servers: vLLM's, and that of LMCache's multi-process server."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .chat import ChatCall
from .engine import Engine, EngineDeadError, Prefill
from .metrics import LMCachePage, VLLMPage
from .options import CHUNK_TOKENS, Options
from .prompt import Prompt
from .responses import ResponsesCall
from .strict import refuse_unknown

FAULT_HEADER: Final = "x-standin-fault"
"""Request header that asks for a fault in this one answer.

Its value is ``stall``, ``reset``, ``broken_sse`` or an HTTP status.
"""

VLLM_VERSION: Final = "0.32.0"
LMCACHE_VERSION: Final = "0.5.6"
_REMEMBERED_RESPONSES: Final = 256
_EVENTS_BEFORE_FAULT: Final = 2


@dataclass(frozen=True)
class RecordedRequest:
    """A request to a model endpoint, as received.

    Attributes:
        path: URL path.
        headers: headers by name in lower case.
        raw: the body as bytes.
        body: the parsed body, or None if it is not JSON.
    """

    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any


class RequestedFaultError(Exception):
    """A fault that the request asked for. The server drops the connection."""


class _RejectedError(Exception):
    """The server answers the request with an error."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.response = JSONResponse(body, status)


def _error(status: int, message: str, kind: str, param: str | None = None) -> _RejectedError:
    return _RejectedError(
        status, {"error": {"message": message, "type": kind, "param": param, "code": status}}
    )


class _VLLM:
    """The endpoints of vLLM's server."""

    def __init__(self, engine: Engine, requests: deque[RecordedRequest]) -> None:
        self.engine = engine
        self.options: Options = engine.options
        self.page = VLLMPage(engine)
        self.requests = requests
        self.failures_left = self.options.fail_first
        self.conversations: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    async def chat(self, request: Request) -> Response:
        return await self._serve(request, self._chat, "messages")

    async def responses(self, request: Request) -> Response:
        return await self._serve(request, self._responses, "input")

    async def _serve(
        self, request: Request, endpoint: Callable[[Mapping[str, Any], str], _Reply], required: str
    ) -> Response:
        started = self.page.started()
        reply: _Reply | None = None
        try:
            body = await self._accept(request, required)
            if self.options.latency:
                await asyncio.sleep(self.options.latency)
            reply = endpoint(body, secrets.token_hex(8))
            self.page.prefilled(reply.prefill, started)
            if body.get("stream"):
                return StreamingResponse(
                    self._stream(reply, started, request), media_type="text/event-stream"
                )
            if request.headers.get(FAULT_HEADER) == "stall":
                await _hang_up(request)
                self.page.ended(started, "abort")
                return Response(status_code=499)
        except _RejectedError as rejected:
            self.page.ended(started, "error")
            return rejected.response
        except ClientDisconnect:  # the client left before it had sent the whole body
            self.page.ended(started, "abort")
            return Response(status_code=499)
        except asyncio.CancelledError:
            self.page.ended(started, "abort")
            raise
        self.page.ended(started, reply.finish_reason, reply.generated)
        answer = _DroppedResponse if request.headers.get(FAULT_HEADER) == "reset" else JSONResponse
        return answer(reply.plain())

    async def _accept(self, request: Request, required: str) -> dict[str, Any]:
        raw = await request.body()
        body = _parse(raw)
        self.requests.append(RecordedRequest(request.url.path, dict(request.headers), raw, body))
        self._check_key(request)
        fault = request.headers.get(FAULT_HEADER, "")
        if fault.isdigit():
            raise _error(int(fault), "The request asked the stand-in to fail.", "StandInFault")
        if self.failures_left:
            self.failures_left -= 1
            raise _error(
                self.options.fail_status,
                "The stand-in is configured to fail its first calls.",
                "StandInFault",
            )
        if not isinstance(body, dict):
            raise _invalid("json_invalid", "body", "JSON decode error")
        body = {"model": self.options.models[0], **body}
        self._check(request.url.path, body, required)
        return body

    def _check_key(self, request: Request) -> None:
        if (
            self.options.api_key is not None
            and request.headers.get("authorization") != f"Bearer {self.options.api_key}"
        ):
            raise _RejectedError(401, {"error": "Unauthorized"})

    def _check(self, path: str, body: dict[str, Any], required: str) -> None:
        if self.options.strict is not None and (
            refusal := refuse_unknown(self.options.strict, path, body)
        ):
            raise _RejectedError(refusal.status, refusal.body)
        if not body.get(required):
            raise _invalid("missing", f"body.{required}", "Field required")
        if required == "messages" and not isinstance(body["messages"], list):
            raise _invalid("list_type", "body.messages", "Input should be a valid list")
        params = body.get("kv_transfer_params")
        if params is not None and not isinstance(params, dict):
            raise _invalid(
                "dict_type", "body.kv_transfer_params", "Input should be a valid dictionary"
            )
        if body["model"] not in self.options.models:
            raise _error(
                404, f"The model `{body['model']}` does not exist.", "NotFoundError", "model"
            )

    def _prefill(self, text: str, body: Mapping[str, Any]) -> Prefill:
        prompt = Prompt.of(text, body.get("cache_salt") or "")
        if self.options.mode == "in_process":  # cache keys without salt
            prompt = replace(prompt, chunks=Prompt.of(text).chunks)
        limit = self.options.max_model_len
        if prompt.tokens > limit:
            message = (
                f"This model's maximum context length is {limit} tokens."
                f" However, your prompt contains {prompt.tokens} input tokens."
            )
            raise _error(400, message, "BadRequestError", "input_tokens")
        try:
            return self.engine.prefill(prompt, body.get("kv_transfer_params"))
        except EngineDeadError:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise _error(500, message, "InternalServerError") from None

    def _chat(self, body: Mapping[str, Any], unique: str) -> _Reply:
        call = ChatCall.of(body, int(time.time()), unique)
        prefill = self._prefill(call.text, body)
        details = self.options.prompt_tokens_details
        return _Reply(
            prefill,
            call.finish_reason if call.finish_reason == "length" else "stop",
            call.reply.tokens,
            lambda: call.plain(prefill, details, self._returned_params(body, prefill)),
            lambda: (
                *(_data(chunk) for chunk in call.chunks(prefill, details)),
                "data: [DONE]\n\n",
            ),
        )

    def _responses(self, body: Mapping[str, Any], unique: str) -> _Reply:
        earlier: list[dict[str, Any]] = []
        previous = body.get("previous_response_id")
        if previous is not None:
            if previous not in self.conversations:
                raise _error(
                    404,
                    f"Response with id '{previous}' not found.",
                    "invalid_request_error",
                    "response_id",
                )
            earlier = self.conversations[previous]
        call = ResponsesCall.of(body, earlier, int(time.time()), unique)
        prefill = self._prefill(call.text, body)
        self.conversations[call.id] = call.conversation
        while len(self.conversations) > _REMEMBERED_RESPONSES:
            self.conversations.popitem(last=False)
        return _Reply(
            prefill,
            call.finish_reason,
            call.reply.tokens,
            lambda: call.plain(prefill, self._returned_params(body, prefill)),
            lambda: tuple(
                f"event: {event['type']}\n{_data(event)}" for event in call.events(prefill)
            ),
        )

    def _returned_params(self, body: Mapping[str, Any], prefill: Prefill) -> dict[str, Any] | None:
        """Return the token statistics that LMCache's multi-process connector adds on request."""
        params = body.get("kv_transfer_params")
        if (
            self.options.mode != "mp"
            or self.options.vendored_connector
            or not params
            or "cached_token_stats" not in params
        ):
            return None
        return {
            "cached_token_stats": {
                "num_vllm_cached_tokens": prefill.gpu_tokens,
                "num_lmcache_cached_tokens": prefill.lmcache_tokens,
                "num_lmcache_extra_cached_tokens": max(
                    0, prefill.lmcache_tokens - prefill.gpu_tokens
                ),
            }
        }

    async def _stream(self, reply: _Reply, started: float, request: Request) -> AsyncIterator[str]:
        fault = request.headers.get(FAULT_HEADER)
        ended = "abort"
        try:
            for index, event in enumerate(reply.events()):
                if fault and index == _EVENTS_BEFORE_FAULT:
                    yield await _stream_fault(fault, request)
                    return
                yield event
            ended = reply.finish_reason
        finally:
            self.page.ended(started, ended, reply.generated)

    async def metrics(self, request: Request) -> Response:
        return _metrics(self.options, self.page)

    async def models(self, request: Request) -> Response:
        try:
            self._check_key(request)
        except _RejectedError as rejected:
            return rejected.response
        data = [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
                "root": self.engine.labels["model_name"],
                "parent": None,
                "max_model_len": self.options.max_model_len,
            }
            for name in self.options.models
        ]
        return JSONResponse({"object": "list", "data": data})

    async def health(self, request: Request) -> Response:
        return Response(status_code=503 if self.engine.dead else 200)

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VLLM_VERSION})

    async def reset_prefix_cache(self, request: Request) -> Response:
        self.engine.reset_gpu_cache()
        return JSONResponse({"success": True})


@dataclass(frozen=True)
class _Reply:
    """The answer to a model request, before it is serialized."""

    prefill: Prefill
    finish_reason: str
    generated: int
    plain: Callable[[], dict[str, Any]]
    events: Callable[[], Iterable[str]]


class _DroppedResponse(JSONResponse):
    """Sends the headers and drops the connection before the body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        raise RequestedFaultError


async def _hang_up(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream_fault(fault: str, request: Request) -> str:
    if fault == "stall":
        await _hang_up(request)
    if fault == "reset":
        raise RequestedFaultError
    return 'data: {"id": \n\n'


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _invalid(kind: str, where: str, message: str) -> _RejectedError:
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'}}"
    return _error(400, text, "Bad Request", where)


def _data(event: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"


def _metrics(options: Options, page: VLLMPage | LMCachePage) -> Response:
    if not options.serve_metrics:
        return JSONResponse({"detail": "Not Found"}, 404)
    return PlainTextResponse(page.render(), headers={"content-type": CONTENT_TYPE_LATEST})


def vllm_app(engine: Engine, requests: deque[RecordedRequest]) -> Starlette:
    """Return vLLM's OpenAI server, which appends every model request to ``requests``."""
    server = _VLLM(engine, requests)
    return Starlette(
        routes=[
            Route("/v1/models", server.models),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/responses", server.responses, methods=["POST"]),
            Route("/metrics", server.metrics),
            Route("/health", server.health),
            Route("/version", server.version),
            Route("/reset_prefix_cache", server.reset_prefix_cache, methods=["POST"]),
        ]
    )


def lmcache_app(engine: Engine) -> Starlette:
    """Return the HTTP side of LMCache's multi-process server, which has its own port."""
    page = LMCachePage(engine)

    async def metrics(request: Request) -> Response:
        return _metrics(engine.options, page)

    async def root(request: Request) -> Response:
        return JSONResponse({"status": "ok", "service": "LMCache HTTP API"})

    async def healthcheck(request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def version(request: Request) -> Response:
        return JSONResponse(LMCACHE_VERSION)

    async def status(request: Request) -> Response:
        return JSONResponse(_status(engine))

    async def config(request: Request) -> Response:
        return JSONResponse(_config(engine.options))

    async def clear(request: Request) -> Response:
        engine.cache.clear_l1()
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/", root),
            Route("/healthcheck", healthcheck),
            Route("/version", version),
            Route("/lmc_version", version),
            Route("/status", status),
            Route("/config", config),
            Route("/metrics", metrics),
            Route("/cache/clear", clear, methods=["POST"]),
        ]
    )


def _status(engine: Engine) -> dict[str, Any]:
    l1, l2 = engine.cache.l1, engine.cache.l2
    manager = {
        "is_healthy": True,
        "total_object_count": len(l1),
        "memory_used_bytes": l1.used_bytes,
        "memory_total_bytes": l1.capacity_bytes,
        "memory_usage_ratio": l1.used_bytes / l1.capacity_bytes if l1.capacity_bytes else 0.0,
    }
    return {
        "is_healthy": True,
        "engine_type": "MPCacheServer",
        "chunk_size": CHUNK_TOKENS,
        "hash_algorithm": "blake2b",
        "active_sessions": 0,
        "storage_manager": {
            "is_healthy": True,
            "l1_managers": {"_default": manager},
            "l1_manager": manager,
            "l2_adapters": [] if l2 is None else [{"is_healthy": True, "type": "FSL2Adapter"}],
            "num_l2_adapters": 0 if l2 is None else 1,
            "l1_usage": [l1.used_bytes, l1.capacity_bytes],
        },
        "cache_context_meta": {},
    }


def _config(options: Options) -> dict[str, Any]:
    eviction = {
        "eviction_policy": "LRU",
        "trigger_watermark": options.eviction_watermark,
        "eviction_ratio": options.eviction_ratio,
    }
    adapters = (
        [{"affinity_tag": "_default", "shared": False, "eviction_config": eviction}]
        if options.l2_bytes
        else []
    )
    return {
        "mp": {
            "chunk_size": CHUNK_TOKENS,
            "engine_type": "default",
            "separate_object_groups": False,
        },
        "storage_manager": {
            "l1_manager_config": {
                "memory_config": {"size_in_bytes": options.l1_bytes},
                "tag": "_default",
                "eviction": eviction,
            },
            "l2_adapter_config": {"adapters": adapters},
            "store_policy": "default",
            "prefetch_policy": "default",
        },
        "observability": {
            "enabled": True,
            "metrics_enabled": options.serve_metrics,
            "metrics_sample_rate": 1.0,
            "otlp_endpoint": None,
        },
    }

"""Runs a stand-in on loopback: vLLM's server and LMCache's, each on a port of its own, in one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from collections import deque
from types import TracebackType
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from .app import AskedFaultError, RecordedRequest, lmcache_app, vllm_app
from .engine import Engine
from .options import Options

__all__ = ["StandIn"]

_STOP_SECONDS: Final = 2


class StandIn:
    """A vLLM with LMCache that runs no model. Use it as a context manager, or call :meth:`serve` to run until stopped.

    Args:
        host: loopback address or ``localhost``. Nothing else: the server has no defences.
        port: port of vLLM's server; 0 picks a free one.
        lmcache_port: port of LMCache's server; 0 picks a free one. Not opened unless ``mode`` is ``mp``.
        options: fields of :class:`Options`.

    Attributes:
        url: vLLM's server, without ``/v1``.
        base_url: what an OpenAI client is given.
        lmcache_url: LMCache's server: ``/metrics``, ``/status``, ``/config``; None unless ``mode`` is ``mp``.
        requests: the last model requests, oldest first.

    Raises:
        ValueError: the host is not loopback.
        OSError: a port is taken.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, lmcache_port: int = 0, **options: Any) -> None:
        self.options = Options(**options)
        self.engine = Engine(self.options)
        self.requests: deque[RecordedRequest] = deque(maxlen=self.options.keep_requests)
        self._sockets = [_listen(host, port)]
        self.url = _address(self._sockets[0])
        self.base_url = f"{self.url}/v1"
        self.lmcache_url: str | None = None
        if self.options.mode == "mp":
            self._sockets.append(_listen(host, lmcache_port))
            self.lmcache_url = _address(self._sockets[1])
        self._server = _Server(
            uvicorn.Config(
                self._app(), lifespan="off", log_level="error", access_log=False, ws="none", timeout_graceful_shutdown=_STOP_SECONDS
            )
        )
        self._thread = threading.Thread(target=self.serve, name="kvpolicy-standin", daemon=True)

    def _app(self) -> ASGIApp:
        vllm = vllm_app(self.engine, self.requests)
        lmcache = lmcache_app(self.engine)
        vllm_port = self._sockets[0].getsockname()[1]

        async def by_port(scope: Scope, receive: Receive, send: Send) -> None:
            await (vllm if scope["server"][1] == vllm_port else lmcache)(scope, receive, send)

        return by_port

    def serve(self) -> None:
        """Serves in this thread until the process is interrupted or :meth:`close` is called."""
        self._server.run(sockets=self._sockets)

    def start(self) -> StandIn:
        """Serves in a thread of its own, and returns when the server answers."""
        self._thread.start()
        self._server.ready.wait()
        return self

    def close(self) -> None:
        """Stops the server and frees its ports. Calls that hang are cut."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        for each in self._sockets:
            each.close()

    def __enter__(self) -> StandIn:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def chunks_stored(self) -> int:
        """Chunks that requests wrote to LMCache so far, without those that moved from L2 to L1."""
        counts = self.engine.counts
        return counts.total("l1_write_chunks") - counts.total("l2_prefetch_load_completed_chunks")

    @property
    def last(self) -> RecordedRequest:
        """The last model request."""
        return self.requests[-1]

    def reset_prefix_cache(self) -> None:
        """Empties vLLM's own cache, so that the next hit must come from LMCache."""
        self.engine.reset_gpu_cache()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        logging.getLogger("uvicorn.error").addFilter(_is_no_asked_fault)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _is_no_asked_fault(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], (AskedFaultError, asyncio.CancelledError)))


def _listen(host: str, port: int) -> socket.socket:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(f"the stand-in listens on loopback only, not on {host!r}")
    # asyncio sets TCP_NODELAY only where the protocol is named; without it every answer waits 40 ms for a delayed acknowledgement.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""Run a stand-in on loopback: vLLM's server and LMCache's, on two ports, in one event loop."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from .app import RecordedRequest, lmcache_app, vllm_app
from .engine import Engine
from .loopback import LoopbackServer, address, listen
from .options import Options


class StandIn:
    """A stand-in for vLLM with LMCache that runs no model.

    Use it as a context manager, or call :meth:`serve` to run it in this thread.

    Args:
        host: loopback address or ``localhost``. Other hosts are rejected, because the server has no
            protection.
        port: port of vLLM's server; 0 picks a free one.
        lmcache_port: port of LMCache's server; 0 picks a free one. Used only if ``mode`` is ``mp``.
        options: fields of :class:`Options`.

    Attributes:
        url: URL of vLLM's server, without ``/v1``.
        base_url: the base URL for an OpenAI client.
        lmcache_url: URL of LMCache's server, which has ``/metrics``, ``/status`` and ``/config``.
            None unless ``mode`` is ``mp``.
        requests: the last model requests, oldest first.

    Raises:
        ValueError: the host is not loopback.
        OSError: a port is in use.
    """

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, lmcache_port: int = 0, **options: Any
    ) -> None:
        self.options = Options(**options)
        self.engine = Engine(self.options)
        self.requests: deque[RecordedRequest] = deque(maxlen=self.options.keep_requests)
        listeners = [listen(host, port)]
        self.url = address(listeners[0])
        self.base_url = f"{self.url}/v1"
        self.lmcache_url: str | None = None
        if self.options.mode == "mp":
            listeners.append(listen(host, lmcache_port))
            self.lmcache_url = address(listeners[1])
        self._server = LoopbackServer(
            self._app(listeners[0].getsockname()[1]), listeners, "kvpolicy-standin"
        )

    def _app(self, vllm_port: int) -> ASGIApp:
        vllm = vllm_app(self.engine, self.requests)
        lmcache = lmcache_app(self.engine)

        async def by_port(scope: Scope, receive: Receive, send: Send) -> None:
            await (vllm if scope["server"][1] == vllm_port else lmcache)(scope, receive, send)

        return by_port

    def serve(self) -> None:
        """Serve in this thread until the process is interrupted or :meth:`close` is called."""
        self._server.serve()

    def start(self) -> StandIn:
        """Start to serve in another thread. Return when the server accepts requests."""
        self._server.start()
        return self

    def close(self) -> None:
        """Stop the server and free its ports. Unfinished calls are aborted."""
        self._server.close()

    def __enter__(self) -> StandIn:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def chunks_stored(self) -> int:
        """Number of chunks that requests wrote to LMCache; moves from L2 to L1 do not count."""
        counts = self.engine.counts
        return counts.total("l1_write_chunks") - counts.total("l2_prefetch_load_completed_chunks")

    @property
    def last(self) -> RecordedRequest:
        """The last model request."""
        return self.requests[-1]

    def reset_prefix_cache(self) -> None:
        """Empty vLLM's own cache, so that the next hit must come from LMCache."""
        self.engine.reset_gpu_cache()

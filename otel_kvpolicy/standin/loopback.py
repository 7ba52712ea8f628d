"""Serve an ASGI application on loopback, in this thread or in another one."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from .app import RequestedFaultError

_GRACEFUL_STOP_SECONDS: Final = 2
_EXTRA_STOP_SECONDS: Final = 10.0
_TICK_SECONDS: Final = 0.1


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        ValueError: the host is not loopback. The servers here have no protection.
        OSError: the port is in use.
    """
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(f"host must be a loopback address, not {host!r}")
    # asyncio sets TCP_NODELAY only if the protocol is given. Without TCP_NODELAY every answer waits
    # 40 ms for a delayed acknowledgement.
    listener = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        error.filename = f"{host}:{port}"  # shows which of the two servers failed
        raise
    return listener


def address(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class LoopbackServer:
    """Serves one application on several sockets.

    Args:
        app: the application.
        listeners: listening sockets, which :meth:`close` closes.
        name: name of the thread.
    """

    def __init__(self, app: ASGIApp, listeners: Sequence[socket.socket], name: str) -> None:
        self._listeners = list(listeners)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_level="error",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=_GRACEFUL_STOP_SECONDS,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self.serve, name=name, daemon=True)

    def serve(self) -> None:
        """Serve in this thread until the process is interrupted or :meth:`close` is called."""
        self._server.run(sockets=self._listeners)

    def start(self) -> None:
        """Start to serve in another thread. Return when the server accepts requests."""
        self._thread.start()
        self._server.ready.wait()

    def close(self) -> None:
        """Stop the server and free its ports. Unfinished calls are aborted."""
        self._server.stop()
        if self._thread.is_alive():
            # If the thread does not end in time, it is a daemon and does not block the exit.
            self._thread.join(_GRACEFUL_STOP_SECONDS + _EXTRA_STOP_SECONDS)
        for listener in self._listeners:
            listener.close()


class _Server(uvicorn.Server):
    """A uvicorn server that stops at once if no client waits, instead of after 0.2 s or more."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        logging.getLogger("uvicorn.error").addFilter(_is_unexpected)

    def stop(self) -> None:
        """Ask the server to stop. Safe to call from any thread, before or after it runs."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop closed in the meantime
                self._loop.call_soon_threadsafe(self._stopped.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.ready.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            # A signal handler sets `should_exit` only, so it is still read ten times a second.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # idle connections close on the next pass of the loop
        if self.server_state.connections:
            await super().shutdown(sockets)
        for task in list(self.server_state.tasks):
            task.cancel()  # its client is gone


def _is_unexpected(record: logging.LogRecord) -> bool:
    expected = (RequestedFaultError, asyncio.CancelledError)
    return not (record.exc_info and isinstance(record.exc_info[1], expected))

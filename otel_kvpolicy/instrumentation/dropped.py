"""Calls whose stream the caller dropped, ended by a thread of their own.

Dropped streams are found by the garbage collector, which runs wherever something is allocated: also where the OpenTelemetry SDK holds a
lock of its own. Ending a span or counting there would wait for that very lock, for ever. So the call is handed over, and the collector goes
on.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from typing import Final, Protocol

__all__ = ["being_dropped", "end_later", "flush", "stand_ready"]

_EXIT_SECONDS: Final = 2.0


class _Endable(Protocol):
    def finish(self) -> None: ...


def being_dropped() -> bool:
    """Whether what runs now cleans up a generator that is dropped: perhaps by the collector, which nobody can tell."""
    return isinstance(sys.exc_info()[1], GeneratorExit)


class _Undertaker:
    """The thread and its queue, which is reentrant and never waits."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Endable | threading.Event] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._exiting = False

    def stand_ready(self) -> None:
        """Starts the thread: when a stream begins, for a finalizer must start none."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="kvpolicy-dropped", daemon=True)
                    thread.start()
                    self._thread = thread

    def end_later(self, call: _Endable) -> None:
        if self._exiting:
            call.finish()
        else:
            self._calls.put(call)

    def _run(self) -> None:
        while True:
            item = self._calls.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                item.finish()
            del item  # not kept alive until the next one comes

    def flush(self, seconds: float) -> bool:
        if self._thread is None:
            return True
        done = threading.Event()
        self._calls.put(done)
        return done.wait(seconds)

    def exit(self) -> None:
        """From here on nothing is handed over: daemon threads do not outlive what follows."""
        self._exiting = True
        self.flush(_EXIT_SECONDS)


_undertaker = _Undertaker()


def stand_ready() -> None:
    """Makes sure that calls can be handed over; never from a finalizer."""
    _undertaker.stand_ready()


def end_later(call: _Endable) -> None:
    """Ends ``call`` soon, in another thread. Takes no lock, so that a finalizer may call it wherever it runs."""
    _undertaker.end_later(call)


def flush(seconds: float = _EXIT_SECONDS) -> bool:
    """Waits until the calls handed over so far have ended; false where that takes longer than ``seconds``."""
    return _undertaker.flush(seconds)


def _after_fork() -> None:
    global _undertaker  # noqa: PLW0603 - threads do not survive a fork, and what was handed over is the parent's to end
    _undertaker = _Undertaker()


@atexit.register
def _at_exit() -> None:
    _undertaker.exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

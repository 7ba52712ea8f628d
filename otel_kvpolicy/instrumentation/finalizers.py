"""Ends the calls of dropped streams in a background thread.

The garbage collector finds dropped streams. It can run at any memory allocation, even while the
OpenTelemetry SDK holds one of its locks. Ending a span or counting a metric there would wait
forever for that lock. So the finalizer only hands the call over to a thread.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Final, Protocol

from ..telemetry.worker import Worker

_EXIT_SECONDS: Final = 2.0


class _Stoppable(Protocol):
    def stop(self) -> None: ...


def in_finalizer() -> bool:
    """Return True if a generator is being closed, perhaps by the garbage collector."""
    return isinstance(sys.exc_info()[1], GeneratorExit)


def _stop(calls: list[_Stoppable]) -> None:
    for call in calls:
        call.stop()


def _new_worker() -> Worker[_Stoppable]:
    return Worker("kvpolicy-dropped", _stop)


_worker = _new_worker()
_exiting = False


def prepare() -> None:
    """Start the thread. Call this when a stream begins: a finalizer must not start a thread."""
    _worker.start()


def end_later(call: _Stoppable) -> None:
    """End a call in the background thread. Takes no lock, so finalizers may call it."""
    if _exiting:  # the daemon thread may already be gone
        call.stop()
    else:
        _worker.hand(call)


def flush(seconds: float = _EXIT_SECONDS) -> bool:
    """Wait until the calls handed over so far have ended. Return False after ``seconds``."""
    return _worker.flush(seconds)


def _after_fork() -> None:
    global _worker  # noqa: PLW0603 - the parent ends what was handed over
    _worker = _new_worker()


@atexit.register
def _at_exit() -> None:
    global _exiting  # noqa: PLW0603
    _exiting = True
    flush()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

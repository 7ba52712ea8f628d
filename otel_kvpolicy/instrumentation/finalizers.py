"""Ends the calls of dropped streams in a background thread.

The garbage collector finds dropped streams. It runs wherever memory is allocated, even while the
OpenTelemetry SDK holds one of its locks. Ending a span or counting there would wait for that very
lock, forever. So the call is handed over, and the collector goes on.
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
    """Return True if the running code cleans up a dropped generator, perhaps for the collector."""
    return isinstance(sys.exc_info()[1], GeneratorExit)


def _stop(calls: list[_Stoppable]) -> None:
    for call in calls:
        call.stop()


def _new_worker() -> Worker[_Stoppable]:
    return Worker("kvpolicy-dropped", _stop)


_worker = _new_worker()
_exiting = False


def prepare() -> None:
    """Start the thread. Call this when a stream begins, because a finalizer must start no thread."""
    _worker.start()


def end_later(call: _Stoppable) -> None:
    """End a call soon, in the background thread. Takes no lock, so finalizers may call it."""
    if _exiting:  # daemon threads do not survive the rest of the exit
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

"""Calls whose stream the caller dropped, ended by a thread of their own.

Dropped streams are found by the garbage collector, which runs wherever something is allocated: also where the OpenTelemetry SDK holds a
lock of its own. Ending a span or counting there would wait for that very lock, for ever. So the call is handed over, and the collector goes
on.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Final, Protocol

from ..telemetry.worker import Worker

_EXIT_SECONDS: Final = 2.0


class _Endable(Protocol):
    def finish(self) -> None: ...


def being_dropped() -> bool:
    """Whether what runs now cleans up a generator that is dropped: perhaps by the collector, which nobody can tell."""
    return isinstance(sys.exc_info()[1], GeneratorExit)


def _end(calls: list[_Endable]) -> None:
    for call in calls:
        call.finish()


def _made() -> Worker[_Endable]:
    return Worker("kvpolicy-dropped", _end)


_worker = _made()
_exiting = False


def stand_ready() -> None:
    """Makes sure that calls can be handed over: when a stream begins, for a finalizer must start no thread."""
    _worker.start()


def end_later(call: _Endable) -> None:
    """Ends ``call`` soon, in another thread. Takes no lock, so that a finalizer may call it wherever it runs."""
    if _exiting:  # daemon threads do not outlive what follows
        call.finish()
    else:
        _worker.hand(call)


def flush(seconds: float = _EXIT_SECONDS) -> bool:
    """Waits until the calls handed over so far have ended; false where that takes longer than ``seconds``."""
    return _worker.flush(seconds)


def _after_fork() -> None:
    global _worker  # noqa: PLW0603 - what was handed over is the parent's to end
    _worker = _made()


@atexit.register
def _at_exit() -> None:
    global _exiting  # noqa: PLW0603
    _exiting = True
    flush()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

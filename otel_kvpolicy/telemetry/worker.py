"""A background thread for work that must not run in the thread that requests it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MAX_BATCH: Final = 256


class Worker(Generic[T]):
    """A daemon thread with a queue. Neither survives a fork: a child needs a new worker.

    Args:
        name: name of the thread.
        work: called in the thread with the items handed over so far, in order. Must not raise.
    """

    def __init__(self, name: str, work: Callable[[list[T]], None]) -> None:
        self._name = name
        self._work = work
        # Reentrant, unlike queue.Queue: a finalizer may run in the middle of another put.
        self._queue: queue.SimpleQueue[T | threading.Event] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Items that were handed over and not yet taken."""
        return self._queue.qsize()

    def start(self) -> None:
        """Make sure that the thread runs. Must not be called from a finalizer."""
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread
            finally:
                self._starting.release()

    def hand(self, item: T) -> None:
        """Hand over an item. Takes no lock and never waits, so finalizers may call it."""
        self._queue.put(item)

    def flush(self, seconds: float) -> bool:
        """Wait until the items handed over so far are done. Return False after ``seconds``."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            self._take(self._queue.get())

    def _take(self, first: T | threading.Event) -> None:
        """Process a batch. The items are local variables, so they are released when it is done."""
        batch = [first]
        while len(batch) < _MAX_BATCH and not self._queue.empty():
            batch.append(self._queue.get())
        items = [item for item in batch if not isinstance(item, threading.Event)]
        if items:
            self._work(items)
        for item in batch:
            if isinstance(item, threading.Event):
                item.set()

"""A thread of our own that is handed what is not to be done where it comes up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MAX_BATCH: Final = 256


class Worker(Generic[T]):
    """A daemon thread and its queue. Neither survives a fork: a child makes a worker of its own.

    Args:
        name: of the thread.
        work: done in the thread with what was handed over meanwhile, in that order; must not raise.
    """

    def __init__(self, name: str, work: Callable[[list[T]], None]) -> None:
        self._name = name
        self._work = work
        # Reentrant, unlike queue.Queue: a finalizer may hand something over in the middle of another's put.
        self._queue: queue.SimpleQueue[T | threading.Event] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """How much was handed over and is not yet taken up."""
        return self._queue.qsize()

    def start(self) -> None:
        """Makes sure that the thread runs; never from a finalizer."""
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread
            finally:
                self._starting.release()

    def hand(self, item: T) -> None:
        """Hands ``item`` over. Takes no lock and never waits, so that a finalizer may do it wherever it runs."""
        self._queue.put(item)

    def flush(self, seconds: float) -> bool:
        """Waits until what was handed over so far is done; false where that takes longer than ``seconds``."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            self._take(self._queue.get())

    def _take(self, first: T | threading.Event) -> None:
        """Works off a batch, which nobody keeps alive until the next one comes."""
        batch = [first]
        while len(batch) < _MAX_BATCH and not self._queue.empty():
            batch.append(self._queue.get())
        items = [item for item in batch if not isinstance(item, threading.Event)]
        if items:
            self._work(items)
        for item in batch:
            if isinstance(item, threading.Event):
                item.set()

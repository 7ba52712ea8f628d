"""The learned rule of this process, and the thread that keeps and shares what it learns."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .. import settings
from ..policy.adaptive.rule import AdaptiveRule
from . import state_file
from .fleet import Fleet

SYNC_SECONDS: Final = 30.0
"""Between two times that what was learned is written and shared."""

_EXIT_SECONDS: Final = 1.5
"""That the end of the process waits for a server which does not answer."""

_FORK_SECONDS: Final = 5.0

Caught = Callable[[str, Exception], None]
"""Told of each fault: where, and what."""


class Learner:
    """One rule. It goes on from its file when made; from one that is set later, before that is first written.

    Args:
        knobs: settings in force.
        caught: told of what fails, here or in the thread.

    Attributes:
        rule: the rule, for all calls of the process.
    """

    def __init__(self, knobs: settings.Settings, caught: Caught) -> None:
        self.rule = AdaptiveRule(chars_per_token=knobs.chars_per_token)
        self._caught = caught
        self._fleet: tuple[str, Fleet] | None = None
        self._thread: threading.Thread | None = None
        self._syncing = threading.Lock()
        self._asleep = threading.Event()
        self._leaving = False
        self._left = threading.Event()
        self._read: set[Path] = set()  # files that hold nothing but what the rule knows
        if knobs.state_file is not None:
            try:
                self._restore(Path(knobs.state_file))
            except Exception as error:  # noqa: BLE001 - what was learned is a help, not a need
                self._caught("state_file", error)

    def keep(self, knobs: settings.Settings) -> None:
        """Sees that the thread runs where there is something to keep or to share. Costs two reads where it does."""
        if (
            self._thread is None
            and (knobs.state_file is not None or knobs.redis_url is not None)
            and self._syncing.acquire(blocking=False)
        ):
            try:
                if self._thread is None:
                    if knobs.redis_url is not None:
                        # It registers fork hooks of its own: not while the thread imports redis and a fork waits for that. And for nobody
                        # else: the SDK's fork handler waits for ever where this was imported after the tracer provider was made.
                        import concurrent.futures.thread  # noqa: F401
                    thread = threading.Thread(
                        target=self._run, name="kvpolicy-learning", daemon=True
                    )
                    thread.start()
                    self._thread = thread
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                self._caught("learning", error)
            finally:
                self._syncing.release()

    def _run(self) -> None:
        while not self._leaving:
            self.sync()
            self._asleep.wait(SYNC_SECONDS)
        self.sync()
        self._left.set()

    def sync(self) -> None:
        """Shares what was learned with the fleet and writes it to the file, as the settings in force say. Never raises."""
        knobs = settings.current()
        with self._syncing:
            if knobs.redis_url is not None:
                self._share(knobs.redis_url)
            self._save(knobs)

    def _restore(self, path: Path) -> None:
        if path not in self._read:
            state_file.restore(self.rule, path)
            self._read.add(path)

    def _save(self, knobs: settings.Settings) -> None:
        """Writes the file, but none whose content would be lost with it: one not yet read is read first, or left alone."""
        if knobs.state_file is not None:
            path = Path(knobs.state_file)
            try:
                self._restore(path)
                state_file.save(self.rule, path)
            except Exception as error:  # noqa: BLE001
                self._caught("state_file", error)

    def leave(self, seconds: float = _EXIT_SECONDS) -> None:
        """Keeps and shares a last time. What the thread has not done within ``seconds`` is left, but for the file. Never raises."""
        if self._thread is not None:
            self._leaving = True
            self._asleep.set()
            if self._left.wait(seconds):
                return
        self._save(settings.current())

    def _share(self, url: str) -> None:
        new = self.rule.take_new()
        try:
            if self._fleet is None or self._fleet[0] != url:
                with _importing:
                    self._fleet = (url, Fleet(url))
            counts = self._fleet[1].exchange(new)
        except Exception as error:  # noqa: BLE001 - the process goes on with what it knows itself
            self.rule.give_back(new)
            self._caught("redis", error)
            return
        self.rule.adopt(counts)

    def forked(self) -> None:
        """In a child: threads and connections stay behind, and what was not yet shared is the parent's to share."""
        self._thread, self._fleet = None, None
        self._syncing, self._asleep = threading.Lock(), threading.Event()
        self._leaving, self._left = False, threading.Event()
        self.rule.take_new()


_making = threading.Lock()
_importing = (
    threading.Lock()
)  # a module that a thread is importing while its process forks can never be imported in the child
_learner: Learner | None = None


def learner(knobs: settings.Settings, caught: Caught) -> Learner | None:
    """The learner of this process; ``None`` where nobody asks for the learned rule, in force or in the shadow.

    Args:
        knobs: settings in force.
        caught: told of what fails.
    """
    global _learner  # noqa: PLW0603 - one for the process, as the traffic that it learns from is
    if not knobs.learns:
        return None
    found = _learner
    if found is None:
        with _making:
            found = _learner
            if found is None:
                found = _learner = Learner(knobs, caught)
    found.rule.chars_per_token = knobs.chars_per_token
    found.keep(knobs)
    return found


def forget() -> None:
    """Makes the next call start with a rule that knows nothing, as a new process would."""
    global _learner  # noqa: PLW0603
    _learner = None


def _at_exit() -> None:
    if _learner is not None:
        _learner.leave()


_held: list[Any] = []


def _before_fork() -> None:
    if _importing.acquire(timeout=_FORK_SECONDS):
        _held.append(_importing)
    if _learner is not None:
        _learner.rule.lock.acquire()
        _held.append(_learner.rule.lock)


def _in_parent() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    global _importing, _learner, _making  # noqa: PLW0603
    found = _learner
    whole = found is not None and found.rule.lock in _held
    _in_parent()
    _importing, _making = (
        threading.Lock(),
        threading.Lock(),
    )  # another thread of the parent may have held one
    if found is not None and whole:
        found.forked()
    else:  # made while the process forked
        _learner = None


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)

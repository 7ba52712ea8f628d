"""The adaptive rule of a process, and the thread that saves and shares what it learns."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from .. import settings
from ..policy.adaptive.rule import AdaptiveRule
from . import state_file
from .fleet import Fleet

SYNC_SECONDS: Final = 30.0
"""Time between two rounds of saving and sharing."""

_EXIT_SECONDS: Final = 1.5
"""How long the end of the process waits for a server that does not answer."""

_FORK_SECONDS: Final = 5.0

Report = Callable[[str, Exception], None]
"""Called with the place and the error if something fails."""


class AdaptiveState:
    """Owns one adaptive rule: creates it on first use, restores, saves and shares it.

    Args:
        report: called if something fails, here or in the thread.

    Attributes:
        rule: the rule; None until it is first needed.
    """

    def __init__(self, report: Report) -> None:
        self.rule: AdaptiveRule | None = None
        self._report = report
        self._making = threading.Lock()
        self._reset_thread()
        self._read: set[Path] = set()  # files whose content the rule already knows
        _states.add(self)

    def _reset_thread(self) -> None:
        self._fleet: tuple[str, Fleet] | None = None
        self._thread: threading.Thread | None = None
        self._syncing = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._stopped = threading.Event()

    def rule_for(self, now: settings.Settings) -> AdaptiveRule | None:
        """Return the rule; None if the settings neither use nor shadow it.

        Args:
            now: settings in force.
        """
        if not now.uses_adaptive:
            return None
        rule = self.rule
        if rule is None:
            with self._making:
                rule = self.rule
                if rule is None:
                    rule = self.rule = self._make(now)
        rule.chars_per_token = now.chars_per_token
        self._start_thread(now)
        return rule

    def _make(self, now: settings.Settings) -> AdaptiveRule:
        rule = AdaptiveRule(chars_per_token=now.chars_per_token)
        if now.state_file is not None:
            try:
                self._restore(rule, Path(now.state_file))
            except Exception as error:  # noqa: BLE001 - the rule works without its saved state
                self._report("state_file", error)
        return rule

    def _start_thread(self, now: settings.Settings) -> None:
        """Start the thread if there is a file or a server. Costs two reads if it runs already."""
        if (
            self._thread is None
            and (now.state_file is not None or now.redis_url is not None)
            and self._syncing.acquire(blocking=False)
        ):
            try:
                if self._thread is None:
                    if now.redis_url is not None:
                        # redis imports this module, which registers fork hooks: import it before
                        # the thread does, because the process may fork during that import. Without
                        # redis it is not imported: if it is imported after the tracer provider was
                        # created, the SDK's fork handler waits forever.
                        import concurrent.futures.thread  # noqa: F401
                    thread = threading.Thread(
                        target=self._run, name="kvpolicy-adaptive", daemon=True
                    )
                    thread.start()
                    self._thread = thread
            except RuntimeError as error:  # no more threads, or the interpreter is exiting
                self._report("adaptive", error)
            finally:
                self._syncing.release()

    def _run(self) -> None:
        while not self._stopping:
            self.sync()
            self._wake.wait(SYNC_SECONDS)
        self.sync()
        self._stopped.set()

    def sync(self) -> None:
        """Share what was learned with the fleet and save it to the file. Never raises."""
        now, rule = settings.current(), self.rule
        if rule is None:
            return
        with self._syncing:
            if now.redis_url is not None:
                self._share(rule, now.redis_url)
            self._save(rule, now)

    def _restore(self, rule: AdaptiveRule, path: Path) -> None:
        if path not in self._read:
            state_file.restore(rule, path)
            self._read.add(path)

    def _save(self, rule: AdaptiveRule, now: settings.Settings) -> None:
        """Save the rule. A file that has not been read yet is read first, so nothing is lost."""
        if now.state_file is not None:
            path = Path(now.state_file)
            try:
                self._restore(rule, path)
                state_file.save(rule, path)
            except Exception as error:  # noqa: BLE001
                self._report("state_file", error)

    def _share(self, rule: AdaptiveRule, url: str) -> None:
        new = rule.take_new()
        try:
            if self._fleet is None or self._fleet[0] != url:
                with _importing:
                    self._fleet = (url, Fleet(url))
            counts = self._fleet[1].exchange(new)
        except Exception as error:  # noqa: BLE001 - the process continues with its own counts
            rule.give_back(new)
            self._report("redis", error)
            return
        rule.adopt(counts)

    def close(self, seconds: float = _EXIT_SECONDS) -> None:
        """Save and share one last time, and stop the thread. Never raises.

        Args:
            seconds: how long to wait for the thread. After that only the file is saved.
        """
        if self._thread is not None:
            self._stopping = True
            self._wake.set()
            if self._stopped.wait(seconds):
                return
        if self.rule is not None:
            self._save(self.rule, settings.current())

    def _forked(self, *, whole: bool) -> None:
        """Start over in a child process. Threads and connections stay with the parent.

        Args:
            whole: True if the fork held the lock of the rule. Otherwise the copy of the rule may be
                torn, and the child starts without it.
        """
        self._making = threading.Lock()
        self._reset_thread()
        if self.rule is not None and whole:
            self.rule.take_new()  # the parent shares these counts
        else:
            self.rule = None


_states: WeakSet[AdaptiveState] = WeakSet()

# A module that a thread is importing while its process forks can never be imported in the child.
_importing = threading.Lock()

_held: list[Any] = []


def _at_exit() -> None:
    for state in list(_states):
        state.close()


def _before_fork() -> None:
    if _importing.acquire(timeout=_FORK_SECONDS):
        _held.append(_importing)
    for state in list(_states):
        if state.rule is not None:
            state.rule.lock.acquire()
            _held.append(state.rule.lock)


def _in_parent() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    global _importing  # noqa: PLW0603
    whole = [state for state in _states if state.rule is not None and state.rule.lock in _held]
    _in_parent()
    _importing = threading.Lock()  # another thread of the parent may have held it
    for state in list(_states):
        state._forked(whole=state in whole)  # noqa: SLF001


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)

"""Finds the advisors and passes decisions to them."""

from __future__ import annotations

import atexit
import os
import queue
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, Final

from opentelemetry.instrumentation.utils import suppress_instrumentation

from ..hints.targets import Origin, Targets
from ..policy import KVCacheDecision
from ..record import CallRecord
from ..settings import Settings
from ..telemetry.worker import Worker
from .affinity import Affinity
from .event import Advice, DecisionEvent
from .prefix import NO_PREFIX, hash_of, key_of, stable_prefix

ENTRY_POINT_GROUP: Final = "otel_kvpolicy.advisors"
"""Entry point group of advisors: an advisor, or a class or function without arguments that makes
one."""

SEAM: Final = "advisor"
"""Place of the errors of advisors in ``kvpolicy.errors``."""

_MAX_QUEUED: Final = 10_000
_CLOSE_SECONDS: Final = 2.0

_NOT_HOSTED: Final = Targets("auto")

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")
_FORBIDDEN: Final = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "te",
        "trailer",
    }
    | {"transfer-encoding", "upgrade"}
)
"""Headers that identify the caller or describe the connection or the body. An advisor must not add
them."""

Report = Callable[[str, Exception], None]
"""Called with the place and the error if an advisor fails."""

_Subscriber = Callable[[DecisionEvent], Any]


class Advisors:
    """The advisors of one instrumentation.

    Args:
        given: advisors that were passed in code.
        report: called if an advisor fails.
    """

    def __init__(self, given: Iterable[Any], report: Report) -> None:
        self._report = report
        self._watching: list[_Subscriber] = []
        self._adding: list[_Subscriber] = []
        for advisor in (*given, *_published(report)):
            self._subscribe(advisor)
        self._affinity = Affinity().on_decision
        self._worker = self._new_worker()
        self._pid = os.getpid()
        if self._watching:
            _open.add(self)

    def _subscribe(self, advisor: Any) -> None:
        method = getattr(advisor, "on_decision", advisor)
        if not callable(method):
            message = f"{type(advisor).__name__} is not an advisor: it has no on_decision method"
            self._report(SEAM, TypeError(message))
        elif getattr(advisor, "adds_headers", False):
            self._adding.append(method)
        else:
            self._watching.append(method)

    def wanted(self, now: Settings) -> bool:
        """Return True if any advisor wants to know of calls with these settings."""
        return now.affinity_header is not None or bool(self._watching or self._adding)

    def advise(
        self,
        record: CallRecord,
        body: Mapping[Any, Any],
        origin: Origin,
        *,
        now: Settings,
        conversation_id: str | None,
        allowed: bool,
        azure: bool,
    ) -> dict[str, str]:
        """Pass a decision to all advisors.

        Args:
            record: the decided call.
            body: the request as it goes out.
            origin: the server.
            now: settings in force.
            conversation_id: id of the conversation, if known.
            allowed: True if ``KV_CACHE_TARGETS`` allows the hint to go to the server.
            azure: True if the client is made for Azure OpenAI.

        Returns:
            Headers to add to the request. Empty for hosted vendors and excluded targets, in observe
            mode, and if the policy is disabled: these calls go out as the caller made them.
        """
        event = _event(record, body, origin, now, conversation_id)
        headers: dict[str, str] = {}
        sends = (
            allowed
            and now.mode == "enforce"
            and record.decision.enabled
            and _NOT_HOSTED.allow(origin, azure=azure)
        )
        for advisor in (*self._adding, self._affinity):
            advice = self._ask(advisor, event)
            if sends and advice is not None:
                self._add(advice, headers)
        if self._watching:
            self._hand(event)
        return headers

    def _ask(self, advisor: _Subscriber, event: DecisionEvent) -> Any:
        """Return what an advisor returns; None if it fails, because it must not affect the call."""
        try:
            return advisor(event)
        except Exception as error:  # noqa: BLE001 - another package's code
            self._report(SEAM, error)
            return None

    def _add(self, advice: Advice, headers: dict[str, str]) -> None:
        """Add the headers of an advice, unless another advisor has added them."""
        try:
            for name, value in advice.headers.items():
                if not _may_be_sent(name, value):
                    message = f"the header {name!r} cannot be sent, or advisors must not add it"
                    self._report(SEAM, ValueError(message))
                else:
                    headers.setdefault(name.lower(), value)
        except Exception as error:  # noqa: BLE001 - it may not even be an Advice
            self._report(SEAM, error)

    def _hand(self, event: DecisionEvent) -> None:
        if self._pid != os.getpid():  # the thread did not survive the fork
            self._worker, self._pid = self._new_worker(), os.getpid()
        if self._worker.waiting >= _MAX_QUEUED:
            self._report(SEAM, queue.Full("the advisors cannot keep up with the calls"))
            return
        self._worker.hand(event)
        self._worker.start()

    def _new_worker(self) -> Worker[DecisionEvent]:
        return Worker("kvpolicy-advisors", self._work)

    def _work(self, events: list[DecisionEvent]) -> None:
        # A chat call that an advisor makes is not decided, or it would call the advisor again.
        with suppress_instrumentation():
            for event in events:
                for advisor in self._watching:
                    self._ask(advisor, event)

    def close(self, seconds: float = _CLOSE_SECONDS) -> bool:
        """Wait until the events so far were handled. Return False after ``seconds``."""
        return self._pid != os.getpid() or self._worker.flush(seconds)


_open: Final[weakref.WeakSet[Advisors]] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for advisors in list(_open):
        advisors.close()


def _published(report: Report) -> list[Any]:
    """Return the advisors of the entry point group. One that cannot be loaded is left out."""
    advisors = [_load(each, report) for each in metadata.entry_points(group=ENTRY_POINT_GROUP)]
    return [advisor for advisor in advisors if advisor is not None]


def _load(entry_point: metadata.EntryPoint, report: Report) -> Any:
    try:
        loaded = entry_point.load()
        is_advisor = hasattr(loaded, "on_decision") and not isinstance(loaded, type)
        return loaded if is_advisor else loaded()
    except Exception as error:  # noqa: BLE001 - another package's code
        report(SEAM, error)
        return None


def _event(
    record: CallRecord,
    body: Mapping[Any, Any],
    origin: Origin,
    now: Settings,
    conversation_id: str | None,
) -> DecisionEvent:
    key, decision = key_of(now.affinity_key), record.decision
    try:
        prefix = stable_prefix(body, key)
    except Exception:  # noqa: BLE001 - content of any shape, which only the client must understand
        prefix = NO_PREFIX
    prefix_tokens = _signal(decision, "prefix_tokens")
    if not prefix.has_head:
        prefix_tokens = int(prefix.opening_chars / now.chars_per_token)
    conversation_id = conversation_id or _conversation_of(body)
    return DecisionEvent(
        decision=decision,
        outcome=record.outcome,
        prefix_hash=prefix.head,
        opening_hash=prefix.opening,
        conversation_hash=hash_of(conversation_id, key) if conversation_id else "",
        prefix_tokens=prefix_tokens,
        total_tokens=_signal(decision, "total_tokens"),
        model=record.model,
        origin=origin,
    )


def _signal(decision: KVCacheDecision, name: str) -> int:
    return decision.signals.get(name, 0)


def _conversation_of(body: Mapping[Any, Any]) -> str | None:
    """Return the id of the conversation that a Responses request names; None if it names none."""
    conversation = body.get("conversation")
    if isinstance(conversation, Mapping):
        conversation = conversation.get("id")
    return conversation if isinstance(conversation, str) else None


def _may_be_sent(name: str, value: str) -> bool:
    return (
        _NAME.fullmatch(name) is not None
        and name.lower() not in _FORBIDDEN
        and _VALUE.fullmatch(value) is not None
    )

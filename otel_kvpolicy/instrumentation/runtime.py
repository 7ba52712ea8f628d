"""What all calls share while the instrumentor is on, and the start of each call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from opentelemetry.trace import Span, Tracer

from .. import settings
from ..advisors import Advisors
from ..context import CallContext, call_context
from ..hints.dialect import Dialect
from ..hints.targets import Origin, RejectedOrigins
from ..layering_policy import KVCacheLayeringPolicy
from ..persistence import AdaptiveState
from ..pipeline import DecidedCall, Destination, decide_call
from ..policy import KVCacheDecision
from ..policy.calibration import Calibration
from ..record import CallRecord
from ..requests import reader_of
from ..telemetry import spans
from ..telemetry.errors import ErrorReporter
from ..telemetry.instruments import Instruments
from .call import ChatCall
from .wire_request import WireRequest

_log = logging.getLogger("otel_kvpolicy")

_MAX_WARNED_ORIGINS: Final = 1000

DecisionHook = Callable[[Span, KVCacheDecision, Mapping[str, Any]], None]
"""Called with the chat span, the decision and a read-only view of the request body, after the
decision is on the span."""


class Runtime:
    """What all calls share while the instrumentor is on.

    Args:
        tracer: starts the chat spans of this package.
        instruments: metric instruments.
        policy: rule passed to the instrumentor; None for the rule that the settings name.
        hook: the application's decision hook.
        advisors: advisors of the application.

    Attributes:
        errors: counts and logs internal errors.
        rejected: servers that rejected the hint.
        advisors: all advisors, including published ones and the affinity header.
        adaptive: the adaptive rule, which is created on first use.
        calibration: characters per token, learned if ``KV_CACHE_CHARS_PER_TOKEN=auto``.
    """

    def __init__(
        self,
        tracer: Tracer,
        instruments: Instruments,
        policy: KVCacheLayeringPolicy | None = None,
        hook: DecisionHook | None = None,
        *,
        advisors: Iterable[Any] = (),
    ) -> None:
        self.tracer = tracer
        self.instruments = instruments
        self.policy = policy
        self.hook = hook
        self.errors = ErrorReporter(instruments)
        self.rejected = RejectedOrigins()
        self.advisors = Advisors(advisors, self.errors.report)
        self.adaptive = AdaptiveState(self.errors.report)
        self.calibration = Calibration()
        self._warned_of: set[Origin] = set()

    def close(self) -> None:
        """Save what the adaptive rule has learned, and let the advisors finish.

        Calls in flight finish instrumented.
        """
        self.adaptive.close()
        self.advisors.close()

    def start(self, request: WireRequest) -> ChatCall | None:
        """Decide a request, record the decision and add the hint.

        Args:
            request: the request about to be sent.

        Returns:
            The call in flight. None if the request is not a chat call, or if an internal error
            occurred; in both cases it goes out untouched.
        """
        reader = reader_of(request.path) if request.path else None
        if reader is None:
            return None
        body = request.body
        if body is None:
            return None
        seam = "settings"
        try:
            started = time.perf_counter()
            now = settings.current()
            context = call_context()
            seam = "decide"
            origin = request.origin
            decided = decide_call(
                reader(body),
                body,
                context,
                settings=now,
                policy=self.policy,
                adaptive=self.adaptive.rule_for(now),
                calibration=self.calibration,
                destination=Destination(
                    origin,
                    now.targets.allow(origin, azure=request.is_azure),
                    origin in self.rejected,
                ),
            )
            seconds = time.perf_counter() - started
            record = self._fold(decided, request)
            if record.outcome == "caller":
                self._warn_if_malformed(decided.dialect, body, origin)
            seam = "span"
            span = spans.current_chat_span()
            call = ChatCall(
                self,
                record,
                span or spans.start_chat_span(self.tracer, body, record),
                decided.feedback,
                ratio=decided.ratio,
                chars=decided.chars,
                ours=span is None,
                origin=origin,
                seconds=seconds,
                settings=now,
                dialect=decided.dialect,
            )
            call.guard_redirects(body, _sent_field(decided, record), azure=request.is_azure)
        except Exception as error:  # noqa: BLE001 - an internal error must not reach the caller
            self.errors.report(seam, error)
            return None
        if not call.record_start(request, body):
            return None
        if context.agent_span is not None:
            self._count_on_agent(context.agent_span, record)
        if self.advisors.wanted(now):
            self._advise(request, body, call, context, now)
        return call

    def _advise(
        self,
        request: WireRequest,
        body: Mapping[Any, Any],
        call: ChatCall,
        context: CallContext,
        now: settings.Settings,
    ) -> None:
        """Pass the decision to the advisors and add the headers that they return."""
        try:
            origin, azure = request.origin, request.is_azure
            headers = self.advisors.advise(
                call.record,
                body,
                origin,
                now=now,
                conversation_id=context.conversation_id or spans.conversation_id(call.span),
                allowed=now.targets.allow(origin, azure=azure),
                azure=azure,
            )
            added = [name for name, value in headers.items() if request.add_header(name, value)]
            call.guard_headers(added)
        except Exception as error:  # noqa: BLE001 - the request goes out without more headers
            self.errors.report("advisor", error)

    def _fold(self, decided: DecidedCall, request: WireRequest) -> CallRecord:
        """Add the hint to the request. If that fails, the call is recorded with outcome error."""
        fault = decided.fault
        if fault is None and decided.params is not None:
            try:
                request.add(decided.dialect.field, decided.params)
            except Exception as error:  # noqa: BLE001 - the request goes out without the hint
                fault = error
        if fault is None:
            return decided.record
        self.errors.report("hint", fault)
        return decided.record._replace(outcome="error", keep_tokens=0)

    def _warn_if_malformed(self, dialect: Dialect, body: Mapping[Any, Any], origin: Origin) -> None:
        """Warn once for each server if the caller's own hint can crash it."""
        problem = dialect.malformed(body.get(dialect.field))
        if (
            problem is not None
            and origin not in self._warned_of
            and len(self._warned_of) < _MAX_WARNED_ORIGINS
        ):
            self._warned_of.add(origin)
            _log.warning(
                "A caller sent a hint that can crash the server %s: %s.", origin.host, problem
            )

    def _count_on_agent(self, span: Span, record: CallRecord) -> None:
        try:
            spans.count_on_agent(span, record)
        except Exception as error:  # noqa: BLE001 - the call is already recorded
            self.errors.report("agent_span", error)


def _sent_field(decided: DecidedCall, record: CallRecord) -> str | None:
    """Return the body field in which a hint was added; None if none was."""
    return decided.dialect.field if record.outcome == "applied" and decided.params else None

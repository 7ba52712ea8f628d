"""One chat call in flight: counted when its outcome is known, ended when its answer is read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span

from ..hints.dialect import Dialect
from ..hints.rejection import rejects
from ..hints.targets import Origin
from ..pipeline import Feedback
from ..policy.calibration import Ratio
from ..record import CallRecord
from ..requests import Answer
from ..settings import Settings
from ..telemetry import spans
from ..telemetry.decision_log import decision_log, entry_of
from . import redirects

if TYPE_CHECKING:
    from .runtime import Runtime
    from .wire_request import WireRequest

_log = logging.getLogger("otel_kvpolicy")


class ChatCall:
    """A decided call in flight.

    Use it as a context manager around the request: if this package started the span, the span
    becomes the current one, so that the HTTP span is its child. An exception of the request is
    recorded.

    Attributes:
        span: the chat span, of this package or of another instrumentation.
        pulling: True while the caller waits for the next chunk of a stream.
    """

    __slots__ = (
        "_answer", "_attributes", "_chars", "_context", "_dialect", "_done", "_feedback",
        "_guarded", "_hint_token", "_lock", "_origin", "_ours", "_ratio", "_record", "_runtime",
        "_seconds", "_settings", "_started", "_token", "pulling", "span",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        record: CallRecord,
        span: Span,
        feedback: Feedback | None,
        *,
        ratio: Ratio | None,
        chars: int,
        ours: bool,
        origin: Origin,
        seconds: float,
        settings: Settings,
        dialect: Dialect,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._dialect = dialect
        self._record = record
        self._feedback = feedback
        self._ratio = ratio
        self._chars = chars
        self.span = span
        self._context = trace.set_span_in_context(span)
        self._ours = ours
        self._origin = origin
        self._seconds = seconds
        self._attributes: dict[str, Any] | None = None
        self._answer: Answer | None = None
        self._started = False
        self._done = False
        self._lock = threading.Lock()
        self._token: Any = None
        self._guarded: redirects.Added | None = None
        self._hint_token: Any = None
        self.pulling = False

    @property
    def record(self) -> CallRecord:
        """What is recorded about the call so far."""
        return self._record

    def guard_redirects(self, body: Mapping[Any, Any], field: str | None, *, azure: bool) -> None:
        """Withhold the hint if the request is redirected to a server that may not get it.

        Args:
            body: the request as the caller wrote it.
            field: body field of the hint; None if no hint was added.
            azure: True if the client is made for Azure OpenAI.
        """
        self._guarded = redirects.Added(field, body, (), self._origin, azure)

    def guard_headers(self, names: Iterable[str]) -> None:
        """Withhold headers, too, that were added to the request."""
        if self._guarded is not None:
            self._guarded = self._guarded._replace(headers=tuple(names))

    def _on_redirect(self, request: Any) -> Any:
        """Return the request with which the HTTP client follows a redirect."""
        if self._guarded is None:
            return request
        settings, dialect, rejected = self._settings, self._dialect, self._runtime.rejected

        def allows(origin: Origin) -> bool:
            return settings.dialect.of(origin) is dialect and origin not in rejected

        try:
            following, hint_withheld = self._guarded.checked(request, settings.targets, allows)
        except Exception as error:  # noqa: BLE001 - an internal error must not fail the call
            self.report("redirect", error)
            return request
        if hint_withheld:
            self._withheld()
        return following

    def _withheld(self) -> None:
        """Record that the answering server may not get the hint."""
        self._feedback = self._ratio = None  # they are about another server
        self._record = self._record._replace(outcome="excluded_target", keep_tokens=0)
        try:
            spans.update_outcome(self.span, self._record)
        except Exception as error:  # noqa: BLE001 - the call goes on
            self.report("redirect", error)

    def record_start(self, request: WireRequest, body: Mapping[Any, Any]) -> bool:
        """Record the decision on the span and run the hook. Return False if recording fails."""
        runtime = self._runtime
        try:
            if not self._ours:
                spans.annotate(self.span, self._record)
            request.watch(self)
        except Exception as error:  # noqa: BLE001 - a decision that cannot be recorded is not sent
            runtime.errors.report("span", error)
            self._end_span()
            return False
        if runtime.hook is not None:
            try:
                runtime.hook(self.span, self._record.decision, MappingProxyType(dict(body)))
            except Exception as error:  # noqa: BLE001 - the application's hook
                runtime.errors.report("decision_hook", error)
        return True

    def __enter__(self) -> ChatCall:
        if self._ours:
            self._token = otel_context.attach(self._context)
        if self._guarded is not None:
            self._hint_token = redirects.mark(self._on_redirect)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)
        if self._hint_token is not None:
            redirects.unmark(self._hint_token)
            self._hint_token = self._guarded = None
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None

    def is_rejection(self, status: int | None, text: str) -> bool:
        """Return True if an answer rejects the hint, so that the call must be repeated without it.

        Args:
            status: HTTP status of the answer.
            text: body of the answer.
        """
        runtime = self._runtime
        if self._record.outcome != "applied":
            return False
        try:
            field = self._dialect.field
            if not rejects(field, status, text):
                return False
            if runtime.rejected.add(self._origin):
                _log.warning(
                    "%s rejects %s. This process does not send it there again.",
                    self._origin.host,
                    field,
                )
            self._record = self._record._replace(outcome="rejected", keep_tokens=0)
            spans.update_outcome(self.span, self._record)
        except Exception as error:  # noqa: BLE001 - the caller gets the server's error
            runtime.errors.report("rejection", error)
            return False
        return True

    def on_response(self) -> None:
        """Count the decision: the request was answered or has failed, so its outcome is known."""
        try:
            self._attributes = self._runtime.instruments.decided(
                self._record, self._seconds, self._context
            )
        except Exception as error:  # noqa: BLE001 - a broken meter
            self.report("metrics", error)

    def fail(self, error: BaseException) -> None:
        """End the call after the request raised ``error``.

        No answer will follow, and it is unknown whether the server processed the prompt. So no
        prompt tokens are counted.
        """
        self.on_response()
        self._attributes = None
        self.stop(error)

    def on_answer(self, answer: Answer | None) -> None:
        """Note what the answer, or one chunk of a stream, reports."""
        if not self._started:
            self._started = True
            self._settle()
        if answer is None:
            return
        self._answer = answer if self._answer is None else self._answer.then(answer)
        if not self._ours:  # not later: the other instrumentation may end its span first
            spans.record_answer(self.span, answer, ours=False)

    def _settle(self) -> None:
        """Tell the adaptive rule that the prompt was processed: the first chunk proves it."""
        if self._feedback is not None:
            try:
                self._feedback.settle(self._record)
            except Exception as error:  # noqa: BLE001
                self.report("adaptive", error)

    def report(self, seam: str, error: Exception) -> None:
        """Report an internal error."""
        self._runtime.errors.report(seam, error)

    def stop(self, error: BaseException | None = None) -> None:
        """End the call. Further calls of this method do nothing.

        Args:
            error: what ended the request or its stream, if it failed.
        """
        with self._lock:
            if self._done:
                return
            self._done = True
        try:
            if self._answer is not None and self._ours:
                spans.record_answer(self.span, self._answer, ours=True)
            if error is not None and self._ours:
                spans.record_failure(self.span, error)
            if self._attributes is not None:  # even if the stream broke: the prompt was processed
                estimate = self._record.decision.signals.get("total_tokens", 0)
                self._runtime.instruments.answered(
                    self._attributes, self._answer, estimate, self._context
                )
            if self._feedback is not None and self._answer is not None:
                self._feedback.observe(self._answer)
            self._calibrate()
            self._write_log(error)
        except Exception as fault:  # noqa: BLE001 - the caller has its answer already
            self.report("answer", fault)
        finally:
            self._end_span()

    def _calibrate(self) -> None:
        """Learn characters per token from the server's count."""
        used, answer = self._ratio, self._answer
        if used is None or answer is None or not answer.input_tokens:
            return
        learned = self._runtime.calibration.learn(used, self._chars, answer.input_tokens)
        if learned is not None:
            self._runtime.instruments.calibrated(self._record, used.script, learned)

    def _write_log(self, error: BaseException | None) -> None:
        now = self._settings
        if now.decision_log is not None:
            entry = entry_of(self.span, self._record, self._answer, error)
            log = decision_log(now.decision_log)
            log.write(entry, now.decision_log_bytes, self._runtime.errors.report)

    def _end_span(self) -> None:
        if self._ours:
            try:
                self.span.end()
            except Exception as error:  # noqa: BLE001 - the application's span processor
                self.report("span", error)

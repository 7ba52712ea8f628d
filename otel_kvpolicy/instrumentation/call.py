"""One chat call: decided when it begins, recorded when its outcome is known, closed when its answer is read."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, Tracer

from .. import settings
from ..context import call_context
from ..hints import lmcache as hint
from ..hints.rejection import names_the_hint
from ..hints.targets import Origin, RejectedOrigins
from ..persistence import learner
from ..pipeline import Lesson, Verdict, judge
from ..policy import KVCacheDecision, KVCacheLayeringPolicy
from ..record import CallRecord
from ..requests import Answer, reader_of
from ..telemetry import spans
from ..telemetry.decision_log import decision_log, entry_of
from ..telemetry.errors import Faults
from ..telemetry.instruments import Instruments

_log = logging.getLogger("otel_kvpolicy")

DecisionHook = Callable[[Span, KVCacheDecision, Mapping[str, Any]], None]
"""Called with the chat span, the decision and a read-only view of the request body, after the decision is on the span."""

_rejected: Final = (
    RejectedOrigins()
)  # for the process: a server does not learn the field because the instrumentor was restarted
_malformed_said: Final[set[Origin]] = set()
_MAX_ORIGINS: Final = 256
_origins: Final[dict[int, tuple[Any, Origin]]] = {}
"""By the identity of a client's base URL, which is the same object with each call: working an origin out takes longer than deciding."""


class Runtime:
    """What all calls share while the instrumentor is on.

    Args:
        tracer: for spans of ours.
        instruments: for metrics.
        policy: the rule; ``None`` for the fixed rule with live settings.
        hook: the user's decision hook.
    """

    def __init__(
        self,
        tracer: Tracer,
        instruments: Instruments,
        policy: KVCacheLayeringPolicy | None,
        hook: DecisionHook | None,
    ) -> None:
        self.tracer = tracer
        self.instruments = instruments
        self.policy = policy
        self.hook = hook
        self.faults = Faults(instruments)

    def begin(
        self, client: Any, options: Any, parser: Callable[[ChatCall, Any], Any] | None = None
    ) -> ChatCall | None:
        """Decides for a request of the openai client.

        Args:
            client: the client that sends it.
            options: its ``FinalRequestOptions``; never mutated.
            parser: makes the ``post_parser`` with which a raw streamed answer is watched once the caller parses it.

        Returns:
            The call on its way, or ``None`` where it is no chat call or where we failed: it then goes out untouched.
        """
        reader = reader_of(options.url) if options.method == "post" else None
        if reader is None:
            return None
        body = _body(options)
        if body is None:
            return None
        seam = "settings"
        try:
            started = time.perf_counter()
            knobs = settings.current()
            known = call_context()
            seam = "decide"
            learned = learner(knobs, self.faults.caught)
            verdict = judge(
                reader(body),
                body,
                known,
                policy=self.policy,
                knobs=knobs,
                learned=learned.rule if learned else None,
            )
            seconds = time.perf_counter() - started
            seam = "hint"
            origin = _origin(client, options)
            policy = self.policy or knobs.policy
            allowed = knobs.targets.allow(origin, azure=_is_azure(client.__class__))
            record, params = _settle(
                policy, verdict, knobs, body, origin, allowed=allowed, agent=known.agent_name
            )
            lesson = verdict.lesson if allowed else None  # another's cache teaches nothing of ours
            seam = "span"
            theirs = spans.current_chat_span()
            span = theirs or spans.start_chat_span(self.tracer, body, record)
            call = ChatCall(
                self,
                record,
                span,
                lesson,
                ours=theirs is None,
                origin=origin,
                seconds=seconds,
                knobs=knobs,
            )
        except Exception as error:  # noqa: BLE001 - whatever fails here is ours, and the caller's call goes out untouched
            self.faults.caught(seam, error)
            return None
        if not call.open(options, body, params, parser):
            return None
        if known.agent_span is not None:
            self._count_on_agent(known.agent_span, record)
        return call

    def _count_on_agent(self, span: Span, record: CallRecord) -> None:
        try:
            spans.count_on_agent(span, record)
        except Exception as error:  # noqa: BLE001
            self.faults.caught("agent_span", error)


def _body(options: Any) -> Mapping[Any, Any] | None:
    """The body as the client will send it: ``extra_body`` over the rest. ``None`` for what is no JSON object."""
    body, extra = options.json_data, options.extra_json
    if extra is None:
        return body if isinstance(body, Mapping) else None
    if not isinstance(extra, Mapping) or not (body is None or isinstance(body, Mapping)):
        return None
    return {**(body or {}), **extra}


def _origin(client: Any, options: Any) -> Origin:
    base = client.base_url
    if (
        "://" in options.url
    ):  # as the client tells an absolute URL from a path, which may quote another in its query
        url = type(base)(options.url)
        if not url.is_relative_url:
            return Origin.of(url)
    return _origin_of(base)


def _origin_of(base: Any) -> Origin:
    known = _origins.get(id(base))
    if known is not None and known[0] is base:
        return known[1]
    if len(_origins) >= _MAX_ORIGINS:
        _origins.clear()
    origin = Origin.of(base)
    _origins[id(base)] = (base, origin)
    return origin


@lru_cache(maxsize=64)
def _is_azure(client: Any) -> bool:
    return any(base.__name__ == "BaseAzureClient" for base in client.__mro__)


def _settle(
    policy: KVCacheLayeringPolicy,
    verdict: Verdict,
    knobs: settings.Settings,
    body: Mapping[Any, Any],
    origin: Origin,
    *,
    allowed: bool,
    agent: str | None,
) -> tuple[CallRecord, dict[str, Any] | None]:
    """Who decides in the end and what is sent: the record, and the new ``kv_transfer_params`` or ``None`` to leave the body alone."""
    decision, keep = verdict.decision, verdict.keep_tokens
    given: Any = body.get(hint.FIELD)
    callers = hint.is_callers(given)
    params: dict[str, Any] | None = None
    outcome: Any
    if not decision.enabled:
        outcome = "disabled"
    elif callers:
        outcome = "caller"
        _warn_of_cap(given, origin)
    elif knobs.mode == "observe":
        outcome = "observed"
    elif not allowed:
        outcome = "excluded_target"
    elif origin in _rejected:
        outcome = "rejected"
    else:
        outcome = "applied"
        new = hint.hint_params(
            skip=decision.skip_save,
            keys=knobs.hint_keys,
            keep_tokens=keep,
            stats=knobs.cached_token_stats,
        )
        params = {**(given or {}), **new} if new else None
    skip = hint.caller_skips(given) if callers else decision.skip_save
    model = body.get("model")
    record = CallRecord(
        decision=decision,
        skip=skip,
        outcome=outcome,
        mode=knobs.mode,
        policy=policy,
        model=model if isinstance(model, str) else "",
        address=origin.host,
        port=origin.port,
        agent=agent,
        why=verdict.why,
        shadow=verdict.shadow,
        keep_tokens=keep if outcome == "applied" else 0,
    )
    return record, params


def _warn_of_cap(given: Any, origin: Origin) -> None:
    if hint.malformed_cap(given) and origin not in _malformed_said and len(_malformed_said) < 1000:
        _malformed_said.add(origin)
        kind = type(given[hint.MAX_OFFLOAD_KEY]).__name__
        _log.warning(
            "a caller's %s is a %s, on which vLLM's scheduler fails: it takes a plain int",
            hint.MAX_OFFLOAD_KEY,
            kind,
        )


class ChatCall:
    """A decided call on its way.

    Attributes:
        options: what to send.
    """

    __slots__ = (
        "_answer", "_attributes", "_begun", "_context", "_done", "_knobs", "_lesson", "_lock", "_origin", "_ours", "_plain", "_record",
        "_runtime", "_seconds", "_token", "options", "pulling", "span",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        record: CallRecord,
        span: Span,
        lesson: Lesson | None,
        *,
        ours: bool,
        origin: Origin,
        seconds: float,
        knobs: settings.Settings,
    ) -> None:
        self._runtime = runtime
        self._knobs = knobs
        self._record = record
        self._lesson = lesson
        self.span = span
        self._context = trace.set_span_in_context(span)
        self._ours = ours
        self._origin = origin
        self._seconds = seconds
        self._attributes: dict[str, Any] | None = None
        self._answer: Answer | None = None
        self._begun = False
        self._done = False
        self._lock = threading.Lock()
        self._plain: Any = None
        self._token: Any = None
        self.options: Any = None
        self.pulling = False

    def open(
        self,
        options: Any,
        body: Mapping[Any, Any],
        params: dict[str, Any] | None,
        parser: Callable[[ChatCall, Any], Any] | None,
    ) -> bool:
        """Writes the decision on another's span and puts the hint on the request; false where that failed."""
        try:
            if not self._ours:
                spans.annotate(self.span, self._record)
            if parser is not None:
                original, options = options.post_parser, copy.copy(options)
                options.post_parser = parser(self, original)
            self.options = self._plain = options
            if params is not None:
                self.options = copy.copy(options)
                self.options.extra_json = {**(options.extra_json or {}), hint.FIELD: params}
        except Exception as error:  # noqa: BLE001 - a decision that cannot be recorded is not sent
            self._runtime.faults.caught("span", error)
            self._end_span()
            return False
        if self._runtime.hook is not None:
            try:
                self._runtime.hook(self.span, self._record.decision, MappingProxyType(dict(body)))
            except Exception as error:  # noqa: BLE001
                self._runtime.faults.caught("decision_hook", error)
        return True

    def enter(self) -> None:
        """Makes a span of ours the current one, so that the HTTP span is its child."""
        if self._ours:
            self._token = otel_context.attach(self._context)

    def leave(self) -> None:
        """Gives the caller's context back."""
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None

    def without_hint(self, error: BaseException) -> Any:
        """The options to repeat the call with where ``error`` says that the server refuses the hint; else ``None``."""
        plain = self._plain
        if self._record.outcome != "applied" or plain is self.options:
            return None
        try:
            if not names_the_hint(error):
                return None
            if _rejected.add(self._origin):
                _log.warning(
                    "%s refuses %s; it is not sent there any more by this process",
                    self._origin.host,
                    hint.FIELD,
                )
            self._record = self._record._replace(outcome="rejected")
            spans.update_outcome(self.span, self._record)
        except Exception as ours:  # noqa: BLE001
            self._runtime.faults.caught("rejection", ours)
            return None
        return plain

    def answered(self) -> None:
        """The request has been answered or has failed: the outcome is known, and the request itself is needed no more."""
        self.options = self._plain = None
        try:
            self._attributes = self._runtime.instruments.decided(
                self._record, self._seconds, self._context
            )
        except Exception as error:  # noqa: BLE001
            self._runtime.faults.caught("metrics", error)

    def failed(self, error: BaseException) -> None:
        """The request has raised: nothing will follow, and whether its prompt was processed nobody says."""
        self.answered()
        self._attributes = None
        self.finish(error)

    def saw(self, answer: Answer | None) -> None:
        """Takes note of what the answer, or one chunk of it, says."""
        if not self._begun:
            self._begun = True
            self._settle_lesson()
        if answer is None:
            return
        self._answer = answer if self._answer is None else self._answer.then(answer)
        if not self._ours:  # now: another's span may have ended by the time the stream has
            spans.record_answer(self.span, answer, ours=False)

    def _settle_lesson(self) -> None:
        """Not before an answer begins, which a stream's headers are not: only then was the prompt processed."""
        if self._lesson is not None:
            try:
                self._lesson.settle(self._record)
            except Exception as error:  # noqa: BLE001
                self._runtime.faults.caught("learning", error)

    def fault(self, seam: str, error: Exception) -> None:
        """A fault of ours while the answer was read."""
        self._runtime.faults.caught(seam, error)

    def finish(self, error: BaseException | None = None) -> None:
        """The call is over, well or not; further calls do nothing."""
        with self._lock:
            if self._done:
                return
            self._done = True
        try:
            if self._answer is not None and self._ours:
                spans.record_answer(self.span, self._answer, ours=True)
            if error is not None and self._ours:
                spans.record_failure(self.span, error)
            if (
                self._attributes is not None
            ):  # also where the stream broke off: its prompt had been processed
                estimate = self._record.decision.signals.get("total_tokens", 0)
                self._runtime.instruments.answered(
                    self._attributes, self._answer, estimate, self._context
                )
            if self._lesson is not None and self._answer is not None:
                self._lesson.learn(self._answer)
            self._log(error)
        except Exception as ours:  # noqa: BLE001
            self._runtime.faults.caught("answer", ours)
        finally:
            self._end_span()

    def _log(self, error: BaseException | None) -> None:
        knobs = self._knobs
        if knobs.decision_log is not None:
            entry = entry_of(self.span, self._record, self._answer, error)
            decision_log(knobs.decision_log).write(
                entry, knobs.decision_log_bytes, self._runtime.faults.caught
            )

    def _end_span(self) -> None:
        if self._ours:
            try:
                self.span.end()
            except Exception as error:  # noqa: BLE001 - a span processor of the user's
                self._runtime.faults.caught("span", error)

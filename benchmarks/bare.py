"""An instrumentation that only does the work of the OpenTelemetry SDK: the lower bound of the cost.

It decides nothing. For each call it records one span with the attributes of a decision and of an
answer, and five metric points, all from values that are prepared once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openai import _base_client
from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind

from otel_kvpolicy.policy import CallText, ThresholdsRule
from otel_kvpolicy.record import CallRecord
from otel_kvpolicy.requests import Answer
from otel_kvpolicy.telemetry import names, spans
from otel_kvpolicy.telemetry.instruments import Instruments


class BareInstrumentor:
    """Records the same span and metric points for every request."""

    def __init__(self) -> None:
        rule = ThresholdsRule()
        record = CallRecord(
            rule.verdict(rule.judge(CallText(3000, 0, 2700, 0, 330, 4))),
            skip=False,
            outcome="applied",
            mode="enforce",
            model="m",
            address="gb10.local",
            port=80,
            agent=None,
        )
        self._request_attributes = {
            names.OPERATION_NAME: "chat",
            names.PROVIDER_NAME: "openai",
            names.REQUEST_MODEL: "m",
            names.SERVER_ADDRESS: "gb10.local",
            names.SERVER_PORT: 80,
            **spans.decision_attributes(record),
        }
        answer = Answer(900, 5, 512, "c", "m", ("stop",))
        self._answer_attributes = spans.answer_attributes(answer)
        self._labels = Instruments(metrics.get_meter("bare")).decided(record, 1e-5)

    def instrument(self) -> None:
        """Wrap the request methods of the sync and the async client."""
        meter, self._tracer = metrics.get_meter("bare"), trace.get_tracer("bare")
        self._counters = [
            meter.create_counter(metric.name)
            for metric in (names.DECISIONS, names.PROMPT_TOKENS, names.CACHED_TOKENS)
        ]
        self._histograms = [
            meter.create_histogram(metric.name)
            for metric in (names.DECISION_DURATION, names.SCORE_METRIC)
        ]
        sync, asynchronous = _base_client.SyncAPIClient.request, _base_client.AsyncAPIClient.request

        def request(*args: Any, **kwargs: Any) -> Any:
            span = self._start()
            result = sync(*args, **kwargs)
            self._end(span)
            return result

        async def async_request(*args: Any, **kwargs: Any) -> Any:
            span = self._start()
            result = await asynchronous(*args, **kwargs)
            self._end(span)
            return result

        wrappers: dict[Any, Callable[..., Any]] = {
            _base_client.SyncAPIClient: request,
            _base_client.AsyncAPIClient: async_request,
        }
        for owner, wrapper in wrappers.items():
            owner.request = wrapper

    def _start(self) -> trace.Span:
        return self._tracer.start_span(
            "chat m", kind=SpanKind.CLIENT, attributes=self._request_attributes
        )

    def _end(self, span: trace.Span) -> None:
        context = trace.set_span_in_context(span)
        for counter in self._counters:
            counter.add(1, self._labels, context)
        for histogram in self._histograms:
            histogram.record(1e-5, {names.DECISION: names.STORE}, context)
        span.set_attributes(self._answer_attributes)
        span.end()

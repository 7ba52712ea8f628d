"""Two instrumented services that call a stand-in server, and everything they recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from openai import OpenAI
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

import otel_kvpolicy
from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.settings import Settings
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import decision_log

from .shapes import attributes, service, trace_id

RULES: Any = {"role": "system", "content": "rule " * 650}  # 812 tokens: 212 short of the threshold
MANUAL: Any = {"role": "system", "content": "page " * 1000}
HI: Any = {"role": "user", "content": "hi"}
REPLY: Any = {"role": "assistant", "content": "yes"}


@dataclass(frozen=True)
class Recorded:
    """What the services recorded.

    Attributes:
        spans: all finished spans.
        log: the decision log.
        order: trace of three calls of the service ``shop``.
        later: trace of one call of ``shop``, with the same prefix as the first call of ``order``.
        mail: trace of one call of the service ``mail/out``.
        plain: trace of one span of ``mail/out`` without a decision.
    """

    spans: tuple[ReadableSpan, ...]
    log: Path
    order: str
    later: str
    mail: str
    plain: str

    @property
    def decided(self) -> list[ReadableSpan]:
        """Spans with a decision, oldest first."""
        found = [span for span in self.spans if "kvpolicy.decision" in (span.attributes or {})]
        return sorted(found, key=lambda span: span.start_time or 0)

    def of(self, trace: str) -> list[ReadableSpan]:
        """Spans of a trace that have a decision, oldest first."""
        return [span for span in self.decided if trace_id(span) == trace]


class Process:
    """Makes chat calls as an instrumented process does."""

    def __init__(self, client: OpenAI, tracer: Tracer) -> None:
        self._client = client
        self.tracer = tracer

    def chat(self, *messages: Any, **options: Any) -> None:
        self._client.chat.completions.create(
            model="stand-in", messages=list(messages), max_tokens=2, **options
        )


@contextmanager
def process(exporter: SpanExporter, server: StandIn, name: str) -> Iterator[Process]:
    """An instrumented process of the service ``name`` that calls ``server``."""
    provider = TracerProvider(
        resource=Resource({"service.name": name, "openinference.project.name": name})
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = KVPolicyInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            yield Process(client, provider.get_tracer("tests"))
    finally:
        instrumentor.uninstrument()


@pytest.fixture(scope="session")
def recorded(shared_server: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Spans and decision log of four calls of ``shop`` and one call of ``mail/out``."""
    log, exporter = tmp_path_factory.mktemp("explain") / "decisions.jsonl", InMemorySpanExporter()
    settings = dict.fromkeys(Settings.model_fields)
    otel_kvpolicy.configure(**{**settings, "decision_log": str(log)})
    with process(exporter, shared_server, "shop") as shop:
        with shop.tracer.start_as_current_span("handle order"):
            shop.chat(RULES, HI)
            shop.chat(MANUAL, HI)
            shop.chat(HI, REPLY, HI)
        shop.chat(RULES, HI)
    with process(exporter, shared_server, "mail/out") as mail:
        mail.chat(HI)
        with mail.tracer.start_as_current_span("GET /"):
            pass
    otel_kvpolicy.configure(**settings)
    assert decision_log.flush(20)
    spans = exporter.get_finished_spans()
    decided = [span for span in spans if "kvpolicy.decision" in attributes(span)]
    (order,) = {trace_id(span) for span in spans if span.name == "handle order"}
    (later,) = {trace_id(span) for span in decided if service(span) == "shop"} - {order}
    (mailed,) = {trace_id(span) for span in decided if service(span) == "mail/out"}
    (plain,) = {trace_id(span) for span in spans if span.name == "GET /"}
    return Recorded(spans, log, order, later, mailed, plain)


@pytest.fixture
def log(recorded: Recorded, tmp_path: Path) -> Path:
    """A copy of the decision log that a test may change."""
    return Path(copyfile(recorded.log, tmp_path / "decisions.jsonl"))

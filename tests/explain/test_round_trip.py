"""Properties: a decision survives a span and a source; each reported change changes the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_kvpolicy.cli.explain import Explanation, RecordedSpan, explain
from otel_kvpolicy.cli.spans.files import FileSource
from otel_kvpolicy.cli.spans.source import Query
from otel_kvpolicy.policy import REUSE_HEAVY_ROLES, CallText, KVCacheDecision, ThresholdsRule
from otel_kvpolicy.policy.thresholds import SETTINGS
from otel_kvpolicy.record import CallRecord
from otel_kvpolicy.telemetry import names
from otel_kvpolicy.telemetry.decision_log import entry_of
from otel_kvpolicy.telemetry.spans import start_chat_span

from .asking import ask
from .shapes import collector_json, jaeger, protobuf_json

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider(resource=Resource({"service.name": "shop"}))
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))

CHARS = st.integers(0, 20_000)
TOKENS = st.integers(0, 5_000)
ROLES = (
    st.none()
    | st.sampled_from(sorted(REUSE_HEAVY_ROLES))
    | st.sampled_from(["tool_agent", "batch", " Planner "])
)

limits = st.fixed_dictionaries(
    {
        name: st.integers(0, 5) if each.unit == "turns" else TOKENS
        for name, each in SETTINGS.items()
        if each.default is not None
    },
    optional={name: TOKENS for name, each in SETTINGS.items() if each.default is None},
)
rules = st.builds(
    ThresholdsRule,
    limits,
    enabled=st.sampled_from([True, True, True, False]),
    chars_per_token=st.sampled_from([1, 1.5, 3.7, 4.0, 100.0]),
)
texts = st.builds(
    CallText,
    prefix_chars=CHARS,
    tool_chars=CHARS,
    history_chars=CHARS,
    rag_chars=CHARS,
    user_chars=CHARS,
    history_turns=st.integers(0, 6),
)


def finished(
    decision: KVCacheDecision, rule: ThresholdsRule, skip: bool, outcome: Any
) -> tuple[ReadableSpan, dict[str, Any]]:
    """The span of a call as telemetry writes it, and its entry in the decision log."""
    verdict = rule.verdict(decision)
    record = CallRecord(verdict, skip, outcome, "enforce", "m", "gb10", 8000, None)
    span = start_chat_span(PROVIDER.get_tracer("tests"), {}, record)
    entry = entry_of(span, record, None, None)
    span.end()
    (ended,) = EXPORTER.get_finished_spans()
    EXPORTER.clear()
    return ended, entry


def read_back(document: Any) -> RecordedSpan:
    with TemporaryDirectory() as folder:
        path = Path(folder, "traces.jsonl")
        path.write_text(json.dumps(document))
        (span,) = FileSource(str(path)).recent(Query(10))
    return span


@given(rules, texts, ROLES, st.booleans(), st.sampled_from(["applied", "caller", "observed"]))
def test_a_recorded_decision_is_read_back_unchanged(
    rule: ThresholdsRule, text: CallText, role: str | None, skip: bool, outcome: Any
) -> None:
    decision = rule.judge(text, role)
    in_force = skip if outcome == "caller" else decision.skip_save
    span, entry = finished(decision, rule, in_force, outcome)
    for document in (
        collector_json([span]),
        {"batches": protobuf_json([span])},
        jaeger([span]),
        entry,
    ):
        found = explain(read_back(document))
        assert found.span.decision == decision
        assert found.span.skipped is in_force
        assert found.verdict == (
            "none" if not decision.enabled else "skip" if in_force else "store"
        )
        assert found.reasons == tuple(decision.reasons)


# --- changes --------------------------------------------------------------------------------------


def explained(rule: ThresholdsRule, text: CallText, role: str | None) -> Explanation:
    """The explanation of the decision, read back from its entry in the decision log."""
    decision = rule.judge(text, role)
    _, entry = finished(decision, rule, decision.skip_save, "applied")
    return explain(read_back(entry))


def stores(rule: ThresholdsRule, signals: dict[str, int], role: str | None) -> bool:
    """Whether the rule stores a call with these signals."""
    prefix, tools = signals["prefix_tokens"], min(signals["tool_tokens"], signals["prefix_tokens"])
    text = CallText(
        prefix - tools,
        tools,
        signals["history_tokens"],
        signals["rag_tokens"],
        signals["user_tokens"],
        signals["history_turns"],
    )
    return ThresholdsRule(rule.thresholds, chars_per_token=1).judge(text, role).cache_worthy


def with_setting(rule: ThresholdsRule, variable: str, value: int) -> ThresholdsRule:
    name = variable.removeprefix("KV_CACHE_").lower()
    changed = {**rule.thresholds, name: value}
    return ThresholdsRule(changed, chars_per_token=rule.chars_per_token)


@given(rules.filter(lambda rule: rule.enabled), texts, ROLES)
def test_each_change_is_the_smallest_that_changes_the_verdict(
    rule: ThresholdsRule, text: CallText, role: str | None
) -> None:
    decision = rule.judge(text, role)
    if decision.reason_codes != ["reuse_heavy_role"]:
        role = None  # a span names the role only if it made the difference
    now, signals = decision.cache_worthy, decision.signals
    for change in explained(rule, text, role).reading.changes:
        if change.kind == "role":
            assert rule.judge(text, "planner").cache_worthy is not now
            continue
        assert change.value is not None
        value = int(change.value)
        if change.kind == "setting":
            assert with_setting(rule, change.name, value).judge(text, role).cache_worthy is not now
            closer = value - 1 if now else value + 1
            assert with_setting(rule, change.name, closer).judge(text, role).cache_worthy is now
            continue
        # A change of the total stands for a change of any part that only counts in the total.
        part = "user_tokens" if change.name == "total_tokens" else change.name
        step = value - signals[change.name]
        assert (step < 0) is now
        smaller_step = step - (1 if step > 0 else -1)
        for delta, differs in ((step, True), (smaller_step, False)):
            changed = {**signals, part: signals[part] + delta}
            assert (stores(rule, changed, role) is not now) is differs


@given(
    st.builds(
        ThresholdsRule,
        st.fixed_dictionaries(
            {
                "min_prefix_tokens": st.integers(1000, 2000),
                "min_context_tokens": st.integers(2000, 4000),
            }
        ),
    ),
    st.builds(CallText, *[st.integers(0, 1599)] * 5, history_turns=st.just(0)),
)
def test_a_skipped_call_always_has_a_change_of_a_signal_and_of_a_setting(
    rule: ThresholdsRule, text: CallText
) -> None:
    found = explained(rule, text, None)
    assert found.verdict == "skip"
    assert {change.kind for change in found.reading.changes} >= {"signal", "setting"}
    assert all(not measure.met and measure.distance < 0 for measure in found.reading.measures)


# --- malformed attributes -------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["skip", "inf", "nan", "[/b]"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
CONVENTIONS = [
    names.REQUEST_MODEL,
    names.USAGE_INPUT_TOKENS,
    names.USAGE_CACHE_READ_INPUT_TOKENS,
    names.AGENT_NAME,
    names.SERVER_PORT,
]
ATTRIBUTES = st.sampled_from([attribute.name for attribute in names.ATTRIBUTES] + CONVENTIONS)
FIELDS = st.sampled_from(["timestamp", "trace_id", "span_id", "service", "name"])


@settings(deadline=None)
@given(st.dictionaries(ATTRIBUTES, JSON, max_size=6), st.dictionaries(FIELDS, JSON))
def test_attributes_of_any_type_are_handled(
    attributes: dict[str, Any], entry: dict[str, Any]
) -> None:
    rule = ThresholdsRule()
    decision = rule.judge(CallText(prefix_chars=4000))
    _, whole = finished(decision, rule, decision.skip_save, "applied")
    spoiled = {**whole, **entry, "attributes": {**whole["attributes"], **attributes}}
    with TemporaryDirectory() as folder:
        path = Path(folder, "log.jsonl")
        path.write_text(json.dumps(spoiled))
        for arguments in ([], ["--json"], [whole["trace_id"]]):
            assert ask("--from", path, *arguments).code in {0, 3}

"""Priority: background calls are stored only for a shared prefix; interactive ones are favored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from openai import OpenAI
from opentelemetry import baggage, context

from otel_kvpolicy import KVCacheLayeringPolicy, configure, kv_context, settings
from otel_kvpolicy.cli import main
from otel_kvpolicy.context import PRIORITY_BAGGAGE, CallContext, call_context
from otel_kvpolicy.pipeline import decide_call
from otel_kvpolicy.policy import CallText, ThresholdsRule
from otel_kvpolicy.policy.adaptive.boundaries import TraceBoundaries
from otel_kvpolicy.policy.adaptive.rule import AdaptiveRule
from otel_kvpolicy.policy.priority import vllm_priority
from otel_kvpolicy.requests import read_chat
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

LONG = CallText(prefix_chars=400, user_chars=9_000)  # 2,350 tokens: large_fixed_context
SHARED = CallText(prefix_chars=4_096, user_chars=40)
BORDERLINE = CallText(prefix_chars=400, user_chars=4_000)  # at least half of 2,048 tokens
SHORT = CallText(user_chars=400)
TURN = CallText(prefix_chars=400, history_chars=400, history_turns=1)


@pytest.mark.parametrize(
    ("text", "priority", "codes"),
    [
        (LONG, None, ["large_fixed_context"]),
        (LONG, "interactive", ["large_fixed_context"]),
        (LONG, "background", ["background_call"]),
        (TURN, "background", ["background_call"]),
        (CallText(rag_chars=5_000), "background", ["background_call"]),
        (SHARED, "background", ["long_shared_prefix"]),
        (SHORT, "background", ["one_off_short_prompt"]),
        (BORDERLINE, None, ["one_off_short_prompt"]),
        (BORDERLINE, "interactive", ["interactive_call"]),
        (SHORT, "interactive", ["one_off_short_prompt"]),
    ],
)
def test_thresholds(text: CallText, priority: Any, codes: list[str]) -> None:
    decision = ThresholdsRule().judge(text, None, priority=priority)
    assert decision.reason_codes == codes
    stored = codes[0] not in {"background_call", "one_off_short_prompt"}
    assert decision.cache_worthy == stored != decision.skip_save


def test_long_tool_definitions_store_a_background_call() -> None:
    rule = ThresholdsRule({"min_tool_tokens": 100, "min_prefix_tokens": None})
    decision = rule.judge(CallText(tool_chars=400), None, priority="background")
    assert decision.reason_codes == ["large_tool_definitions"]


def test_a_role_does_not_store_a_background_call() -> None:
    rule = ThresholdsRule()
    assert rule.judge(BORDERLINE, "planner").cache_worthy
    assert not rule.judge(BORDERLINE, "planner", priority="background").cache_worthy


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def boundaries(*hashes: int) -> TraceBoundaries:
    return TraceBoundaries(hashes, [8_000.0 * (index + 1) for index in range(len(hashes))])


def test_the_adaptive_rule_stores_a_background_call_only_if_its_prefix_is_shared() -> None:
    rule = AdaptiveRule(clock=Clock())
    text = CallText(prefix_chars=8_000, user_chars=8_000)
    unknown, _ = rule.decide(text, None, boundaries(1, 10), priority="background")
    assert unknown.reason_codes == ["background_call"]
    assert rule.decide(text, None, boundaries(2, 20))[0].cache_worthy
    rule.decide(text, None, boundaries(2, 21))
    shared, _ = rule.decide(text, None, boundaries(2, 22), priority="background")
    assert shared.cache_worthy


def test_the_adaptive_rule_stores_background_calls_of_a_class_that_comes_back() -> None:
    clock, rule = Clock(), AdaptiveRule(clock=Clock())
    rule._clock = clock
    text = CallText(user_chars=8_000)
    codes = []
    for number in range(20):
        for _ in range(2):
            decision, _ = rule.decide(text, "batch", boundaries(number), priority="background")
            clock.now += 1
        codes.append(decision.reason_codes[0])
    fresh, _ = rule.decide(text, "batch", boundaries(100), priority="background")
    assert codes[0] == "background_call"
    assert fresh.reason_codes == ["reuse_expected"]


def test_the_adaptive_rule_gives_an_interactive_call_the_doubt_twice() -> None:
    rule = AdaptiveRule(clock=Clock(), floor=0.4)
    text = CallText(user_chars=8_000)
    tally = rule._table.tally_of("", 0, 2_000, 0.0)
    rule._table.count(tally, 12, 0)
    plain, _ = rule.decide(text, None, boundaries(1))
    assert plain.reason_codes == ["reuse_unlikely"]
    doubt = rule.decide(text, None, boundaries(2))[1].why.doubt
    reuse = plain.score
    rule._floor = reuse + 1.5 * doubt
    favored, call = rule.decide(text, None, boundaries(3), priority="interactive")
    assert favored.reason_codes == ["interactive_call"]
    assert call.why.sentence.startswith("Stored")


@pytest.mark.parametrize(
    ("value", "priority"),
    [(0, None), (1, "background"), (-5, "interactive"), (True, None), ("9", None), (None, None)],
)
def test_vllms_own_priority_is_read(value: Any, priority: str | None) -> None:
    assert vllm_priority(value) == priority
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 9_000}], "priority": value}
    decided = decide_call(read_chat(body), body, CallContext(), settings=settings.current())
    assert decided.record.priority == priority
    assert decided.record.skip == (priority == "background")


def test_kv_context_wins_over_baggage_and_baggage_over_the_body() -> None:
    body = {"model": "m", "messages": [], "priority": 7}
    token = context.attach(baggage.set_baggage(PRIORITY_BAGGAGE, "interactive"))
    try:
        assert call_context().priority == "interactive"
        decided = decide_call(read_chat(body), body, call_context(), settings=settings.current())
        assert decided.record.priority == "interactive"
        with kv_context(priority="background"), kv_context(role="planner"):
            assert call_context()[:1] == ("planner",)
            assert call_context().priority == "background"
    finally:
        context.detach(token)
    assert call_context().priority is None


def test_an_unknown_priority_is_refused_in_code_and_ignored_in_baggage() -> None:
    with pytest.raises(ValueError, match="urgent"), kv_context(priority="urgent"):  # type: ignore[arg-type]
        pass
    token = context.attach(baggage.set_baggage(PRIORITY_BAGGAGE, "urgent"))
    try:
        assert call_context().priority is None
    finally:
        context.detach(token)


def test_a_background_call_is_not_stored_and_its_span_says_why(
    server: StandIn, instrumented: Telemetry
) -> None:
    question: Any = [{"role": "user", "content": "word " * 2_000}]
    with OpenAI(base_url=server.base_url, api_key="key") as client:
        for priority in ("background", None):
            with kv_context(priority=priority):
                client.chat.completions.create(model="stand-in", messages=question, max_tokens=4)
    background, plain = (span.attributes or {} for span in instrumented.decided)
    assert background["kvpolicy.decision"] == "skip"
    assert background["kvpolicy.priority"] == "background"
    assert background["kvpolicy.reasons"] == ("background_call",)
    assert plain["kvpolicy.decision"] == "store"
    assert "kvpolicy.priority" not in plain
    hints = [request.body["kv_transfer_params"]["lmcache.skip_save"] for request in server.requests]
    assert hints == [True, False]


def test_a_subclass_with_its_own_judge_is_not_given_a_priority() -> None:
    class Own(KVCacheLayeringPolicy):
        def judge(self, text: CallText, role: str | None = None) -> Any:  # type: ignore[override]
            return super().judge(text, role)

    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 9_000}], "priority": 1}
    options: Any = {"settings": settings.current()}
    own = decide_call(read_chat(body), body, CallContext(), policy=Own(), **options)
    plain = decide_call(
        read_chat(body), body, CallContext(), policy=KVCacheLayeringPolicy(), **options
    )
    assert not own.record.skip
    assert plain.record.skip


@pytest.mark.parametrize("rule", ["thresholds", "adaptive"])
def test_explain_knows_the_priority(rule: str, tmp_path: Any) -> None:
    configure(rule=rule)
    request = tmp_path / "request.json"
    message = {"role": "user", "content": "x" * 9_000}
    request.write_text(json.dumps({"model": "m", "messages": [message], "priority": 3}))
    command = ["explain", "--request", str(request), "--json"]
    cli: Any = main  # its type depends on whether click is installed
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    call = json.loads(done.output)
    call = call[0] if isinstance(call, list) else call.get("calls", [call])[0]
    assert call["decision"]["reasons"][0].startswith("background_call")
    text = json.dumps(call)
    assert "kvpolicy.priority" in text
    assert "other_rule" not in text
    if rule == "thresholds":
        assert {"kind": "priority", "name": "priority"}.items() <= {
            key: value
            for change in call["changes"]
            if change["kind"] == "priority"
            for key, value in change.items()
        }.items()

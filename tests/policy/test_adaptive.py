"""The adaptive rule, trained by calls and answers as a client sees them."""

from __future__ import annotations

import json
import random
import threading
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_kvpolicy import KVCacheDecision
from otel_kvpolicy.policy.adaptive.boundaries import TraceBoundaries, boundaries_of
from otel_kvpolicy.policy.adaptive.reuse_table import class_of
from otel_kvpolicy.policy.adaptive.rule import DEFAULT_FLOOR, AdaptiveCall, AdaptiveRule
from otel_kvpolicy.policy.adaptive.why import Why
from otel_kvpolicy.policy.signals import CallText
from otel_kvpolicy.requests import reader_of

TOKENS = 4
SYSTEM = "You answer questions about the harbour. " * 60


class Client:
    """A process that calls a server.

    The server's cache keeps a prefix for ``keeps`` seconds after it was last asked for.
    """

    def __init__(self, keeps: float | None = None, **options: Any) -> None:
        self.now = 0.0
        self.keeps = keeps
        self.rule = AdaptiveRule(clock=lambda: self.now, **options)
        self._stored: dict[str, float] = {}
        self._count = 0

    def ask(
        self, messages: list[dict[str, Any]], role: str | None = None
    ) -> tuple[KVCacheDecision, AdaptiveCall]:
        """Decide a call. If the server has a cache, report what it had of the prompt."""
        body = {"model": "m", "messages": messages}
        read = reader_of("/chat/completions")
        assert read is not None
        decision, call = self.rule.decide(read(body), role, boundaries_of(body, self.rule.key))
        if self.keeps is not None:
            self._answer(messages, decision, call)
        return decision, call

    def _answer(
        self, messages: list[dict[str, Any]], decision: KVCacheDecision, call: AdaptiveCall
    ) -> None:
        assert self.keeps is not None
        texts = [json.dumps(messages[: end + 1]) for end in range(len(messages))]
        held = 0
        for end, text in enumerate(texts):
            if self.now - self._stored.get(text, -1e9) > self.keeps:
                break
            held = end + 1
            self._stored[text] = self.now
        if not decision.skip_save:
            self._stored |= dict.fromkeys(texts, self.now)
        chars = [len(message["content"]) for message in messages]
        self.rule.observe(call, sum(chars[:held]) // TOKENS, sum(chars) // TOKENS)

    def once(self, role: str | None = None) -> tuple[KVCacheDecision, AdaptiveCall]:
        """Make a call that never comes back."""
        self._count += 1
        return self.ask([message("user", f"once {self._count} " + "pier " * 1000)], role)

    def talk(
        self, gap: float, calls: int = 2, role: str | None = None
    ) -> list[tuple[KVCacheDecision, AdaptiveCall]]:
        """Hold a conversation whose calls are ``gap`` seconds apart."""
        self._count += 1
        messages = [
            message("system", SYSTEM),
            message("user", f"talk {self._count} " + "quay " * 1000),
        ]
        results = []
        for number in range(calls):
            results.append(self.ask(messages, role))
            messages = [
                *messages,
                message("assistant", f"answer {number} " * 20),
                message("user", f"and {number}? " + "mole " * 400),
            ]
            self.now += gap
        return results

    def train(
        self,
        rounds: int,
        *,
        gap: float = 10,
        once: int = 1,
        roles: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Hold conversations, with calls between them that never come back."""
        for _ in range(rounds):
            self.talk(gap, role=roles[0])
            for _ in range(once):
                self.once(roles[1])
                self.now += 1


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_a_call_of_an_unknown_class_is_stored() -> None:
    decision, call = Client().once()
    assert not decision.skip_save
    assert (call.why.code, call.why.survival, call.why.lifetime_seconds) == (
        "reuse_expected",
        None,
        None,
    )
    assert call.why.theta == DEFAULT_FLOOR


def test_a_class_that_never_comes_back_is_skipped_and_one_that_does_is_stored() -> None:
    client = Client()
    client.train(1000, roles=("chat", "batch"))
    skipped, call = client.once("batch")
    assert (skipped.skip_save, skipped.reason_codes) == (True, ["reuse_unlikely"])
    assert call.why.reuse + call.why.doubt < call.why.theta
    stored, _ = client.talk(10, role="chat")[0]
    assert (stored.skip_save, stored.reason_codes) == (False, ["reuse_expected"])
    assert stored.score > 0.5


def test_without_cached_tokens_theta_stays_at_its_floor() -> None:
    client = Client(floor=0.01)
    client.train(500)
    assert client.once()[1].why.theta == 0.01


@pytest.mark.parametrize("keeps", [15.0, 60.0, 250.0])
def test_the_lifetime_of_the_cache_is_learned(keeps: float) -> None:
    draw = random.Random(3)
    client = Client(keeps)
    for _ in range(600):
        client.talk(draw.lognormvariate(4.6, 1.5))  # about 100 s, from a few seconds to an hour
    why = client.once()[1].why
    assert why.lifetime_seconds is not None
    assert keeps / 2 < why.lifetime_seconds < keeps * 2
    assert why.theta > 0.02


def test_a_cache_that_keeps_everything_costs_nothing() -> None:
    draw = random.Random(3)
    client = Client(1e9, floor=0.01)
    for _ in range(600):
        client.talk(draw.lognormvariate(4.6, 1.5))
    why = client.once()[1].why
    assert (why.survival, why.lifetime_seconds, why.theta) == (1.0, None, 0.01)


def under_pressure(**options: Any) -> Client:
    """Return a client whose slow conversations are evicted and whose quick ones mostly are not."""
    client = Client(60.0, **options)
    for number in range(500):
        client.talk(8 * 1.1 ** (number % 28), role="quick")
        client.talk(300 + number % 50, role="slow")
    return client


def test_a_class_that_comes_back_too_late_is_skipped_under_pressure() -> None:
    client = under_pressure()
    # No call asked for the system prompt for longer than the lifetime.
    assert client.talk(10, role="slow")[0][1].why.code == "shared_prefix_lost"
    assert client.talk(10, role="slow")[0][1].why.code == "reuse_unlikely"
    assert client.talk(10, role="quick")[0][1].why.code == "reuse_expected"


def test_a_class_is_stored_again_after_the_cache_has_grown() -> None:
    client = under_pressure()
    client.keeps = 1e9
    for _ in range(700):
        client.talk(10, role="quick")
        client.talk(300, role="slow")
    why = client.talk(300, role="slow")[0][1].why
    assert why.code == "reuse_expected"
    assert why.lifetime_seconds is None or why.lifetime_seconds > 300


def test_theta_returns_to_its_floor_if_answers_stop_reporting_cached_tokens() -> None:
    client = under_pressure()
    assert client.once()[1].why.theta > 0.05
    client.keeps = None  # from now on, answers report no cached_tokens
    client.train(1500)
    why = client.once()[1].why
    assert why.lifetime_seconds is None
    assert why.theta == pytest.approx(0.005)


def test_traffic_that_begins_to_come_back_is_stored_again() -> None:
    client = Client(1e9)
    for _ in range(3000):
        client.once()
        client.now += 1
    assert client.once()[0].skip_save
    skipped = [client.talk(10, calls=6)[0][0].skip_save for _ in range(200)]
    assert not any(skipped[100:])


def lost_prefix(client: Client) -> AdaptiveCall:
    """Return a call whose prefix several calls share and the cache has lost."""
    for _ in range(400):
        client.once()
        client.now += 1
    messages = [message("system", SYSTEM * 2)]
    for number in range(3):
        _, call = client.ask([*messages, message("user", f"question {number} " + "pier " * 1000)])
        client.rule.settle(call, stored=False)
        client.rule.observe(call, 0, int(call.total_chars // TOKENS))
        client.now += 1
    return client.ask([*messages, message("user", "question x " + "pier " * 1000)])[1]


def test_a_lost_shared_prefix_is_stored_again_even_if_its_class_rarely_returns() -> None:
    call = lost_prefix(Client(floor=0.5))
    assert (call.why.code, call.why.stores) == ("shared_prefix_lost", True)
    assert call.why.reuse + call.why.doubt < call.why.theta


WHY = Why("reuse_unlikely", class_of("chat", 1, 1024, 0.1), 0.25, 0.05, 0.5, 0.75, 60.0, 12.0, 1.0)
BASIS = (
    "calls like this (chat, 1 turn, 1k-2k tokens, 0-25% seen) come back with P = 0.25 "
    "(from 12 calls, 0.05 added for doubt); a place in the cache costs theta = 0.50; "
)
KEEPS = "the cache still had 75% of the prefixes that came back and keeps a prefix for about 60 s. "


@pytest.mark.parametrize(
    ("why", "sentence"),
    [
        (
            WHY,
            (
                f"Skipped: {BASIS}{KEEPS}It would be stored if its class came back more often than "
                "0.45, or with a larger cache."
            ),
        ),
        (
            WHY._replace(code="reuse_expected"),
            (
                f"Stored: {BASIS}{KEEPS}It would be skipped if theta rose above 0.30, which "
                "happens if the cache evicts many more prefixes before they come back."
            ),
        ),
        (
            WHY._replace(code="shared_prefix_lost", survival=None),
            (
                f"Stored: {BASIS}no recent answer reported cached_tokens, so theta is at its floor."
                " Stored anyway: several calls share its prefix, and the cache had lost it."
            ),
        ),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_the_sentence_has_the_numbers_and_what_would_change_the_decision(
    why: Why, sentence: str
) -> None:
    assert why.sentence == sentence


def test_a_prefix_that_the_server_never_keeps_is_stored_again_three_times_at_most() -> None:
    client = Client(floor=0.5)
    codes = [lost_prefix(client).why.code] + [
        client.ask(
            [message("system", SYSTEM * 2), message("user", f"again {number} " + "pier " * 1000)]
        )[1].why.code
        for number in range(20)
    ]
    for _ in range(20):
        _, call = client.ask(
            [message("system", SYSTEM * 2), message("user", f"more {client.now} " + "pier " * 1000)]
        )
        client.rule.observe(call, 0, int(call.total_chars // TOKENS))
        client.now += 1
        codes.append(call.why.code)
    assert 1 <= codes.count("shared_prefix_lost") <= 3
    assert codes[-1] == "reuse_unlikely"


def test_a_call_that_was_not_stored_is_no_evidence_of_pressure() -> None:
    client = Client()
    for _ in range(300):
        messages = [message("user", f"talk {client.now} " + "quay " * 1000)]
        _, call = client.ask(messages)
        client.rule.settle(call, stored=False)  # the rule is shadowing, or the caller decided
        client.now += 10
        _, after = client.ask(
            [*messages, message("assistant", "yes " * 50), message("user", "and? " * 500)]
        )
        client.rule.observe(after, 0, int(after.total_chars // TOKENS))
        client.rule.settle(after, stored=False)
        client.now += 10
    assert client.once()[1].why.survival is None


def test_tokens_of_lmcache_take_precedence_over_cached_tokens() -> None:
    client = Client()
    for _ in range(100):
        messages = [message("user", f"talk {client.now} " + "quay " * 1000)]
        client.ask(messages)
        client.now += 10
        _, after = client.ask(
            [*messages, message("assistant", "yes " * 50), message("user", "and? " * 500)]
        )
        tokens = int(after.total_chars // TOKENS)
        client.rule.observe(after, tokens, tokens, lmcache_tokens=0)
        client.now += 10
    assert client.once()[1].why.survival == 0.0


def test_less_than_a_chunk_is_no_evidence() -> None:
    client = Client(chunk_tokens=100_000)
    client.train(200)
    assert client.once()[1].why.survival is None


def test_a_skipped_call_can_keep_the_prefix_that_was_seen_before() -> None:
    client = Client()
    client.ask([message("system", SYSTEM), message("user", "first")])
    _, call = client.ask([message("system", SYSTEM), message("user", "second")])
    assert call.keep_tokens(4.0, 256) == len(SYSTEM) // 4 // 256 * 256 > 0
    assert client.once()[1].keep_tokens() == 0


def test_exported_state_continues_in_another_process() -> None:
    client = under_pressure()
    state = json.loads(json.dumps(client.rule.export()))
    other = Client(60.0)
    other.rule.restore(state)
    other.talk(10)  # so that it has seen the system prompt
    first, second = (process.talk(300, role="slow")[0][1].why for process in (client, other))
    assert (first.code, first.lifetime_seconds) == (second.code, second.lifetime_seconds)
    assert first.theta == pytest.approx(second.theta, rel=0.05)
    assert first.reuse == pytest.approx(second.reuse, abs=0.02)


def test_exported_state_has_no_prompt_content() -> None:
    client = Client(60.0)
    client.train(50, roles=("chat", None))
    text = json.dumps(client.rule.export())
    assert "harbour" not in text
    assert "quay" not in text
    assert str(client.rule.key) not in text


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"gap_seconds": -1},
        {"gap_seconds": "fast"},
        {"visible": float("nan")},
        {"classes": [["", 0, 0, 99, 1, 1]]},
        {"classes": [["", 0, 0, 0, -1, 1]]},
        {"classes": [[""]]},
        {"classes": None},
        {"lifetime": {}},
        {"lifetime": {"held": [1], "lost": [1], "gaps": [1], "reuse": 0.5}},
        {"lifetime": None},
    ],
)
def test_a_damaged_state_is_rejected_and_changes_nothing(change: Mapping[str, Any]) -> None:
    client = Client(60.0)
    client.train(20)
    before = json.dumps(client.rule.export())
    with pytest.raises(ValueError, match=r".+"):
        client.rule.restore({**client.rule.export(), **change})
    with pytest.raises(ValueError, match="version"):
        client.rule.restore({})
    assert json.dumps(client.rule.export()) == before


def test_processes_of_a_fleet_share_their_class_counts() -> None:
    first, second, fleet = Client(floor=0.05), Client(floor=0.05), dict[Any, tuple[float, float]]()
    first.train(300, roles=("chat", "batch"))
    new = first.rule.take_new()
    assert first.rule.take_new() == {}
    first.rule.give_back(new)  # the store could not be reached
    for group, (calls, returned) in first.rule.take_new().items():
        before = fleet.get(group, (0.0, 0.0))
        fleet[group] = (before[0] + calls, before[1] + returned)
    assert fleet == new
    second.rule.adopt([(group, calls, returned) for group, (calls, returned) in fleet.items()])
    assert second.once("batch")[0].skip_save
    assert not second.talk(10, role="chat")[0][0].skip_save
    group = next(iter(fleet))
    second.rule.adopt([(group, float("nan"), 1.0), (group, -5.0, 1.0)])  # both are ignored
    assert second.once("batch")[0].skip_save


def test_threads_lose_no_call() -> None:
    rule = AdaptiveRule(max_calls=50)
    calls, threads = 400, 8

    def run(name: int) -> None:
        for number in range(calls):
            body = {"messages": [message("user", f"{name}/{number}")]}
            _, call = rule.decide(CallText(user_chars=5), None, boundaries_of(body, rule.key))
            rule.observe(call, 0, 5)
            rule.settle(call, stored=False)

    workers = [threading.Thread(target=run, args=(name,)) for name in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counted = sum(count for count, _ in rule.take_new().values())
    assert counted == threads * calls - 50  # the last 50 calls are still pending


def test_memory_is_bounded() -> None:
    client = Client(60.0)
    sizes = []
    tracemalloc.start()
    for number in range(30_000):
        body = {
            "messages": [
                message("user", f"{number}"),
                message("assistant", "a"),
                message("user", "b"),
                message("assistant", "c"),
            ]
        }
        call = client.rule.decide(
            CallText(user_chars=number * 10), f"role {number}", boundaries_of(body, client.rule.key)
        )[1]
        client.rule.observe(call, 0, 100)
        client.now += 0.1
        if number in {15_000, 29_999}:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] < 8 << 20
    assert sizes[1] < 1.1 * sizes[0]


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.floats(-5, 1e6),
            st.integers(0, 4),
            st.integers(0, 6),
            st.integers(-10, 10**7),
            st.integers(-10, 10**7),
            st.one_of(st.none(), st.integers(-10, 10**7)),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_any_sequence_of_answers_keeps_theta_and_reuse_in_range(
    steps: list[tuple[float, int, int, int, int, int | None, bool]],
) -> None:
    client = Client(floor=0.02)
    for wait, talk, replies, cached, prompt, lmcache, stored in steps:
        client.now += wait  # a clock may go back
        messages = [
            message("user", f"{talk}" * 400),
            *(message("assistant", f"{number}" * 400) for number in range(replies)),
        ]
        decision, call = client.ask(messages, f"{talk}")
        client.rule.observe(call, cached, prompt, lmcache)
        client.rule.settle(call, stored=stored)
        assert 0.02 <= call.why.theta <= 0.5
        assert 0 <= call.why.reuse <= 1
        assert decision.skip_save == (call.why.code == "reuse_unlikely")


@pytest.mark.parametrize(
    "option",
    [
        {"floor": -0.1},
        {"floor": 0.6},
        {"max_calls": 0},
        {"chunk_tokens": 0},
        {"chars_per_token": 0},
    ],
)
def test_numbers_out_of_range_are_rejected(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"floor|max_calls"):
        AdaptiveRule(**option)


def test_nothing_is_learned_from_a_call_without_messages() -> None:
    rule = AdaptiveRule()
    decision, call = rule.decide(CallText(user_chars=100))
    rule.observe(call, 10, 25)
    assert not decision.skip_save
    assert rule.take_new() == {}


@pytest.mark.parametrize("grows", [40, 260, 300, 500, 1000])
def test_a_partial_last_chunk_does_not_count_as_lost(
    grows: int,
) -> None:
    now = [0.0]
    rule = AdaptiveRule(clock=lambda: now[0])
    survivals = set()
    for talk in range(40):
        messages = [message("user", f"{talk:4} " + "x" * (1800 + 37 * talk))]
        stored = 0
        for _ in range(6):
            body = {"model": "m", "messages": messages}
            _, call = rule.decide(CallText(user_chars=4000), None, boundaries_of(body, rule.key))
            survivals.add(call.why.survival)
            tokens = sum(len(message["content"]) for message in messages) // TOKENS
            rule.observe(call, stored, tokens)
            stored = tokens // 256 * 256
            messages = [
                *messages,
                message("assistant", "yes"),
                message("user", "y" * TOKENS * grows),
            ]
            now[0] += 5
    assert survivals <= {None, 1.0}
    if grows > 2 * 256:
        assert 1.0 in survivals


def test_a_signal_handler_can_decide_a_call_during_a_decision() -> None:
    rule = AdaptiveRule()

    class Interrupted(int):
        def __hash__(self) -> int:
            rule.decide(CallText(), "handler", TraceBoundaries([1], [1]))
            return 0

    thread = threading.Thread(
        target=rule.decide,
        args=(CallText(), "", TraceBoundaries([Interrupted()], [1])),
        daemon=True,
    )
    thread.start()
    thread.join(20)
    assert not thread.is_alive()

"""The learned rule, taught by calls and answers as a client sees them."""

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
from otel_kvpolicy.policy.adaptive.rule import AdaptiveCall, AdaptiveRule
from otel_kvpolicy.policy.signals import CallText
from otel_kvpolicy.requests import reader_of

TOKENS = 4
SYSTEM = "You answer questions about the harbour. " * 60


class Client:
    """A process that calls a server whose cache keeps each prefix ``keeps`` seconds after it was last asked for."""

    def __init__(self, keeps: float | None = None, **options: Any) -> None:
        self.now = 0.0
        self.keeps = keeps
        self.rule = AdaptiveRule(clock=lambda: self.now, **options)
        self._stored: dict[str, float] = {}
        self._count = 0

    def ask(
        self, messages: list[dict[str, Any]], role: str | None = None
    ) -> tuple[KVCacheDecision, AdaptiveCall]:
        """Decides for a call, and tells what the cache had of it where there is one."""
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
        """A call that never comes back."""
        self._count += 1
        return self.ask([said("user", f"once {self._count} " + "pier " * 1000)], role)

    def talk(
        self, gap: float, calls: int = 2, role: str | None = None
    ) -> list[tuple[KVCacheDecision, AdaptiveCall]]:
        """A conversation whose calls come ``gap`` seconds apart."""
        self._count += 1
        messages = [said("system", SYSTEM), said("user", f"talk {self._count} " + "quay " * 1000)]
        found = []
        for number in range(calls):
            found.append(self.ask(messages, role))
            messages = [
                *messages,
                said("assistant", f"answer {number} " * 20),
                said("user", f"and {number}? " + "mole " * 400),
            ]
            self.now += gap
        return found

    def train(
        self,
        rounds: int,
        *,
        gap: float = 10,
        once: int = 1,
        roles: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Conversations, and between them calls that never come back."""
        for _ in range(rounds):
            self.talk(gap, role=roles[0])
            for _ in range(once):
                self.once(roles[1])
                self.now += 1


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_what_is_not_known_is_stored() -> None:
    decision, call = Client().once()
    assert not decision.skip_save
    assert (call.why.code, call.why.survival, call.why.lifetime_seconds) == (
        "reuse_expected",
        None,
        None,
    )
    assert "theta is at its floor" in call.why.sentence


def test_a_class_that_never_comes_back_is_skipped_and_one_that_does_is_stored() -> None:
    client = Client()
    client.train(1000, roles=("chat", "batch"))
    skipped, why = client.once("batch")
    assert (skipped.skip_save, skipped.reason_codes) == (True, ["reuse_unlikely"])
    assert "It would be stored if its class came back more often" in why.why.sentence
    stored, _ = client.talk(10, role="chat")[0]
    assert (stored.skip_save, stored.reason_codes) == (False, ["reuse_expected"])
    assert stored.score > 0.5


def test_without_answers_theta_stays_at_its_floor() -> None:
    client = Client(floor=0.01)
    client.train(500)
    assert client.once()[1].why.theta == 0.01


@pytest.mark.parametrize("keeps", [15.0, 60.0, 250.0])
def test_the_lifetime_of_the_cache_is_learned(keeps: float) -> None:
    draw = random.Random(3)
    client = Client(keeps)
    for _ in range(600):
        client.talk(
            draw.lognormvariate(4.6, 1.5)
        )  # gaps around a hundred seconds, from seconds to an hour
    why = client.once()[1].why
    assert why.lifetime_seconds is not None
    assert keeps / 2 < why.lifetime_seconds < keeps * 2
    assert why.theta > 0.02
    assert f"keeps a prefix for about {why.lifetime_seconds:.0f} s" in why.sentence


def test_a_cache_that_keeps_everything_costs_nothing() -> None:
    draw = random.Random(3)
    client = Client(1e9, floor=0.01)
    for _ in range(600):
        client.talk(draw.lognormvariate(4.6, 1.5))
    why = client.once()[1].why
    assert (why.survival, why.lifetime_seconds, why.theta) == (1.0, None, 0.01)


def pressed(**options: Any) -> Client:
    """One that has learned that slow talks are evicted and quick ones, by and large, are not."""
    client = Client(60.0, **options)
    for at in range(500):
        client.talk(8 * 1.1 ** (at % 28), role="quick")
        client.talk(300 + at % 50, role="slow")
    return client


def test_what_comes_back_too_late_is_skipped_under_pressure() -> None:
    client = pressed()
    assert (
        client.talk(10, role="slow")[0][1].why.code == "shared_prefix_lost"
    )  # nobody had asked for the system prompt for too long
    assert client.talk(10, role="slow")[0][1].why.code == "reuse_unlikely"
    assert client.talk(10, role="quick")[0][1].why.code == "reuse_expected"


def test_it_opens_again_where_the_cache_has_grown() -> None:
    client = pressed()
    client.keeps = 1e9
    for _ in range(700):
        client.talk(10, role="quick")
        client.talk(300, role="slow")
    why = client.talk(300, role="slow")[0][1].why
    assert why.code == "reuse_expected"
    assert why.lifetime_seconds is None or why.lifetime_seconds > 300


def test_it_opens_again_where_nothing_tells_of_pressure_any_more() -> None:
    client = pressed()
    assert client.once()[1].why.theta > 0.05
    client.keeps = None  # no cached_tokens from here on
    client.train(1500)
    why = client.once()[1].why
    assert (why.lifetime_seconds, why.theta) == (None, pytest.approx(0.005))


def test_traffic_that_begins_to_come_back_is_stored_again() -> None:
    client = Client(1e9)
    for _ in range(3000):
        client.once()
        client.now += 1
    assert client.once()[0].skip_save
    skipped = [client.talk(10, calls=6)[0][0].skip_save for _ in range(200)]
    assert not any(skipped[100:])


def lost(client: Client) -> AdaptiveCall:
    """A call of a shared prefix that the cache has lost."""
    for _ in range(400):
        client.once()
        client.now += 1
    messages = [said("system", SYSTEM * 2)]
    for number in range(3):
        _, call = client.ask([*messages, said("user", f"question {number} " + "pier " * 1000)])
        client.rule.settle(call, stored=False)
        client.rule.observe(call, 0, call.total_chars // TOKENS)
        client.now += 1
    return client.ask([*messages, said("user", "question x " + "pier " * 1000)])[1]


def test_a_shared_prefix_that_was_lost_is_stored_again_whatever_its_class() -> None:
    call = lost(Client(floor=0.5))
    assert call.why.code == "shared_prefix_lost"
    assert "the cache had lost it" in call.why.sentence


def test_a_server_that_does_not_keep_it_is_not_asked_for_ever() -> None:
    client = Client(floor=0.5)
    codes = [lost(client).why.code] + [
        client.ask([said("system", SYSTEM * 2), said("user", f"again {number} " + "pier " * 1000)])[
            1
        ].why.code
        for number in range(20)
    ]
    for _ in range(20):
        _, call = client.ask(
            [said("system", SYSTEM * 2), said("user", f"more {client.now} " + "pier " * 1000)]
        )
        client.rule.observe(call, 0, call.total_chars // TOKENS)
        client.now += 1
        codes.append(call.why.code)
    assert 1 <= codes.count("shared_prefix_lost") <= 3
    assert codes[-1] == "reuse_unlikely"


def test_what_was_not_stored_says_nothing_of_pressure() -> None:
    client = Client()
    for _ in range(300):
        messages = [said("user", f"talk {client.now} " + "quay " * 1000)]
        _, call = client.ask(messages)
        client.rule.settle(call, stored=False)  # only watching, or the caller's own choice
        client.now += 10
        _, after = client.ask(
            [*messages, said("assistant", "yes " * 50), said("user", "and? " * 500)]
        )
        client.rule.observe(after, 0, after.total_chars // TOKENS)
        client.rule.settle(after, stored=False)
        client.now += 10
    assert client.once()[1].why.survival is None


def test_only_what_lmcache_had_counts_where_the_server_says() -> None:
    client = Client()
    for _ in range(100):
        messages = [said("user", f"talk {client.now} " + "quay " * 1000)]
        client.ask(messages)
        client.now += 10
        _, after = client.ask(
            [*messages, said("assistant", "yes " * 50), said("user", "and? " * 500)]
        )
        tokens = after.total_chars // TOKENS
        client.rule.observe(after, tokens, tokens, lmcache_tokens=0)
        client.now += 10
    assert client.once()[1].why.survival == 0.0


def test_less_than_a_chunk_says_nothing() -> None:
    client = Client(chunk_tokens=100_000)
    client.train(200)
    assert client.once()[1].why.survival is None


def test_a_skipped_call_may_keep_the_prefix_that_was_seen() -> None:
    client = Client()
    client.ask([said("system", SYSTEM), said("user", "first")])
    _, call = client.ask([said("system", SYSTEM), said("user", "second")])
    assert call.keep_tokens(4.0, 256) == len(SYSTEM) // 4 // 256 * 256 > 0
    assert client.once()[1].keep_tokens() == 0


def test_what_was_learned_goes_on_in_another_process() -> None:
    client = pressed()
    state = json.loads(json.dumps(client.rule.export()))
    other = Client(60.0)
    other.rule.restore(state)
    other.talk(10)  # the system prompt, which it has not seen
    mine, theirs = client.talk(300, role="slow")[0][1].why, other.talk(300, role="slow")[0][1].why
    assert (mine.code, mine.theta, mine.lifetime_seconds) == (
        theirs.code,
        pytest.approx(theirs.theta, rel=0.05),
        theirs.lifetime_seconds,
    )
    assert mine.reuse == pytest.approx(theirs.reuse, abs=0.02)


def test_nothing_of_a_prompt_is_exported() -> None:
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
def test_a_damaged_state_is_refused_and_nothing_is_taken(change: Mapping[str, Any]) -> None:
    client = Client(60.0)
    client.train(20)
    before = json.dumps(client.rule.export())
    with pytest.raises(ValueError, match=r".+"):
        client.rule.restore({**client.rule.export(), **change})
    with pytest.raises(ValueError, match="not the state"):
        client.rule.restore({})
    assert json.dumps(client.rule.export()) == before


def test_a_fleet_shares_its_classes() -> None:
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
    second.rule.adopt(
        [(next(iter(fleet)), float("nan"), 1.0), (next(iter(fleet)), -5.0, 1.0)]
    )  # passed over
    assert second.once("batch")[0].skip_save


def test_threads_lose_no_call() -> None:
    rule = AdaptiveRule(max_calls=50)
    each, threads = 400, 8

    def run(name: int) -> None:
        for number in range(each):
            body = {"messages": [said("user", f"{name}/{number}")]}
            _, call = rule.decide(CallText(user_chars=5), None, boundaries_of(body, rule.key))
            rule.observe(call, 0, 5)
            rule.settle(call, stored=False)

    workers = [threading.Thread(target=run, args=(name,)) for name in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counted = sum(calls for calls, _ in rule.take_new().values())
    assert counted == threads * each - 50  # those of the last fifty calls are not over yet


def test_memory_is_bounded() -> None:
    client = Client(60.0)
    sizes = []
    tracemalloc.start()
    for number in range(30_000):
        body = {
            "messages": [
                said("user", f"{number}"),
                said("assistant", "a"),
                said("user", "b"),
                said("assistant", "c"),
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
def test_no_answer_fails_it(
    steps: list[tuple[float, int, int, int, int, int | None, bool]],
) -> None:
    client = Client(floor=0.02)
    for wait, talk, replies, cached, prompt, lmcache, stored in steps:
        client.now += wait  # clocks may go back
        messages = [
            said("user", f"{talk}" * 400),
            *(said("assistant", f"{number}" * 400) for number in range(replies)),
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
def test_numbers_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"floor|max_calls"):
        AdaptiveRule(**option)


def test_a_call_without_messages_teaches_nothing() -> None:
    rule = AdaptiveRule()
    decision, call = rule.decide(CallText(user_chars=100))
    rule.observe(call, 10, 25)
    assert not decision.skip_save
    assert rule.take_new() == {}


@pytest.mark.parametrize("grows", [40, 260, 300, 500, 1000])
def test_a_cache_that_keeps_whole_chunks_has_lost_nothing_where_a_prompt_ends_within_one(
    grows: int,
) -> None:
    now = [0.0]
    rule = AdaptiveRule(clock=lambda: now[0])
    survivals = set()
    for talk in range(40):
        messages = [said("user", f"{talk:4} " + "x" * (1800 + 37 * talk))]
        stored = 0
        for _ in range(6):
            body = {"model": "m", "messages": messages}
            _, call = rule.decide(CallText(user_chars=4000), None, boundaries_of(body, rule.key))
            survivals.add(call.why.survival)
            tokens = sum(len(message["content"]) for message in messages) // TOKENS
            rule.observe(call, stored, tokens)
            stored = tokens // 256 * 256
            messages = [*messages, said("assistant", "yes"), said("user", "y" * TOKENS * grows)]
            now[0] += 5
    assert survivals <= {None, 1.0}
    if grows > 2 * 256:
        assert 1.0 in survivals


def test_a_signal_handler_may_make_a_call_of_its_own_within_a_decision() -> None:
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

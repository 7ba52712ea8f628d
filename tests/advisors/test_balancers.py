"""Affinity through a real nginx and a real HAProxy: hit rate, balance, and a replica that goes.

``-s`` prints the figures that docs/affinity.md quotes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from otel_kvpolicy import configure
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

from .balancers import BOUNDED_HASH, HASH, HEADER, ROUND_ROBIN, Balancer

pytestmark = pytest.mark.live

HEADS = 48
CALLS_OF_A_HEAD = 6
CONVERSATIONS = 32
TURNS = 4
CHARS_PER_TOKEN = 4
CACHE = 0.6
"""Tokens that the cache of one replica holds, as a share of all different tokens of a run."""

MOST = 0.85
"""Highest share of the calls of one of two replicas. The ports are in the hash rings, so that the
balance differs from run to run. The chance of more than this is below 1 in 10,000."""

Messages = list[dict[str, str]]


class Run(NamedTuple):
    """What a run showed.

    Attributes:
        hit_rate: share of the prompt tokens that came from a cache.
        shares: share of the calls that each replica answered.
        replicas_of: the replicas that answered, by the value of the header.
    """

    hit_rate: float
    shares: list[float]
    replicas_of: dict[str, set[int]]

    @property
    def busiest(self) -> float:
        return max(self.shares)


def words(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"{rng.randrange(1 << 30):x}" for _ in range(count))


def agents() -> list[Messages]:
    """One-off questions to agents that each have a long system prompt, in random order."""
    heads = [words(head, 300) for head in range(HEADS)]
    calls = [
        [{"role": "system", "content": head}, {"role": "user", "content": words(1000 + i, 10)}]
        for i, head in enumerate(heads * CALLS_OF_A_HEAD)
    ]
    random.Random(7).shuffle(calls)
    return calls


def chats() -> list[Messages]:
    """Conversations that share one system prompt; their turns alternate."""
    head = {"role": "system", "content": words(1, 200)}
    histories: list[Messages] = [[head] for _ in range(CONVERSATIONS)]
    calls = []
    rng = random.Random(7)
    for turn in range(TURNS):
        for number in rng.sample(range(CONVERSATIONS), CONVERSATIONS):
            history = histories[number]
            history.append({"role": "user", "content": words(5000 + 100 * number + turn, 150)})
            calls.append(list(history))
            history.append({"role": "assistant", "content": words(9000 + 100 * number + turn, 50)})
    return calls


@contextmanager
def replicas(calls: Sequence[Messages], count: int = 2, **options: Any) -> Iterator[list[StandIn]]:
    different = {message["content"] for call in calls for message in call}
    tokens = int(CACHE * sum(map(len, different)) / CHARS_PER_TOKEN)
    with ExitStack() as stack:
        yield [
            stack.enter_context(StandIn(l1_bytes=0, l2_bytes=0, gpu_tokens=tokens, **options))
            for _ in range(count)
        ]


def play(
    calls: Sequence[Messages], base_url: str, servers: Sequence[StandIn], threads: int = 1
) -> Run:
    """Send the calls, and return what the servers saw."""
    before = [len(server.requests) for server in servers]
    with OpenAI(base_url=base_url, api_key="key", max_retries=0) as client:

        def ask(messages: Messages) -> tuple[int, int]:
            answer = client.chat.completions.create(
                model="stand-in",
                messages=messages,  # type: ignore[arg-type]
                max_tokens=1,
            )
            assert answer.usage and answer.usage.prompt_tokens_details
            return answer.usage.prompt_tokens_details.cached_tokens or 0, answer.usage.prompt_tokens

        with ThreadPoolExecutor(threads) as pool:
            usage = list(pool.map(ask, calls))
    replicas_of: dict[str, set[int]] = {}
    counts: Counter[int] = Counter()
    for index, server in enumerate(servers):
        for request in list(server.requests)[before[index] :]:
            counts[index] += 1
            replicas_of.setdefault(request.headers.get(HEADER, ""), set()).add(index)
    return Run(
        sum(cached for cached, _ in usage) / sum(prompt for _, prompt in usage),
        [counts[index] / len(calls) for index in range(len(servers))],
        replicas_of,
    )


def show(name: str, run: Run) -> None:
    print(f"\n{name}: hit rate {run.hit_rate:.0%}, busiest replica {run.busiest:.0%}")


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_agents_find_their_system_prompts_in_the_cache(
    kind: str, tmp_path: Path, instrumented: Telemetry
) -> None:
    with (
        replicas(agents()) as servers,
        Balancer(kind, ROUND_ROBIN[kind], servers, tmp_path) as balancer,
    ):
        without = play(agents(), balancer.base_url, servers)
    configure(affinity_header=HEADER, affinity_key="k")
    with replicas(agents()) as servers, Balancer(kind, HASH[kind], servers, tmp_path) as balancer:
        affine = play(agents(), balancer.base_url, servers)
    show(f"{kind}, agents, round robin", without)
    show(f"{kind}, agents, affinity", affine)
    assert len(affine.replicas_of) == HEADS
    assert all(len(answered) == 1 for answered in affine.replicas_of.values())
    assert affine.hit_rate > without.hit_rate + 0.1
    assert affine.busiest < MOST


@pytest.mark.parametrize("scope", ["prefix", "opening"])
def test_conversations_with_one_system_prompt_need_the_scope_of_the_opening(
    scope: str, tmp_path: Path, instrumented: Telemetry
) -> None:
    with (
        replicas(chats()) as servers,
        Balancer("nginx", ROUND_ROBIN["nginx"], servers, tmp_path) as balancer,
    ):
        without = play(chats(), balancer.base_url, servers)
    configure(affinity_header=HEADER, affinity_key="k", affinity_scope=scope)
    with (
        replicas(chats()) as servers,
        Balancer("nginx", HASH["nginx"], servers, tmp_path) as balancer,
    ):
        affine = play(chats(), balancer.base_url, servers)
    show("nginx, chats, round robin", without)
    show(f"nginx, chats, affinity by {scope}", affine)
    if scope == "prefix":
        assert affine.busiest == 1
    else:
        assert affine.busiest < MOST
        assert affine.hit_rate > without.hit_rate + 0.05


def test_haproxy_caps_the_load_of_the_busiest_replica(
    tmp_path: Path, instrumented: Telemetry
) -> None:
    configure(affinity_header=HEADER, affinity_key="k")
    runs = []
    for balance in (HASH["haproxy"], BOUNDED_HASH):
        with (
            replicas(chats(), latency=0.05) as servers,
            Balancer("haproxy", balance, servers, tmp_path) as balancer,
        ):
            runs.append(play(chats(), balancer.base_url, servers, threads=16))
    unbounded, bounded = runs
    show("haproxy, chats by prefix, no cap", unbounded)
    show("haproxy, chats by prefix, hash-balance-factor 125", bounded)
    assert unbounded.busiest == 1
    assert bounded.busiest < MOST


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_if_a_replica_goes_only_its_calls_move(
    kind: str, tmp_path: Path, instrumented: Telemetry
) -> None:
    configure(affinity_header=HEADER, affinity_key="k")
    calls = agents()
    with replicas(calls, 3) as servers, Balancer(kind, HASH[kind], servers, tmp_path) as balancer:
        whole = play(calls, balancer.base_url, servers)
        gone = next(iter(next(iter(whole.replicas_of.values()))))
        servers[gone].close()
        less = play(calls, balancer.base_url, servers)
        again = play(calls, balancer.base_url, servers)
    for name, run in (("all", whole), ("one gone", less), ("one gone, later", again)):
        show(f"{kind}, agents, 3 replicas, {name}", run)
    assert less.shares[gone] == again.shares[gone] == 0
    assert sum(less.shares) == sum(again.shares) == pytest.approx(1)
    for value, answered in whole.replicas_of.items():
        if answered != {gone}:
            assert less.replicas_of[value] == answered
        assert len(again.replicas_of[value]) == 1


def test_a_call_without_the_header_is_spread_by_nginx(
    tmp_path: Path, instrumented: Telemetry
) -> None:
    with (
        replicas(agents()) as servers,
        Balancer("nginx", HASH["nginx"], servers, tmp_path) as balancer,
    ):
        run = play(agents(), balancer.base_url, servers)
    assert run.busiest < MOST

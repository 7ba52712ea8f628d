"""A load for compose.yaml: the demo's conversations, over and over, against an embedded vLLM and LMCache stand-in.

Run by opentelemetry-instrument, which adds the policy and sends what it records to the Collector. Stops on Ctrl+C.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

from openai import OpenAI

from otel_kvpolicy.cli.demo.conversations import built_in
from otel_kvpolicy.cli.demo.workload import Conversation, steps
from otel_kvpolicy.standin import StandIn

MIB = 1 << 20


def send(client: OpenAI, conversation: Conversation, length: int) -> None:
    """One call: the conversation up to there."""
    request: dict[str, Any] = {
        "model": "stand-in",
        "messages": conversation.messages[:length],
        "stream": conversation.stream,
    }
    if conversation.tools:
        request["tools"] = conversation.tools
    if conversation.stream:
        request["stream_options"] = {"include_usage": True}
    answer = client.chat.completions.create(**request)
    if conversation.stream:
        for _ in answer:
            pass


def main() -> None:
    """Sends calls at a steady pace; the number of users swings, so that the ratios on the dashboards move."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="of vLLM's stand-in")
    parser.add_argument("--lmcache-port", type=int, default=8080, help="of LMCache's stand-in")
    parser.add_argument("--rate", type=float, default=5, help="calls per second")
    parser.add_argument("--calls", type=int, help="stop after so many; without end by default")
    given = parser.parse_args()
    conversations = built_in()
    standin = StandIn(
        port=given.port,
        lmcache_port=given.lmcache_port,
        l1_bytes=2048 * MIB,
        l2_bytes=8192 * MIB,
        latency=0.02,
    )
    order = (
        (index, length)
        for turn in itertools.count()
        for index, length in steps(conversations, users=(2, 8, 32)[turn % 3])
    )
    with standin as server:
        client = OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        for index, length in itertools.islice(order, given.calls):
            send(client, conversations[index], length)
            time.sleep(1 / given.rate)


if __name__ == "__main__":
    main()

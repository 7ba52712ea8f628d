"""The load of compose.yaml: repeats the demo's conversations against an embedded stand-in.

``opentelemetry-instrument`` runs it, adds the policy, and sends the telemetry to the Collector.
Stop it with Ctrl+C.
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
    """Send the first ``length`` messages of a conversation as one call."""
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
    """Send calls at a steady rate.

    The number of users changes with each pass, so that the ratios on the dashboards change.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of vLLM's stand-in")
    parser.add_argument("--lmcache-port", type=int, default=8080, help="port of LMCache's stand-in")
    parser.add_argument("--rate", type=float, default=5, help="calls per second")
    parser.add_argument("--calls", type=int, help="stop after this many calls; by default, never")
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
        for number in itertools.count()
        for index, length in steps(conversations, users=(2, 8, 32)[number % 3])
    )
    with standin as server:
        client = OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        for index, length in itertools.islice(order, given.calls):
            send(client, conversations[index], length)
            time.sleep(1 / given.rate)


if __name__ == "__main__":
    main()

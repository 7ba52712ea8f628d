"""Record data for the previews and draw them.

    python -m dashboards.preview.record --minutes 6

This script calls stand-ins for vLLM and LMCache for some minutes, lets a real Prometheus and
node_exporter collect the metrics, and then runs ``render.py``. Run it from the root of a clone. It
needs the test dependencies and Debian's packages prometheus and prometheus-node-exporter.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from openai import OpenAI
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import start_http_server

from otel_kvpolicy import KVPolicyInstrumentor, kv_context
from otel_kvpolicy.standin import StandIn
from tests.dashboards.live import Prometheus, node_exporter, target

MIB = 1 << 20
WORDS = [
    *("policy", "cache", "prefix", "token", "model", "agent", "tool", "answer", "question", "plan"),
    *("order", "flight", "refund", "ticket", "customer", "report", "summary", "table"),
]
AGENTS = ("planner", "support", "reporter")


def words(draw: random.Random, count: int) -> str:
    """Return ``count`` random words."""
    return " ".join(draw.choice(WORDS) for _ in range(count))


def load(client: OpenAI, until: float) -> None:
    """Make calls until a time: conversations, and one-off questions.

    The conversations share a few system prompts. The share of questions changes every minute.
    """
    draw = random.Random(7)  # noqa: S311 - the same load every time
    systems = {agent: words(draw, 1500) for agent in AGENTS}
    talks: list[tuple[str, list[Any]]] = []
    started = time.time()
    while (now := time.time()) < until:
        swing = 0.5 - 0.4 * ((now - started) % 120 < 60)
        if draw.random() < swing:
            with kv_context(agent_name="classifier"):
                client.chat.completions.create(
                    model="stand-in",
                    messages=[{"role": "user", "content": words(draw, draw.randint(200, 900))}],
                )
        else:
            if len(talks) < 12 or draw.random() < 0.2:
                agent = draw.choice(AGENTS)
                talks = [*talks[-11:], (agent, [{"role": "system", "content": systems[agent]}])]
            agent, messages = draw.choice(talks)
            messages.append({"role": "user", "content": words(draw, 120)})
            with kv_context(agent_name=agent):
                answer = client.chat.completions.create(model="stand-in", messages=messages)
            messages.append(
                {"role": "assistant", "content": answer.choices[0].message.content or "yes"}
            )
        time.sleep(0.08)


def main() -> None:
    """Record and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=6)
    minutes = parser.parse_args().minutes
    reader = PrometheusMetricReader()
    kept = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(kept))
    KVPolicyInstrumentor().instrument(
        meter_provider=MeterProvider([reader]), tracer_provider=tracing
    )
    page, _ = start_http_server(0, addr="127.0.0.1")
    with ExitStack() as stack:
        standin = stack.enter_context(
            StandIn(l1_bytes=1280 * MIB, l2_bytes=3072 * MIB, gpu_tokens=8192, latency=0.03)
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets = [
            target("assistant", "assistant:9464", page.server_port),
            target("vllm", "gb10:8000", int(standin.url.rsplit(":", 1)[1])),
            target("lmcache", "gb10:8080", int(str(standin.lmcache_url).rsplit(":", 1)[1])),
            target("node", "gb10:9100", stack.enter_context(node_exporter())),
        ]
        prometheus = stack.enter_context(Prometheus(folder, targets))
        load(
            OpenAI(base_url=standin.base_url, api_key="none", max_retries=0),
            time.time() + minutes * 60,
        )
        address = f"http://127.0.0.1:{prometheus.port}"
        spans = folder / "spans.json"
        spans.write_text(
            json.dumps(
                [
                    {"Trace ID": f"{s.context.trace_id:032x}", **(s.attributes or {})}
                    for s in kept.get_finished_spans()
                ]
            )
        )
        renderer = str(Path(__file__).with_name("render.py"))
        command = [
            sys.executable,
            renderer,
            address,
            f"--minutes={minutes - 0.5}",
            f"--spans={spans}",
        ]
        subprocess.run(command, check=True)  # noqa: S603 - a script of this repository


if __name__ == "__main__":
    main()

"""Dropped streams: the garbage collector finds them, even while the SDK holds one of its locks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from otel_kvpolicy import KVPolicyInstrumentor
from otel_kvpolicy.standin import StandIn
from tests.conftest import Telemetry

BODY: dict[str, Any] = {
    "model": "stand-in",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 8,
    "stream": True,
}


class Locked(SpanProcessor):
    """Ends spans under a lock, as exporters and the SDK's own queues do."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended: list[str] = []

    def on_end(self, span: Any) -> None:
        with self.lock:
            self.ended.append(span.instrumentation_scope.name)


def drop(client: OpenAI, how: str) -> None:
    stream: Any = client.chat.completions.create(**BODY)
    if how == "unread":
        return
    next(stream)
    if how == "generator":  # the caller wraps the stream and stops in the middle

        def chunks() -> Any:
            with stream:
                yield from stream

        next(chunks())


@pytest.mark.parametrize("how", ["half_read", "unread", "generator"])
def test_a_stream_is_collected_while_a_lock_is_held(
    server: StandIn, telemetry: Telemetry, how: str
) -> None:
    locked, provider, instrumentor = Locked(), TracerProvider(), KVPolicyInstrumentor()
    provider.add_span_processor(locked)
    instrumentor.instrument(tracer_provider=provider, meter_provider=telemetry.meter_provider)
    try:
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            gc.disable()
            thread = threading.Thread(
                target=_drop_and_collect, args=(locked, lambda: drop(client, how)), daemon=True
            )
            thread.start()
            thread.join(20)
            assert not thread.is_alive(), (
                "the garbage collector waits for a lock that its own thread holds"
            )
            assert telemetry.total("kvpolicy.decisions") == 1
            assert locked.ended.count("otel_kvpolicy") == 1
    finally:
        gc.enable()
        instrumentor.uninstrument()
        provider.shutdown()


def _drop_and_collect(locked: Locked, make: Callable[[], None]) -> None:
    make()
    with locked.lock:
        gc.collect()


def test_the_span_of_a_dropped_stream_ends_before_the_process_exits(server: StandIn) -> None:
    code = """
import gc
from openai import OpenAI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from otel_kvpolicy import KVPolicyInstrumentor
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
KVPolicyInstrumentor().instrument(tracer_provider=provider)
client = OpenAI(api_key="key")
body = {"model": "stand-in", "messages": [{"role": "user", "content": "hi"}], "stream": True}
next(client.chat.completions.create(**body))
gc.collect()
kept = client.chat.completions.create(**body)
"""
    environment = {**os.environ, "OPENAI_BASE_URL": server.base_url}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.count('"name": "chat stand-in"') == 2, done.stderr


FORKS = """
import os
from otel_kvpolicy.instrumentation import finalizers
finalizers.prepare()
child = os.fork()
if child == 0:
    os._exit(0 if finalizers.flush(0) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_has_its_own_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"

"""Web servers with forked or spawned workers under ``opentelemetry-instrument``.

The decisions of every worker are exported.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_kvpolicy.standin import StandIn
from tests import needs
from tests.collector.otlp import Sink

pytestmark = pytest.mark.live

CALLS = 12
MOST_CALLS = 500
PATIENCE = 60

APP = """
import os
from openai import OpenAI

client = OpenAI(api_key="key")  # created before the fork, as in most applications


def ask():
    messages = [{"role": "user", "content": "hi"}]
    client.chat.completions.create(model="stand-in", messages=messages, max_tokens=2)
    return str(os.getpid()).encode()


def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Connection", "close")])
    return [ask()]


async def asgi(scope, receive, send):
    if scope["type"] == "http":
        headers = [(b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ask()})
"""

SERVERS = {
    "gunicorn": ["--workers", "2", "--bind", "127.0.0.1:{port}", "application:wsgi"],
    "gunicorn_preload": [
        "--preload",
        "--workers",
        "2",
        "--bind",
        "127.0.0.1:{port}",
        "application:wsgi",
    ],
    "uvicorn": ["--workers", "2", "--port", "{port}", "--lifespan", "off", "application:asgi"],
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def answers(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def running(name: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run the server under ``opentelemetry-instrument`` on a free port."""
    (folder / "application.py").write_text(APP)
    url = f"http://127.0.0.1:{free_port()}"
    instrument = [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        "--traces_exporter",
        "none",
        "--logs_exporter",
        "none",
    ]
    options = [option.format(port=url.rpartition(":")[2]) for option in SERVERS[name]]
    command = [*instrument, sys.executable, "-m", name.partition("_")[0], *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            assert eventually(lambda: answers(url)), (folder / "log").read_text()
            yield url
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def decisions(sink: Sink) -> float:
    return sum(
        point.as_int or point.as_double
        for request in list(sink.metrics)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "kvpolicy.decisions"
        for point in metric.sum.data_points
    )


@pytest.mark.parametrize("name", SERVERS)
def test_the_decisions_of_every_worker_are_counted(
    name: str, server: StandIn, tmp_path: Path
) -> None:
    server_module = name.partition("_")[0]
    needs.module(server_module, install=server_module)
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OTEL_", "KV_CACHE_"))
    }
    with Sink() as sink:
        environment = {
            **clean,
            "OPENAI_BASE_URL": server.base_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [os.environ.get("PYTHONPATH"), str(tmp_path)])
            ),
        }
        with running(name, tmp_path, environment) as url:
            workers: list[bytes] = []
            while len(workers) < CALLS or (len(set(workers)) < 2 and len(workers) < MOST_CALLS):
                with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                    workers.append(response.read())
            assert len(set(workers)) == 2
            assert eventually(lambda: decisions(sink) >= len(workers)), (decisions(sink), workers)
        assert decisions(sink) == len(workers)
    assert ["kv_transfer_params" in request.body for request in server.requests] == [True] * len(
        workers
    )

"""A real Prometheus on loopback, and metrics pages for it to scrape."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import yaml
from prometheus_client.parser import text_string_to_metric_families

from .built import FILES
from .tools import tool

DEADLINE = 60.0
LOOPBACK = "127.0.0.1"


def until(condition: Callable[..., Any], what: str, *, within: float = DEADLINE) -> Any:
    """Poll until a condition holds and return its value."""
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.1)
    return value


def free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


class Pages:
    """Serves metrics pages. Each page is a function that is called at every scrape."""

    def __init__(self) -> None:
        self.pages: dict[str, Callable[[], str]] = {}
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                body = page().encode() if page else b""
                self.send_response(200 if page else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                # Prometheus ends its scrapes early when it stops.
                with suppress(ConnectionError):
                    super().handle()

            def log_message(self, *args: object) -> None:
                """Do not log."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    def __enter__(self) -> Pages:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Growing:
    """A saved page whose counters and histograms grow by their own size at every scrape."""

    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))
        self.turn = 0
        self.frozen = False

    def __call__(self) -> str:
        if not self.frozen:
            self.turn += 1
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for family in self._families:
            counts = family.type in ("counter", "histogram")
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield f"# TYPE {name} {family.type}"
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                    yield f"{sample.name}{{{labels}}} {sample.value * (self.turn if counts else 1)}"


def _environment() -> dict[str, str]:
    """Return this process's environment without settings of this package and of OpenTelemetry."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KV_CACHE_", "OTEL_"))
    }
    return kept | {"NO_PROXY": LOOPBACK}


class App:
    """The instrumented application in a process of its own; see ``app.py``."""

    def __init__(
        self, *arguments: str, model: str = "stand-in", scale: float = 1, **environment: str
    ) -> None:
        command = [sys.executable, "-m", "tests.dashboards.app", *arguments]
        self._model, self._scale = model, scale
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=_environment() | environment,
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        self._made = 0

    def calls(self, base_url: str, *kinds: str) -> list[dict[str, Any]]:
        """Make one call per kind and return what the client saw of each."""
        assert self._process.stdin
        assert self._process.stdout
        numbered = []
        for kind in kinds:
            self._made += 1
            numbered.append((kind, self._made))
        self._process.stdin.write(
            json.dumps(
                {
                    "base_url": base_url,
                    "model": self._model,
                    "scale": self._scale,
                    "calls": numbered,
                }
            )
            + "\n"
        )
        self._process.stdin.flush()
        seen: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        return seen

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()


def target(job: str, instance: str, port: int, path: str = "/metrics") -> dict[str, Any]:
    """Return a scrape configuration for one page, with the instance that a real host would have."""
    static = [{"targets": [f"{LOOPBACK}:{port}"], "labels": {"instance": instance}}]
    return {
        "job_name": f"{job}/{instance}",
        "metrics_path": path,
        "static_configs": static,
        # Job names must be unique in a configuration, so the label is set afterwards.
        "relabel_configs": [{"target_label": "job", "replacement": job}],
    }


class Prometheus:
    """Debian's Prometheus with the built rules; it scrapes and evaluates every second."""

    def __init__(
        self, folder: Path, targets: list[dict[str, Any]], alertmanager: int | None = None
    ) -> None:
        self.port = free_port()
        self._folder = folder
        rules = []
        for name, text in FILES.items():
            if name.startswith("rules/"):
                path = folder / Path(name).name
                path.write_text(text)
                rules.append(str(path))
        config: dict[str, Any] = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": rules,
            "scrape_configs": targets,
        }
        if alertmanager is not None:
            managers = [{"static_configs": [{"targets": [f"{LOOPBACK}:{alertmanager}"]}]}]
            config["alerting"] = {"alertmanagers": managers}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx2.Client(
            base_url=f"http://{LOOPBACK}:{self.port}", trust_env=False, timeout=20
        )

    def start(self) -> None:
        """Start Prometheus and wait until it answers."""
        command = [
            tool("prometheus", package="prometheus"),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self.port}",
            "--web.enable-remote-write-receiver",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._ready, f"Prometheus is up: {(self._folder / 'log').read_text()[-500:]}")

    def _ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx2.HTTPError:
            return False

    def stop(self) -> None:
        """Stop Prometheus and wait until it has ended."""
        assert self._process
        self._process.terminate()
        self._process.wait(20)

    def __enter__(self) -> Prometheus:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._client.close()

    def api(self, path: str, **params: Any) -> Any:
        """Return the data of an API call, which must succeed."""
        answer = self._client.get(f"/api/v1/{path}", params=params)
        body = answer.json()
        assert body["status"] == "success", f"{params}: {body.get('error')}"
        return body["data"]

    def vector(self, expr: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of an instant query."""
        found = self.api("query", query=expr, **({} if at is None else {"time": at}))
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in found["result"]]

    def number(self, expr: str, at: float | None = None) -> float | None:
        """Return the only value of an instant query, or None without one."""
        found = self.vector(expr, at)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def samples(
        self, selector: str, at: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return the raw samples of a range selector."""
        found = self.api("query", query=selector, time=at)["result"]
        return [
            (series["metric"], [(moment, float(value)) for moment, value in series["values"]])
            for series in found
        ]

    def matrix(
        self, expr: str, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return the series of a range query."""
        found = self.api("query_range", query=expr, start=start, end=end, step=step)["result"]
        return [
            (series["metric"], [(moment, float(value)) for moment, value in series["values"]])
            for series in found
        ]


@contextmanager
def listening(command: list[str], port: int) -> Iterator[int]:
    """Run a program and wait until it listens on its port."""

    def up() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, port)) == 0

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(up, f"{command[0]} listens")
            yield port
        finally:
            process.terminate()


@contextmanager
def node_exporter() -> Iterator[int]:
    """Run Debian's node_exporter on a free port."""
    port = free_port()
    program = tool("prometheus-node-exporter", package="prometheus-node-exporter")
    with listening([program, f"--web.listen-address={LOOPBACK}:{port}"], port):
        yield port


@contextmanager
def alertmanager(folder: Path) -> Iterator[int]:
    """Run Debian's Alertmanager, without receivers, on a free port."""
    port = free_port()
    config = folder / "alertmanager.yml"
    config.write_text("route: {receiver: nobody, group_wait: 0s}\nreceivers: [{name: nobody}]\n")
    command = [
        tool("prometheus-alertmanager", package="prometheus-alertmanager"),
        f"--config.file={config}",
        f"--storage.path={folder / 'alerts'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--cluster.listen-address=",
    ]
    with listening(command, port):
        yield port

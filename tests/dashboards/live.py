"""A real Prometheus on loopback, and pages for it to scrape."""

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


def until(condition: Callable[[], Any], what: str, *, within: float = DEADLINE) -> Any:
    """Polls until a condition holds; its value."""
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
    """Serves metrics pages; each is a function of nothing, called at every scrape."""

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
                # A scrape that ended early, as Prometheus stops.
                with suppress(ConnectionError):
                    super().handle()

            def log_message(self, *args: object) -> None:
                """No log."""

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
    """A saved page brought to life: gauges stay, counters and histograms are once more their size at every scrape."""

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
    """Ours, without settings of this package or of OpenTelemetry that are meant for other processes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KV_CACHE_", "OTEL_"))
    }
    return kept | {"NO_PROXY": LOOPBACK}


class App:
    """The instrumented application."""

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
        """Makes calls; what the client saw of each."""
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
    """A scrape of one page, under the name that the host would have."""
    static = [{"targets": [f"{LOOPBACK}:{port}"], "labels": {"instance": instance}}]
    return {
        "job_name": f"{job}/{instance}",
        "metrics_path": path,
        "static_configs": static,
        "relabel_configs": [_job(job)],
    }


def _job(job: str) -> dict[str, str]:
    # Job names must be unique in a config, so the label is set afterwards.
    return {"target_label": "job", "replacement": job}


class Prometheus:
    """Debian's Prometheus with the built rules, evaluated and scraped every second."""

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
        """Starts, and waits until it answers."""
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
        """Stops it in good order."""
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
        """Data of an API call that must succeed."""
        answer = self._client.get(f"/api/v1/{path}", params=params)
        body = answer.json()
        assert body["status"] == "success", f"{params}: {body.get('error')}"
        return body["data"]

    def vector(self, expr: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """An instant query's labels and values."""
        found = self.api("query", query=expr, **({} if at is None else {"time": at}))
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in found["result"]]

    def number(self, expr: str, at: float | None = None) -> float | None:
        """An instant query's only value; None without one."""
        found = self.vector(expr, at)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def samples(
        self, selector: str, at: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Raw samples of a range selector."""
        found = self.api("query", query=selector, time=at)["result"]
        return [
            (series["metric"], [(moment, float(value)) for moment, value in series["values"]])
            for series in found
        ]

    def matrix(
        self, expr: str, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """A range query's series."""
        found = self.api("query_range", query=expr, start=start, end=end, step=step)["result"]
        return [
            (series["metric"], [(moment, float(value)) for moment, value in series["values"]])
            for series in found
        ]


@contextmanager
def listening(command: list[str], port: int) -> Iterator[int]:
    """Runs a program that listens on a port, as soon as it does."""

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
    """Debian's node_exporter; its port."""
    port = free_port()
    program = tool("prometheus-node-exporter", package="prometheus-node-exporter")
    with listening([program, f"--web.listen-address={LOOPBACK}:{port}"], port):
        yield port


@contextmanager
def alertmanager(folder: Path) -> Iterator[int]:
    """Debian's Alertmanager, which tells nobody; its port."""
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

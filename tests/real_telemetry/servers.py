"""The real Collector, Prometheus 3, Alertmanager and Jaeger 2, on free ports of the loopback."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ..dashboards.live import LOOPBACK, free_port, until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "collector"
HURRY = {"initial_interval": "100ms", "max_interval": "500ms"}
"""Retries for a test that does not want to wait."""
Edit = Callable[[dict[str, Any]], None]


def program(name: str) -> str:
    """Return the path of a built server; skip the test unless ``make real-telemetry`` runs it."""
    folder = os.environ.get("KVPOLICY_REAL_TELEMETRY")
    if not folder:
        pytest.skip("needs the real servers: make real-telemetry")
    path = Path(folder) / name
    assert path.exists(), f"{path} is missing: python -m tools.real_telemetry.build {name}"
    return str(path)


def clean_environment() -> dict[str, str]:
    """Return the environment without settings for other processes, and without proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KV_CACHE_", "OTEL_")) and not name.lower().endswith("_proxy")
    }
    return kept | {"NO_PROXY": LOOPBACK}


class Server:
    """A server in a process of its own that can be stopped, killed and started again."""

    def __init__(self, name: str, folder: Path) -> None:
        self._program = program(name)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.client = httpx2.Client(trust_env=False, timeout=20)

    def command(self) -> list[str]:
        """Return the arguments of the program."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return what is added to the environment."""
        return {}

    def ready_url(self) -> str:
        """Return the URL that answers 200 as soon as the server is ready."""
        raise NotImplementedError

    @property
    def log(self) -> str:
        """Everything the server has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *self.command()],
                stdout=log,
                stderr=log,
                env=clean_environment() | self.environment(),
            )
        until(self._ready_or_dead, f"{self._program} is ready")
        assert self._process.poll() is None, self.log[-3000:]

    def _ready_or_dead(self) -> bool:
        assert self._process
        if self._process.poll() is not None:
            return True
        try:
            return self.client.get(self.ready_url()).status_code == 200
        except httpx2.HTTPError:
            return False

    def stop(self) -> None:
        """Ask the server to stop, and wait until it has."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        assert self._process
        self._process.kill()
        self._process.wait(10)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.client.close()


class Collector(Server):
    """A Collector that runs one of the shipped files.

    Only what a test must change is changed: ports, and how long it takes until something happens.

    Args:
        name: File of ``collector/``, without its suffix.
        folder: Place for the configuration, the log and the queue.
        edit: More changes to the configuration.
        environment: What the file reads from the environment.
    """

    def __init__(
        self, name: str, folder: Path, edit: Edit | None = None, **environment: str
    ) -> None:
        super().__init__("otelcol-kvpolicy", folder)
        self.grpc, self.http, self._health, self._metrics = (free_port() for _ in range(4))
        self._environment = {"QUEUE_DIR": str(folder / "queue")} | environment
        config = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
        protocols = config["receivers"]["otlp"]["protocols"]
        for protocol, port in (("grpc", self.grpc), ("http", self.http)):
            if protocol in protocols:
                protocols[protocol]["endpoint"] = f"{LOOPBACK}:{port}"
        config["extensions"]["health_check"]["endpoint"] = f"{LOOPBACK}:{self._health}"
        reader = {"pull": {"exporter": {"prometheus": {"host": LOOPBACK, "port": self._metrics}}}}
        config["service"]["telemetry"] = {"metrics": {"readers": [reader]}}
        for exporter in config["exporters"].values():
            exporter["retry_on_failure"] |= HURRY
        if "span_metrics" in config.get("connectors", {}):
            config["connectors"]["span_metrics"]["metrics_flush_interval"] = "1s"
        self._config = folder / "config.yaml"
        self._config.write_text(yaml.safe_dump(config))
        if edit:
            self.configure(edit)

    def configure(self, edit: Edit) -> None:
        """Change the configuration; a running Collector does not notice until it is restarted."""
        config = yaml.safe_load(self._config.read_text())
        edit(config)
        self._config.write_text(yaml.safe_dump(config))

    @property
    def target(self) -> str:
        """Where other Collectors send OTLP over gRPC: host and port."""
        return f"{LOOPBACK}:{self.grpc}"

    @property
    def url(self) -> str:
        """Where applications send OTLP over HTTP."""
        return f"http://{LOOPBACK}:{self.http}"

    def command(self) -> list[str]:
        return [f"--config={self._config}"]

    def environment(self) -> dict[str, str]:
        return self._environment

    def ready_url(self) -> str:
        return f"http://{LOOPBACK}:{self._health}/ready"

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of one of the Collector's own counters, over the series with the labels.

        Args:
            name: Name without ``otelcol_`` and ``_total``.
            labels: Labels that the series must have.
        """
        page = self.client.get(f"http://{LOOPBACK}:{self._metrics}/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.removesuffix("_total") == f"otelcol_{name}"
            and labels.items() <= sample.labels.items()
        )


class Prometheus(Server):
    """Prometheus 3 with the shipped configuration, scraping and evaluating every second.

    Args:
        folder: Place for the configuration, the log and the data.
        targets: Ports to scrape, by job.
        otlp: More settings of the OTLP receiver, such as ``translation_strategy``.
        alertmanager: Port of an Alertmanager.
    """

    def __init__(
        self,
        folder: Path,
        targets: dict[str, int] | None = None,
        otlp: dict[str, Any] | None = None,
        alertmanager: int | None = None,
    ) -> None:
        super().__init__("prometheus", folder)
        self.port = free_port()
        config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
        config["global"] = {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": "1s",
        }
        config["rule_files"] = [str(ROOT / "dashboards" / "rules" / "*.yaml")]
        config["otlp"] |= otlp or {}
        config["scrape_configs"] = [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [f"{LOOPBACK}:{port}"], "labels": {"instance": f"demo:{port}"}}
                ],
            }
            for job, port in (targets or {}).items()
        ]
        if alertmanager is not None:
            managers = [{"static_configs": [{"targets": [f"{LOOPBACK}:{alertmanager}"]}]}]
            config["alerting"] = {"alertmanagers": managers}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self.port}"

    def command(self) -> list[str]:
        return [
            f"--config.file={self.folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self.port}",
            "--web.enable-otlp-receiver",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]

    def ready_url(self) -> str:
        return f"{self.url}/-/ready"

    def api(self, path: str, **params: Any) -> Any:
        """Return the data of an API call that must succeed."""
        body = self.client.get(f"{self.url}/api/v1/{path}", params=params).json()
        assert body["status"] == "success", f"{params}: {body.get('error')}"
        return body["data"]

    def vector(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of an instant query."""
        found = self.api("query", query=expr)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def number(self, expr: str) -> float | None:
        """Return the only value of an instant query, or None."""
        found = self.vector(expr)
        assert len(found) <= 1, found
        return found[0][1] if found else None


class Jaeger(Server):
    """Jaeger 2 with its storage in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__("jaeger", folder)
        self.grpc, self._query, self._query_grpc, self._health = (free_port() for _ in range(4))
        config = {
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query", "healthcheckv2"],
                "pipelines": {
                    "traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}
                },
                "telemetry": {"metrics": {"level": "none"}},
            },
            "extensions": {
                "jaeger_query": {
                    "storage": {"traces": "memory"},
                    "http": {"endpoint": f"{LOOPBACK}:{self._query}"},
                    "grpc": {"endpoint": f"{LOOPBACK}:{self._query_grpc}"},
                },
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 200000}}}},
                "healthcheckv2": {
                    "use_v2": True,
                    "http": {"endpoint": f"{LOOPBACK}:{self._health}"},
                },
            },
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"{LOOPBACK}:{self.grpc}"}}}},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
        }
        (folder / "jaeger.yaml").write_text(yaml.safe_dump(config))

    @property
    def endpoint(self) -> str:
        """Where the Collector sends traces: host and port of OTLP over gRPC."""
        return f"{LOOPBACK}:{self.grpc}"

    @property
    def url(self) -> str:
        """Where people and ``explain`` look at traces."""
        return f"http://{LOOPBACK}:{self._query}"

    def command(self) -> list[str]:
        return [f"--config={self.folder / 'jaeger.yaml'}"]

    def ready_url(self) -> str:
        return f"http://{LOOPBACK}:{self._health}/status"

    def spans(self, service: str, limit: int = 100_000, **tags: str) -> list[dict[str, Any]]:
        """Return the spans of the traces that have a span with these tags."""
        params = {"service": service, "limit": str(limit), "lookback": "1h"}
        if tags:
            params["tags"] = json.dumps({key.replace("__", "."): tag for key, tag in tags.items()})
        answer = self.client.get(f"{self.url}/api/traces", params=params).json()
        return [span for trace in answer["data"] or [] for span in trace["spans"]]


def tags(span: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span of Jaeger's."""
    return {tag["key"]: tag["value"] for tag in span["tags"]}


class Alertmanager(Server):
    """Alertmanager that notifies one webhook without waiting."""

    def __init__(self, folder: Path, webhook: str) -> None:
        super().__init__("alertmanager", folder)
        self.port = free_port()
        route = {
            "receiver": "hook",
            "group_by": ["..."],
            "group_wait": "0s",
            "group_interval": "1s",
        }
        receiver = {"name": "hook", "webhook_configs": [{"url": webhook, "send_resolved": True}]}
        config = {"route": route, "receivers": [receiver]}
        (folder / "alertmanager.yaml").write_text(yaml.safe_dump(config))

    def command(self) -> list[str]:
        return [
            f"--config.file={self.folder / 'alertmanager.yaml'}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self.port}",
            "--cluster.listen-address=",
        ]

    def ready_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/-/ready"

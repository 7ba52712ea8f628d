"""The Collector's configurations, builder manifest and compose file are consistent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.source.queries import LMCACHE_JOB, SENT
from otel_kvpolicy import series as servers
from otel_kvpolicy.record import OUTCOMES
from otel_kvpolicy.telemetry import names

FOLDER = Path(__file__).parents[2] / "collector"
CONFIGS = {
    name: yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    for name in ("app", "gb10", "gateway")
}
BUILDER = yaml.safe_load((FOLDER / "builder.yaml").read_text())
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
EVERY = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
KINDS = ("receivers", "processors", "exporters", "connectors", "extensions")

# Module of each component type, from the metadata of the component. Names of both can differ.
MODULES = {
    ("receivers", "otlp"): "go.opentelemetry.io/collector/receiver/otlpreceiver",
    (
        "receivers",
        "prometheus",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver",
    (
        "processors",
        "memory_limiter",
    ): "go.opentelemetry.io/collector/processor/memorylimiterprocessor",
    (
        "processors",
        "attributes",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/processor/attributesprocessor",
    (
        "processors",
        "filter",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/processor/filterprocessor",
    (
        "processors",
        "redaction",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/processor/redactionprocessor",
    (
        "processors",
        "resource",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/processor/resourceprocessor",
    (
        "processors",
        "tail_sampling",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/processor/tailsamplingprocessor",
    ("connectors", "forward"): "go.opentelemetry.io/collector/connector/forwardconnector",
    (
        "connectors",
        "span_metrics",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/connector/spanmetricsconnector",
    ("exporters", "otlp_grpc"): "go.opentelemetry.io/collector/exporter/otlpexporter",
    ("exporters", "otlp_http"): "go.opentelemetry.io/collector/exporter/otlphttpexporter",
    (
        "exporters",
        "load_balancing",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/exporter/loadbalancingexporter",
    (
        "extensions",
        "health_check",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/extension/healthcheckextension",
    (
        "extensions",
        "file_storage",
    ): "github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage",
}

# Deprecated as of the pinned version: components, and fields of the components used here.
DEPRECATED = {
    ("processors", "batch"),
    ("exporters", "otlp"),
    ("exporters", "otlphttp"),
    ("exporters", "prometheusremotewrite"),
    ("exporters", "loadbalancing"),
    ("exporters", "logging"),
    ("connectors", "spanmetrics"),
    ("receivers", "hostmetrics"),
    ("extensions", "memory_ballast"),
}
DEPRECATED_FIELDS = {
    "invert_match",
    "add_metric_suffixes",
    "idle_conn_timeout",
    "dimensions_cache_size",
    "expected_new_traces_per_sec",
}


def kind_of(component: str) -> str:
    return component.split("/", maxsplit=1)[0]


def declared(config: dict[str, Any]) -> set[tuple[str, str]]:
    return {(kind, name) for kind in KINDS for name in config.get(kind, {})}


def used(config: dict[str, Any]) -> set[tuple[str, str]]:
    connectors = set(config.get("connectors", {}))
    found = {("extensions", name) for name in config["service"]["extensions"]}
    for pipeline in config["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            found |= {
                ("connectors" if name in connectors else part, name)
                for name in pipeline.get(part, [])
            }
    return found


def walk(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, node
    children = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, child in children:
        yield from walk(child, (*path, str(key)))


@EVERY
def test_pipelines_use_every_declared_component_and_no_other(config: dict[str, Any]) -> None:
    assert used(config) == declared(config)


@EVERY
def test_connectors_join_pipelines(config: dict[str, Any]) -> None:
    pipelines = config["service"]["pipelines"].values()
    for name in config.get("connectors", {}):
        assert any(name in pipeline["exporters"] for pipeline in pipelines), (
            f"no pipeline exports to {name}"
        )
        assert any(name in pipeline["receivers"] for pipeline in pipelines), (
            f"no pipeline receives from {name}"
        )


@EVERY
def test_no_deprecated_component_or_field_is_used(config: dict[str, Any]) -> None:
    assert not {(kind, kind_of(name)) for kind, name in declared(config)} & DEPRECATED
    assert not {path[-1] for path, _ in walk(config) if path} & DEPRECATED_FIELDS


def test_the_builder_has_the_used_components_and_no_other() -> None:
    wanted = {
        (kind, MODULES[kind, kind_of(name)])
        for config in CONFIGS.values()
        for kind, name in declared(config)
    }
    held = {(kind, entry["gomod"].split(" ")[0]) for kind in KINDS for entry in BUILDER[kind]}
    assert held == wanted


def test_the_builder_pins_one_version() -> None:
    versions = {entry["gomod"].split(" ")[1] for kind in KINDS for entry in BUILDER[kind]}
    (version,) = versions
    text = "".join((FOLDER / f"{name}.yaml").read_text() for name in (*CONFIGS, "builder"))
    tested = re.findall(r"Tested with (v0\.\d+\.\d+)", text)
    assert len(tested) >= len(CONFIGS)
    assert set(tested) == {version}
    providers = {entry["gomod"].split(" ")[1] for entry in BUILDER["providers"]}
    # Stable modules are released along with the others: v1.65.0 with v0.159.0.
    assert providers == {f"v1.{int(version.split('.')[1]) - 94}.0"}
    schemes = set(re.findall(r"\$\{(\w+):", text))
    assert {f"{scheme}provider" for scheme in schemes} <= {
        entry["gomod"].split(" ")[0].rsplit("/", 1)[1] for entry in BUILDER["providers"]
    }


@EVERY
def test_the_memory_limiter_comes_first(config: dict[str, Any]) -> None:
    for name, pipeline in config["service"]["pipelines"].items():
        if not set(pipeline["receivers"]) & {"forward/decided", "forward/sampled"}:
            assert pipeline["processors"][0] == "memory_limiter", name


@EVERY
def test_exporters_queue_on_disk_and_retry_without_end(config: dict[str, Any]) -> None:
    for name, exporter in config["exporters"].items():
        if kind_of(name) == "load_balancing":
            continue
        assert exporter["sending_queue"]["storage"] == "file_storage", name
        assert "batch" in exporter["sending_queue"], name
        assert exporter["retry_on_failure"]["max_elapsed_time"] == "0s", (
            "retried until the queue is full"
        )
    assert config["extensions"]["file_storage"]["create_directory"] is True


@EVERY
def test_nothing_listens_beyond_loopback_by_default(config: dict[str, Any]) -> None:
    listening = [
        value
        for path, value in walk({k: config[k] for k in ("receivers", "extensions")})
        if path and path[-1] == "endpoint"
    ]
    assert listening
    for endpoint in listening:
        assert re.fullmatch(r"(127\.0\.0\.1|\$\{env:OTLP_LISTEN:-127\.0\.0\.1\}):\d+", endpoint)


@EVERY
def test_no_secret_is_in_the_files(config: dict[str, Any]) -> None:
    for path, value in walk(config):
        if path and re.search(r"password|token|secret", path[-1], re.IGNORECASE):
            assert str(value).startswith("${env:")


def test_span_metrics_have_the_labels_that_the_dashboards_query() -> None:
    connector = CONFIGS["app"]["connectors"]["span_metrics"]
    assert (
        tuple(dimension["name"] for dimension in connector["dimensions"]) == servers.SPAN_DIMENSIONS
    )
    assert connector["histogram"]["unit"] == "s"
    assert "namespace" not in connector, "the dashboards use the default, traces.span.metrics"
    assert connector["exemplars"]["enabled"]
    assert connector["add_resource_attributes"], "job comes from the resource"


def test_all_calls_are_counted_before_any_is_dropped() -> None:
    pipelines = CONFIGS["app"]["service"]["pipelines"]
    assert pipelines["traces/decided"]["exporters"] == ["span_metrics"]
    assert pipelines["traces/decided"]["receivers"] == ["forward/decided"]
    assert set(pipelines["traces/in"]["exporters"]) == {"forward/decided", "forward/sampled"}
    samplers = [
        name for name, pipeline in pipelines.items() if "tail_sampling" in pipeline["processors"]
    ]
    assert samplers == ["traces/sampled"]


def test_sampling_keeps_skipped_rejected_and_failed_calls() -> None:
    policies = {
        policy["name"]: policy
        for policy in CONFIGS["app"]["processors"]["tail_sampling"]["policies"]
    }
    skipped = policies["skipped"]["string_attribute"]
    assert (skipped["key"], skipped["values"]) == (names.DECISION, [names.SKIP])
    refused = policies["rejected-or-policy-failed"]["string_attribute"]
    assert refused["key"] == names.HINT_OUTCOME
    assert set(refused["values"]) == {"rejected", "error"} <= set(OUTCOMES)
    assert set(SENT.split("|")) <= set(OUTCOMES)
    assert policies["failed"]["status_code"]["status_codes"] == ["ERROR"]
    assert policies["share-of-the-rest"]["type"] == "probabilistic"
    assert not [p for p in policies.values() if p["type"] == "latency"], (
        "it would bias durations by decision"
    )
    (condition,) = CONFIGS["app"]["processors"]["filter/decided"]["trace_conditions"]
    assert condition == f'span.attributes["{names.DECISION}"] == nil'


def test_redaction_keeps_the_attributes_of_the_policy() -> None:
    patterns = CONFIGS["app"]["processors"]["redaction"]["blocked_key_patterns"]
    written = [attribute.name for attribute in names.ATTRIBUTES]
    written += [
        names.USAGE_INPUT_TOKENS,
        names.USAGE_OUTPUT_TOKENS,
        names.USAGE_CACHE_READ_INPUT_TOKENS,
        names.REQUEST_MODEL,
    ]
    for pattern in patterns:
        assert not [name for name in written if re.search(pattern, name)], pattern
    secret = [
        "gen_ai.input.messages",
        "http.request.header.authorization",
        "llm.api_key",
        "url.query",
        "gen_ai.tool.call.arguments",
    ]
    for name in secret:
        assert any(re.search(pattern, name) for pattern in patterns), name


def test_the_host_name_becomes_the_instance() -> None:
    scrapes = CONFIGS["gb10"]["receivers"]["prometheus"]["config"]["scrape_configs"]
    jobs = {scrape["job_name"]: scrape for scrape in scrapes}
    assert set(jobs) == {"vllm", "lmcache", "node", "gpu"}
    pattern = LMCACHE_JOB.split('"')[1]
    assert [job for job in jobs if re.fullmatch(pattern, job)] == ["lmcache"]
    for scrape in scrapes:
        (relabel,) = scrape["relabel_configs"]
        assert relabel["target_label"] == "instance"
        assert relabel["replacement"].endswith(":$$1"), "the Collector expands a single $"
        (address,) = scrape["static_configs"][0]["targets"]
        port = re.search(r":-(\d+)\}$", address)[1]  # type: ignore[index]
        assert re.fullmatch(relabel["regex"], f"127.0.0.1:{port}")[1] == port  # type: ignore[index]
        assert address.startswith("127.0.0.1:")


def test_spans_are_balanced_by_trace() -> None:
    balancing = CONFIGS["gateway"]["exporters"]["load_balancing"]
    assert balancing["routing_key"] == "traceID"
    assert "endpoint" not in balancing["protocol"]["otlp"]
    assert list(balancing["resolver"]) == ["dns"]
    assert CONFIGS["gateway"]["service"]["pipelines"]["traces"]["exporters"] == ["load_balancing"]


# --- compose --------------------------------------------------------------------------------------
SERVICE_KEYS = {
    "image",
    "ports",
    "environment",
    "volumes",
    "network_mode",
    "depends_on",
    "working_dir",
    "command",
    "restart",
}


@pytest.mark.parametrize("service", COMPOSE["services"].values(), ids=COMPOSE["services"])
def test_a_compose_service_is_pinned_and_listens_on_loopback(service: dict[str, Any]) -> None:
    assert set(service) <= SERVICE_KEYS
    assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", service["image"]), "a pinned tag"
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), "bound to loopback"
    for volume in service["volumes"]:
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
            assert volume.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]
    assert all(isinstance(value, str) for value in service["environment"].values())


def test_compose_takes_the_password_from_the_environment() -> None:
    environment = COMPOSE["services"]["lgtm"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_PASSWORD:?")
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false", (
        "by default, the image logs in anyone as admin"
    )


def test_compose_sets_the_variables_that_the_collector_reads() -> None:
    read = set(re.findall(r"\$\{env:(\w+)", (FOLDER / "app.yaml").read_text()))
    given = set(COMPOSE["services"]["lgtm"]["environment"])
    assert {"OTLP_LISTEN", "QUEUE_DIR"} <= read & given
    assert not {name for name in given if not name.startswith("GF_")} - read


def test_docker_accepts_the_compose_file() -> None:
    """Runs the real client, if it has the plugin."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, check=False).returncode
            == 0
        ):
            break
    else:
        pytest.skip("neither docker compose nor docker-compose is here")
    environment = {**os.environ, "GRAFANA_PASSWORD": "x"}
    done = subprocess.run(
        [*command, "-f", str(FOLDER / "compose.yaml"), "config", "-q"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    del environment["GRAFANA_PASSWORD"]
    assert subprocess.run(
        [*command, "-f", str(FOLDER / "compose.yaml"), "config", "-q"],
        capture_output=True,
        check=False,
        env=environment,
    ).returncode


def test_prometheus_promotes_the_resource_attributes_that_the_dashboards_use() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert {"service.name", "host.name"} <= set(config["otlp"]["promote_resource_attributes"])
    assert {scrape["job_name"] for scrape in config["scrape_configs"]} == {"vllm", "lmcache"}
    (rules,) = config["rule_files"]
    assert f"{Path(rules).parent}:ro" in COMPOSE["services"]["lgtm"]["volumes"][2]


def test_grafana_provisions_the_dashboards_and_links_exemplars_to_tempo() -> None:
    (provider,) = yaml.safe_load((FOLDER / "provisioning" / "dashboards.yaml").read_text())[
        "providers"
    ]
    volumes = COMPOSE["services"]["lgtm"]["volumes"]
    assert any(volume.endswith(f"{provider['options']['path']}:ro") for volume in volumes)
    assert provider["allowUiUpdates"] is False
    sources = {
        source["uid"]: source
        for source in yaml.safe_load((FOLDER / "provisioning" / "datasources.yaml").read_text())[
            "datasources"
        ]
    }
    (exemplars,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert exemplars["name"] == "trace_id"
    assert sources[exemplars["datasourceUid"]]["type"] == "tempo"
    assert sources["prometheus"]["jsonData"]["timeInterval"] == "15s"

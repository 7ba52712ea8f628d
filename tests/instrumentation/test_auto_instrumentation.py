"""``opentelemetry-instrument python app.py``: a program without a line of instrumentation code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.standin import StandIn

pytestmark = pytest.mark.slow

APP = """
from openai import OpenAI
with OpenAI(api_key="key") as client:
    messages = [{"role": "user", "content": "hi"}]
    client.chat.completions.create(model="stand-in", messages=messages, max_tokens=2)
"""


def run(server: StandIn, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    server.requests.clear()
    command = [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        "--logs_exporter",
        "none",
        *options,
        sys.executable,
        "-c",
        APP,
    ]
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "KV_CACHE_"))
    }
    return subprocess.run(
        command,
        env={**clean, "OPENAI_BASE_URL": server.base_url, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def documents(text: str) -> list[Any]:
    """Return the JSON documents that the console exporters print one after the other."""
    decoder, records, position = json.JSONDecoder(), [], 0
    while (start := text.find("{", position)) >= 0:
        document, position = decoder.raw_decode(text, start)
        records.append(document)
    return records


def test_an_uninstrumented_program_gets_spans_metrics_and_the_hint(server: StandIn) -> None:
    done = run(server, "--traces_exporter", "console", "--metrics_exporter", "console")
    assert server.last.body["kv_transfer_params"] == {
        "lmcache.skip_save": True,
        "lmcache.max_offload_tokens": 0,
    }
    records = documents(done.stdout)
    [chat] = [record for record in records if "kvpolicy.decision" in record.get("attributes", {})]
    [http] = [record for record in records if record.get("parent_id") == chat["context"]["span_id"]]
    assert chat["name"] == "chat stand-in"
    assert server.last.headers["traceparent"].split("-")[2] == http["context"][
        "span_id"
    ].removeprefix("0x")
    metrics = {
        metric["name"]
        for record in records
        for resource in record.get("resource_metrics", ())
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    assert metrics >= {
        "kvpolicy.decisions",
        "kvpolicy.prompt.tokens",
        "kvpolicy.cached.tokens",
        "kvpolicy.score",
        "kvpolicy.decision.duration",
    }
    assert "already instrumented" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "hinted", "traced"),
    [
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "kvpolicy"}, False, True),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "httpx,httpx2"}, True, False),
        ({"KV_CACHE_LAYERING": "false"}, False, True),
        ({"KV_CACHE_MODE": "observe"}, False, True),
        ({"OTEL_SDK_DISABLED": "true"}, True, False),
    ],
)
def test_settings_turn_parts_off(
    server: StandIn, environment: dict[str, str], hinted: bool, traced: bool
) -> None:
    run(server, "--traces_exporter", "none", "--metrics_exporter", "none", **environment)
    assert ("kv_transfer_params" in server.last.body) is hinted
    assert ("traceparent" in server.last.headers) is traced


def test_instrumenting_imports_no_optional_dependency() -> None:
    code = """
import sys, openai, opentelemetry.instrumentation.httpx
before = set(sys.modules)
import otel_kvpolicy
otel_kvpolicy.KVPolicyInstrumentor().instrument()
print(*(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "otel_kvpolicy" in loaded
    assert not loaded & {
        "pydantic_ai",
        "starlette",
        "uvicorn",
        "rich",
        "click",
        "numpy",
        "prometheus_client",
        "redis",
    }

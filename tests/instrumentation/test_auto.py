"""``opentelemetry-instrument python app.py``: no line of code, in a child process, against a server on loopback."""

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
    client.chat.completions.create(model="stand-in", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
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
    """The JSON documents that the console exporters print one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (start := text.find("{", at)) >= 0:
        document, at = decoder.raw_decode(text, start)
        found.append(document)
    return found


def test_spans_metrics_and_the_hint(server: StandIn) -> None:
    done = run(server, "--traces_exporter", "console", "--metrics_exporter", "console")
    assert server.last.body["kv_transfer_params"] == {
        "lmcache.skip_save": True,
        "lmcache.max_offload_tokens": 0,
    }
    found = documents(done.stdout)
    [chat] = [each for each in found if "kvpolicy.decision" in each.get("attributes", {})]
    [http] = [each for each in found if each.get("parent_id") == chat["context"]["span_id"]]
    assert chat["name"] == "chat stand-in"
    assert server.last.headers["traceparent"].split("-")[2] == http["context"][
        "span_id"
    ].removeprefix("0x")
    metrics = {
        metric["name"]
        for each in found
        for resource in each.get("resource_metrics", ())
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
def test_what_users_switch_off_is_off(
    server: StandIn, environment: dict[str, str], hinted: bool, traced: bool
) -> None:
    run(server, "--traces_exporter", "none", "--metrics_exporter", "none", **environment)
    assert ("kv_transfer_params" in server.last.body) is hinted
    assert ("traceparent" in server.last.headers) is traced


def test_starting_imports_no_more_than_it_needs() -> None:
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

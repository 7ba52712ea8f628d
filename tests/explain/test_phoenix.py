"""Spans of an instrumented process, sent over OTLP to a real Phoenix and read back from it.

``KVPOLICY_PHOENIX`` names the Phoenix: a URL of a running one, or the program to start. Default:
the ``phoenix`` program of this Python environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

import otel_kvpolicy
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import decision_log
from tests import needs

from ..dashboards.live import free_port, until
from .asking import ask, note_values
from .conftest import HI, MANUAL, REPLY, RULES, process


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    named = os.environ.get("KVPOLICY_PHOENIX") or str(Path(sys.executable).with_name("phoenix"))
    if named.startswith(("http://", "https://")):
        yield named.rstrip("/")
        return
    if not Path(named).exists():
        needs.missing("Phoenix", "make phoenix, or set KVPOLICY_PHOENIX", optional=True)
    folder, port = tmp_path_factory.mktemp("phoenix"), free_port()
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    url = f"http://127.0.0.1:{port}"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [named, "serve"], env=os.environ | settings, stdout=log, stderr=log
        ) as server,
    ):
        try:
            until(lambda: server.poll() is not None or answers(url), "Phoenix is up")
            assert server.returncode is None, (folder / "log").read_text()
            yield url
        finally:
            server.terminate()


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/healthz").status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture
def project(phoenix: str) -> Iterator[str]:
    """Name of a project that only this test uses; with a slash, as service names may have."""
    name = f"kvpolicy/{uuid.uuid4()}"
    yield name
    for found in httpx2.get(f"{phoenix}/v1/projects", params={"limit": 1000}).json()["data"]:
        if found["name"] == name:
            httpx2.delete(f"{phoenix}/v1/projects/{found['id']}").raise_for_status()


def comparable(call: dict[str, Any]) -> dict[str, Any]:
    """Return the call without its duration and search scope, which differ from a log's."""
    return {
        **call,
        "seconds": None,
        "afterwards": [note for note in call["afterwards"] if note["code"] != "no_later_calls"],
    }


def test_phoenix_and_the_decision_log_explain_calls_alike(
    phoenix: str, project: str, server: StandIn, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    otel_kvpolicy.configure(decision_log=str(log))
    with process(OTLPSpanExporter(f"{phoenix}/v1/traces"), server, project) as shop:
        with shop.tracer.start_as_current_span("handle order"):
            shop.chat(RULES, HI)
            shop.chat(MANUAL, HI)
            shop.chat(HI, REPLY, HI)
            shop.chat(HI, extra_body={"kv_transfer_params": {"lmcache.skip_save": False}})
        shop.chat(RULES, HI)
    assert decision_log.flush(20)
    recent = ["--from", phoenix, "--service", project, "--json"]
    until(
        lambda: (found := ask(*recent)).code == 0 and len(found.calls) == 5,
        "Phoenix has stored all spans",
    )

    logged = ask("--from", log, "--json").calls
    assert [comparable(call) for call in ask(*recent).calls] == [
        comparable(call) for call in logged
    ]
    assert [call["verdict"] for call in ask(*recent, "--skipped").calls] == ["skip", "skip"]
    assert len(ask(*recent, "--last", 2).calls) == 2
    assert len(ask(*recent, "--since", logged[1]["started"]).calls) == 2

    order = logged[-1]["trace_id"]
    explained = ask(order, "--from", phoenix, "--json").calls
    assert [comparable(call) for call in explained] == [
        comparable(call) for call in ask(order, "--from", log, "--json").calls
    ]
    assert note_values(explained[0]["afterwards"], "later_calls")["calls"] == 1
    stored = explained[1]["span_id"]
    (call,) = ask(order, "--from", phoenix, "--span", stored, "--json").calls
    assert (call["span_id"], call["verdict"]) == (stored, "store")
    assert ask("feed", "--from", phoenix).code == 3

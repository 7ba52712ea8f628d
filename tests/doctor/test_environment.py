"""What the doctor says about the process: instrumentor, openai, exporters, settings, target."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .asking import NOWHERE, found_at


class Found(NamedTuple):
    """Result of one check."""

    state: str
    code: str
    text: str


def check(name: str, base_url: str = NOWHERE, **environment: str) -> Found:
    """Run the doctor and return one check; no server is needed for it."""
    checks: list[dict[str, Any]] = found_at("--base-url", base_url, **environment)["checks"]
    (only,) = [one for one in checks if one.pop("name") == name]
    return Found(**only)


def _distribution(folder: Path, name: str, version: str) -> None:
    """Write metadata that hides the installed distribution: the first one on the path counts."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _without(monkeypatch: pytest.MonkeyPatch, distribution: str) -> None:
    """Make a distribution look as if it were not installed."""
    real = metadata.version

    def version(name: str) -> str:
        if name == distribution:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr("importlib.metadata.version", version)


def test_all_checks_are_ok_in_a_good_environment() -> None:
    checks = found_at("--base-url", NOWHERE)["checks"]
    assert [(one["name"], one["state"], one["code"]) for one in checks] == [
        ("instrumentor", "ok", "enabled"),
        ("openai", "ok", "supported"),
        ("traces", "ok", "exported"),
        ("metrics", "ok", "exported"),
        ("settings", "ok", "defaults"),
        ("policy", "ok", "enforce"),
        ("target", "ok", "allowed"),
    ]


# --- instrumentor and openai ----------------------------------------------------------------------


@pytest.mark.parametrize("value", ["kvpolicy", "httpx, kvpolicy", "*"])
def test_a_disabled_instrumentor_fails(value: str) -> None:
    found = check("instrumentor", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=value)
    assert (found.state, found.code) == ("fail", "disabled")
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS" in found.text


def test_other_instrumentors_may_be_disabled() -> None:
    found = check("instrumentor", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="httpx,openai")
    assert (found.state, found.code) == ("ok", "enabled")


def test_a_disabled_sdk_fails() -> None:
    found = check("instrumentor", OTEL_SDK_DISABLED="true")
    assert (found.state, found.code) == ("fail", "sdk_disabled")
    assert "OTEL_SDK_DISABLED" in found.text


def test_an_instrumentor_that_is_not_installed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _distribution(tmp_path, "otel_kvpolicy", "0.0.1")
    monkeypatch.syspath_prepend(tmp_path)
    found = check("instrumentor")
    assert (found.state, found.code) == ("fail", "not_installed")


def test_without_opentelemetry_distro_the_application_must_call_the_instrumentor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _without(monkeypatch, "opentelemetry-distro")
    found = check("instrumentor")
    assert (found.state, found.code) == ("warn", "no_distro")
    assert "KVPolicyInstrumentor().instrument()" in found.text
    assert check("traces")[:2] == ("warn", "set_in_code")


def test_the_version_of_openai_is_reported() -> None:
    assert check("openai") == ("ok", "supported", metadata.version("openai"))


def test_an_openai_that_is_too_old_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _distribution(tmp_path, "openai", "0.28.0")
    monkeypatch.syspath_prepend(tmp_path)
    found = check("openai")
    assert (found.state, found.code) == ("fail", "unsupported")
    assert "0.28.0" in found.text


# --- exporters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_the_exporter_and_its_endpoint_are_reported(signal: str) -> None:
    found = check(
        signal,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    assert (found.state, found.code) == ("ok", "exported")
    assert "otlp_proto_http" in found.text
    assert "http://collector:4318" in found.text


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_a_signal_that_is_not_exported_is_a_warning(signal: str) -> None:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    found = check(signal, **{variable: "none"})
    assert (found.state, found.code) == ("warn", "none")
    assert variable in found.text


def test_an_exporter_that_is_not_installed_fails() -> None:
    found = check("traces", OTEL_TRACES_EXPORTER="console,carrier_pigeon")
    assert (found.state, found.code) == ("fail", "missing_exporter")
    assert "carrier_pigeon" in found.text.partition("(")[0]
    assert "console" not in found.text.partition("(")[0]
    assert "OTEL_TRACES_EXPORTER" in found.text


def test_traces_and_metrics_have_their_own_exporters_and_endpoints() -> None:
    environment = {
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://prometheus:9090/api/v1/otlp",
    }
    traces, metrics = check("traces", **environment), check("metrics", **environment)
    assert (traces.code, metrics.code) == ("exported", "exported")
    assert "console" in traces.text
    assert "prometheus" not in traces.text
    assert "otlp_proto_grpc" in metrics.text
    assert "http://prometheus:9090/api/v1/otlp" in metrics.text


# --- settings, policy, target ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KV_CACHE_MIN_PREFIX_TOKENS", "many"),
        ("KV_CACHE_MODE", "sometimes"),
        ("KV_CACHE_TARGETS", "http://["),
        ("KV_CACHE_HINT_KEYS", "all"),
    ],
)
def test_an_unreadable_setting_fails_with_its_name_and_value(name: str, value: str) -> None:
    found = check("settings", **{name: value})
    assert (found.state, found.code) == ("fail", "problems")
    assert name in found.text
    assert repr(value) in found.text


def test_all_unreadable_and_unknown_settings_are_named() -> None:
    found = check(
        "settings",
        KV_CACHE_MIN_PREFIX_TOKENS="many",
        KV_CACHE_MIN_CONTEXT_TOKENS="-1",
        KV_CACHE_MODUS="observe",
    )
    assert (found.state, found.code) == ("fail", "problems")
    assert "KV_CACHE_MIN_PREFIX_TOKENS" in found.text
    assert "KV_CACHE_MIN_CONTEXT_TOKENS" in found.text
    assert "KV_CACHE_MODUS" in found.text


def test_a_settings_file_is_checked_too(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("KV_CACHE_MIN_PREFIX_TOKENS = 7\n")
    bad.write_text("KV_CACHE_MIN_PREFIX_TOKENS = \n")
    found = check("settings", KV_CACHE_CONFIG_FILE=str(good))
    assert found == ("ok", "changed", "KV_CACHE_MIN_PREFIX_TOKENS=7")
    found = check("settings", KV_CACHE_CONFIG_FILE=str(bad))
    assert (found.state, found.code) == ("fail", "problems")
    assert str(bad) in found.text


def test_settings_that_differ_from_the_defaults_are_listed() -> None:
    found = check("settings", KV_CACHE_MIN_PREFIX_TOKENS="512")
    assert found == ("ok", "changed", "KV_CACHE_MIN_PREFIX_TOKENS=512")


def test_a_redis_url_without_the_redis_client_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "redis")
    found = check("settings", KV_CACHE_REDIS_URL="redis://host/0")
    assert (found.state, found.code) == ("fail", "problems")
    assert "pip install 'otel-kvpolicy[redis]'" in found.text
    assert check("settings").state == "ok"


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    found = check("settings", KV_CACHE_REDIS_URL="redis://:canary@host/0")
    assert (found.code, "KV_CACHE_REDIS_URL" in found.text) == ("changed", True)
    assert "canary" not in found.text
    file = tmp_path / "kv.toml"
    file.write_text('KV_CACHE_REDIS_URL = ["redis://:canary@host/0"]\n')
    found = check("settings", KV_CACHE_CONFIG_FILE=str(file))
    assert (found.code, "KV_CACHE_REDIS_URL" in found.text) == ("problems", True)
    assert "canary" not in found.text


@pytest.mark.parametrize(
    ("environment", "state", "code", "named"),
    [
        ({"KV_CACHE_LAYERING": "false"}, "warn", "off", "KV_CACHE_LAYERING"),
        ({"KV_CACHE_MODE": "observe"}, "warn", "observe", "KV_CACHE_MODE"),
        ({"KV_CACHE_HINT_KEYS": "skip_save"}, "ok", "enforce", "skip_save"),
    ],
)
def test_what_the_policy_sends_is_reported(
    environment: dict[str, str], state: str, code: str, named: str
) -> None:
    found = check("policy", **environment)
    assert (found.state, found.code) == (state, code)
    assert named in found.text


def test_a_server_excluded_from_the_targets_fails() -> None:
    found = check("target", KV_CACHE_TARGETS="gb10.local")
    assert (found.state, found.code) == ("fail", "excluded")
    assert "127.0.0.1:9" in found.text
    found = check("target", KV_CACHE_TARGETS="127.0.0.1:9")
    assert (found.state, found.code) == ("ok", "allowed")

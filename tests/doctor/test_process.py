"""What the doctor says of the process side: instrumentor, openai, exporters, settings, target."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.cli.doctor import environment as process

from .asking import NOWHERE, found_at


def check(name: str, base_url: str = NOWHERE, **environment: str) -> tuple[str, str]:
    """State and text of a check; no server is needed for it."""
    checks: list[dict[str, Any]] = found_at("--base-url", base_url, **environment)["checks"]
    return next((each["state"], each["text"]) for each in checks if each["name"] == name)


def _distribution(folder: Path, name: str, version: str) -> None:
    """Metadata that hides the installed distribution of that name: the first on the path counts."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_every_check_is_there_and_well_in_a_good_environment() -> None:
    checks = found_at("--base-url", NOWHERE)["checks"]
    assert [each["name"] for each in checks] == [
        "instrumentor",
        "openai",
        "traces",
        "metrics",
        "settings",
        "policy",
        "target",
    ]
    assert {each["state"] for each in checks} == {"ok"}


# --- instrumentor and openai ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["kvpolicy", "httpx, kvpolicy", "*"])
def test_an_instrumentor_that_is_switched_off_fails(value: str) -> None:
    state, text = check("instrumentor", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=value)
    assert state == "fail"
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS" in text


def test_others_may_be_switched_off() -> None:
    assert check("instrumentor", OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="httpx,openai")[0] == "ok"


def test_a_switched_off_sdk_fails() -> None:
    state, text = check("instrumentor", OTEL_SDK_DISABLED="true")
    assert (state, "OTEL_SDK_DISABLED" in text) == ("fail", True)


def test_an_instrumentor_that_is_not_installed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _distribution(tmp_path, "otel_kvpolicy", "0.0.1")
    monkeypatch.syspath_prepend(tmp_path)
    state, text = check("instrumentor")
    assert (state, "entry point is not installed" in text) == ("fail", True)


def _without(monkeypatch: pytest.MonkeyPatch, distribution: str) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == distribution:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(process.metadata, "version", version)


def test_without_the_launcher_it_is_to_be_called_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "opentelemetry-distro")
    state, text = check("instrumentor")
    assert (state, "KVPolicyInstrumentor().instrument()" in text) == ("warn", True)
    assert check("traces")[0] == "warn"


def test_the_version_of_openai_is_told() -> None:
    assert check("openai") == ("ok", metadata.version("openai"))


def test_an_openai_that_is_too_old_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _distribution(tmp_path, "openai", "0.28.0")
    monkeypatch.syspath_prepend(tmp_path)
    state, text = check("openai")
    assert (state, "0.28.0" in text, "does nothing" in text) == ("fail", True, True)


# --- exporters ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_the_exporter_and_its_endpoint_are_told(signal: str) -> None:
    told = check(
        signal,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    assert told == ("ok", "otlp_proto_http to http://collector:4318")


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_no_exporter_is_a_warning(signal: str) -> None:
    state, text = check(signal, **{f"OTEL_{signal.upper()}_EXPORTER": "none"})
    assert (state, "go nowhere" in text) == ("warn", True)


def test_an_exporter_that_is_not_installed_fails() -> None:
    state, text = check("traces", OTEL_TRACES_EXPORTER="console,carrier_pigeon")
    assert state == "fail"
    assert (
        text
        == "exporter carrier_pigeon is not installed (OTEL_TRACES_EXPORTER=console,carrier_pigeon)"
    )


def test_the_exporters_of_the_two_signals_are_apart() -> None:
    environment = {
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://prometheus:9090/api/v1/otlp",
    }
    assert check("traces", **environment)[1].startswith("console")
    assert check("metrics", **environment) == (
        "ok",
        "otlp_proto_grpc to http://prometheus:9090/api/v1/otlp",
    )


# --- settings, policy, target ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KV_CACHE_MIN_PREFIX_TOKENS", "many"),
        ("KV_CACHE_MODE", "sometimes"),
        ("KV_CACHE_TARGETS", "http://["),
        ("KV_CACHE_HINT_KEYS", "all"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(name: str, value: str) -> None:
    state, text = check("settings", **{name: value})
    assert state == "fail"
    assert f"{name}: cannot read {value!r}" in text


def test_several_such_settings_are_all_named_and_so_is_one_that_is_none() -> None:
    state, text = check(
        "settings",
        KV_CACHE_MIN_PREFIX_TOKENS="many",
        KV_CACHE_MIN_CONTEXT_TOKENS="-1",
        KV_CACHE_MODUS="observe",
    )
    assert state == "fail"
    assert all(
        name in text
        for name in (
            "KV_CACHE_MIN_PREFIX_TOKENS",
            "KV_CACHE_MIN_CONTEXT_TOKENS",
            "KV_CACHE_MODUS is no setting",
        )
    )


def test_a_settings_file_is_read_too(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("KV_CACHE_MIN_PREFIX_TOKENS = 7\n")
    bad.write_text("KV_CACHE_MIN_PREFIX_TOKENS = \n")
    assert check("settings", KV_CACHE_CONFIG_FILE=str(good)) == (
        "ok",
        "KV_CACHE_MIN_PREFIX_TOKENS=7",
    )
    state, text = check("settings", KV_CACHE_CONFIG_FILE=str(bad))
    assert (state, str(bad) in text) == ("fail", True)


def test_settings_that_differ_from_the_defaults_are_told() -> None:
    assert check("settings", KV_CACHE_MIN_PREFIX_TOKENS="512") == (
        "ok",
        "KV_CACHE_MIN_PREFIX_TOKENS=512",
    )


def test_a_fleet_without_the_client_of_redis_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "redis")
    state, text = check("settings", KV_CACHE_REDIS_URL="redis://host/0")
    assert (state, "pip install 'otel-kvpolicy[redis]'" in text) == ("fail", True)
    assert check("settings")[0] == "ok"


def test_no_password_is_told(tmp_path: Path) -> None:
    assert check("settings", KV_CACHE_REDIS_URL="redis://:canary@host/0") == (
        "ok",
        "KV_CACHE_REDIS_URL=***",
    )
    file = tmp_path / "kv.toml"
    file.write_text('KV_CACHE_REDIS_URL = ["redis://:canary@host/0"]\n')
    state, text = check("settings", KV_CACHE_CONFIG_FILE=str(file))
    assert (state, "KV_CACHE_REDIS_URL: cannot read" in text, "canary" in text) == (
        "fail",
        True,
        False,
    )


@pytest.mark.parametrize(
    ("environment", "state", "words"),
    [
        ({"KV_CACHE_LAYERING": "false"}, "warn", "nothing is decided or sent"),
        ({"KV_CACHE_MODE": "observe"}, "warn", "nothing is sent"),
        ({"KV_CACHE_HINT_KEYS": "skip_save"}, "ok", "sends skip_save"),
    ],
)
def test_what_the_policy_sends_is_told(environment: dict[str, str], state: str, words: str) -> None:
    told = check("policy", **environment)
    assert (told[0], words in told[1]) == (state, True)


def test_a_server_that_is_kept_from_the_hint_fails() -> None:
    state, text = check("target", KV_CACHE_TARGETS="gb10.local")
    assert (state, "keeps the hint from 127.0.0.1:9" in text) == ("fail", True)
    assert check("target", KV_CACHE_TARGETS="127.0.0.1:9")[0] == "ok"

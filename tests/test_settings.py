"""Settings: read live, with clear precedence, and one warning for each unreadable value."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import otel_kvpolicy
from otel_kvpolicy import configure, decide
from otel_kvpolicy.settings import Settings, env_name


def current() -> Any:
    """Return the settings in force. Typed Any, since the thresholds table adds fields."""
    return otel_kvpolicy.settings.current()


def test_defaults() -> None:
    settings = current()
    assert (
        settings.layering,
        settings.min_prefix_tokens,
        settings.min_context_tokens,
        settings.min_history_turns,
    ) == (True, 1024, 2048, 1)
    assert (settings.chars_per_token, settings.mode, str(settings.targets), settings.hint_keys) == (
        4.0,
        "enforce",
        "auto",
        "both",
    )


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decide(user_prompt="x" * 400).skip_save
    monkeypatch.setenv("KV_CACHE_MIN_CONTEXT_TOKENS", "100")
    assert decide(user_prompt="x" * 400).reasons == ["large_fixed_context(100>=100t)"]
    monkeypatch.setenv("KV_CACHE_CHARS_PER_TOKEN", "8")
    assert decide(user_prompt="x" * 400).skip_save
    monkeypatch.setenv("KV_CACHE_LAYERING", "false")
    assert not decide(user_prompt="x" * 400).enabled
    monkeypatch.delenv("KV_CACHE_LAYERING")
    assert decide(user_prompt="x" * 400).enabled


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("false", False),
        ("0", False),
        ("off", False),
        ("No", False),
        ("true", True),
        ("1", True),
        ("yes", True),
        ("on", False),
        ("maybe", False),
        ("", True),
    ],
)
def test_layering_accepts_the_same_words_as_the_original_policy(
    monkeypatch: pytest.MonkeyPatch, text: str, on: bool
) -> None:
    monkeypatch.setenv("KV_CACHE_LAYERING", text)
    assert current().layering is on


@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("KV_CACHE_MIN_PREFIX_TOKENS", "abc", "1024"),
        ("KV_CACHE_MIN_PREFIX_TOKENS", "-1", "1024"),
        ("KV_CACHE_MIN_CONTEXT_TOKENS", "1.5", "2048"),
        ("KV_CACHE_MIN_HISTORY_TURNS", "many", "1"),
        ("KV_CACHE_CHARS_PER_TOKEN", "0", "1.0"),
        ("KV_CACHE_CHARS_PER_TOKEN", "0.5", "1.0"),
        ("KV_CACHE_CHARS_PER_TOKEN", "nan", "4.0"),
        ("KV_CACHE_CHARS_PER_TOKEN", "inf", "4.0"),
        ("KV_CACHE_CHARS_PER_TOKEN", "-4", "1.0"),
        ("KV_CACHE_LAYERING", "maybe", "False"),
        ("KV_CACHE_LAYERING", "on", "False"),
        ("KV_CACHE_MIN_TOOL_TOKENS", "-1", "None"),
        ("KV_CACHE_MODE", "dry-run", "enforce"),
        ("KV_CACHE_TARGETS", "http://host/path", "auto"),
        ("KV_CACHE_HINT_KEYS", "all", "both"),
    ],
)
def test_an_unreadable_value_is_reported_once_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    used: str,
) -> None:
    monkeypatch.setenv(name, value)
    for other in ("1", "2"):
        monkeypatch.setenv("KV_CACHE_UNRELATED", other)
        assert str(getattr(current(), name.removeprefix("KV_CACHE_").lower())) == used
        configure()  # forces a new reading
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert name in record.message
    assert repr(value) in record.message
    assert f"using {used} instead" in record.message


def test_an_unreadable_value_does_not_affect_other_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KV_CACHE_MIN_PREFIX_TOKENS", "abc")
    monkeypatch.setenv("KV_CACHE_MIN_CONTEXT_TOKENS", "77")
    monkeypatch.setenv("KV_CACHE_MODE", "OBSERVE")
    assert (current().min_prefix_tokens, current().min_context_tokens, current().mode) == (
        1024,
        77,
        "observe",
    )


def test_code_overrides_the_environment_which_overrides_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kv.toml"
    file.write_text(
        "KV_CACHE_MIN_PREFIX_TOKENS = 11\n"
        "KV_CACHE_MIN_CONTEXT_TOKENS = 12\n"
        'KV_CACHE_MODE = "observe"\n'
    )
    monkeypatch.setenv("KV_CACHE_CONFIG_FILE", str(file))
    monkeypatch.setenv("KV_CACHE_MIN_CONTEXT_TOKENS", "22")
    configure(mode="enforce")
    assert (current().min_prefix_tokens, current().min_context_tokens, current().mode) == (
        11,
        22,
        "enforce",
    )
    configure(mode=None)
    assert current().mode == "observe"


def test_an_unreadable_value_falls_through_to_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kv.toml"
    file.write_text("KV_CACHE_MIN_PREFIX_TOKENS = 11\n")
    monkeypatch.setenv("KV_CACHE_CONFIG_FILE", str(file))
    monkeypatch.setenv("KV_CACHE_MIN_PREFIX_TOKENS", "many")
    assert current().min_prefix_tokens == 11


def test_an_edited_file_is_read_again_and_a_broken_edit_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr("otel_kvpolicy.settings.time.monotonic", lambda: clock[0])
    file = tmp_path / "kv.toml"
    file.write_text("KV_CACHE_MIN_PREFIX_TOKENS = 11\n")
    monkeypatch.setenv("KV_CACHE_CONFIG_FILE", str(file))
    assert current().min_prefix_tokens == 11
    file.write_text("KV_CACHE_MIN_PREFIX_TOKENS = 222\n")
    assert current().min_prefix_tokens == 11, "the file is checked only once a second"
    clock[0] += 2
    assert current().min_prefix_tokens == 222
    file.write_text("KV_CACHE_MIN_PREFIX_TOKENS = = 3\n")
    clock[0] += 2
    assert current().min_prefix_tokens == 222
    assert "KV_CACHE_CONFIG_FILE" in caplog.text


@pytest.mark.parametrize(
    "content",
    [None, "not TOML [", 'KV_CACHE_COLOR = "red"\n', "KV_CACHE_MIN_PREFIX_TOKENS = []\n"],
)
def test_a_bad_file_is_reported_once_and_ignored(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: str | None,
) -> None:
    file = tmp_path / "kv.toml"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("KV_CACHE_CONFIG_FILE", str(file))
    assert current().min_prefix_tokens == 1024
    assert len(caplog.records) == 1


REDIS = "redis://:canary@127.0.0.1:6379/0"


@pytest.mark.parametrize(
    "in_file", [f'["{REDIS}"]', f'{{ url = "{REDIS}" }}', "['canary']", f'[["{REDIS}"]]']
)
@pytest.mark.parametrize(("in_environment", "used"), [("", "None"), (REDIS, "***")])
def test_a_password_in_a_value_that_cannot_be_read_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    in_file: str,
    in_environment: str,
    used: str,
) -> None:
    monkeypatch.setenv("KV_CACHE_REDIS_URL", in_environment)
    file = tmp_path / "kv.toml"
    file.write_text(f"KV_CACHE_REDIS_URL = {in_file}\n")
    monkeypatch.setenv("KV_CACHE_CONFIG_FILE", str(file))
    configure(redis_url=b"redis://:canary\xff@host/0")
    assert current().redis_url == (in_environment or None)
    warned = [record.message for record in caplog.records]
    assert len(warned) == (1 if in_environment else 2)
    assert {message.partition(" which")[0] for message in warned} == {
        "KV_CACHE_REDIS_URL: cannot read its value,"
    }
    assert all(message.endswith(f"using {used} instead") for message in warned)
    assert "canary" not in caplog.text


def test_no_password_is_quoted_from_a_file_that_is_not_toml(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kv.toml"
    file.write_text(f"KV_CACHE_REDIS_URL = {REDIS}\n")
    monkeypatch.setenv("KV_CACHE_CONFIG_FILE", str(file))
    assert current().redis_url is None
    assert "KV_CACHE_CONFIG_FILE" in caplog.text
    assert "canary" not in caplog.text


def test_a_password_in_an_invalid_target_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KV_CACHE_TARGETS", "http://user:canary@gb10.local:8000")
    assert str(current().targets) == "auto"
    assert "KV_CACHE_TARGETS" in caplog.text
    assert "canary" not in caplog.text


def test_printed_settings_show_no_password() -> None:
    settings = configure(redis_url=REDIS)
    assert settings.redis_url == REDIS
    assert "canary" not in f"{settings} {settings!r}"


def test_an_unknown_setting_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="color"):
        configure(color="red")


@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            field: st.text(max_size=12).filter(lambda text: "\0" not in text)
            for field in Settings.model_fields
        },
    )
)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_environment_gives_valid_settings(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str]
) -> None:
    with monkeypatch.context() as patch:
        for field, value in values.items():
            try:
                patch.setenv(env_name(field), value)
            except UnicodeEncodeError:  # the environment cannot hold this value
                continue
        settings = current()
        assert settings.min_prefix_tokens >= 0
        assert settings.chars_per_token > 0
        assert decide(user_prompt="hi").reasons

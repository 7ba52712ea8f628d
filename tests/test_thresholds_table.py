"""One entry in the THRESHOLDS table is enough: every consumer of the table knows each threshold."""

from __future__ import annotations

from typing import Any

import pytest

from otel_kvpolicy import KVCacheLayeringPolicy, configure
from otel_kvpolicy.cli.explain import explain
from otel_kvpolicy.cli.explain.dry_run import dry_run
from otel_kvpolicy.cli.replay.simulator import parse_rule
from otel_kvpolicy.policy import REASONS, THRESHOLDS, Threshold
from otel_kvpolicy.settings import current, env_name
from otel_kvpolicy.telemetry import names

OFF = {each.setting: 10**9 for each in THRESHOLDS if each.default is not None}
"""Thresholds that no call of these tests reaches."""

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s" * 400},
        {"role": "user", "content": "u" * 400},
        {"role": "assistant", "content": "a" * 400},
        {"role": "user", "content": "u" * 400},
    ],
    "tools": [{"type": "function", "function": {"name": "look_up", "description": "d" * 400}}],
}
"""A request in which every signal but the retrieved context is above zero."""


@pytest.fixture(params=[each for each in THRESHOLDS if each.meaning], ids=lambda each: each.setting)
def threshold(request: pytest.FixtureRequest) -> Threshold:
    each: Threshold = request.param
    return each


def test_its_setting_is_read_live(threshold: Threshold, monkeypatch: pytest.MonkeyPatch) -> None:
    assert current().thresholds[threshold.setting] == threshold.default
    monkeypatch.setenv(env_name(threshold.setting), "7")
    assert current().thresholds[threshold.setting] == 7
    assert getattr(KVCacheLayeringPolicy(), threshold.setting) == 7


def test_it_decides_and_is_recorded(threshold: Threshold) -> None:
    configure(**{**OFF, threshold.setting: 1})
    span, _ = dry_run(BODY, current(), None)
    assert span.texts(names.REASONS) == [threshold.reason]
    assert threshold.reason in REASONS
    attribute = f"kvpolicy.thresholds.{threshold.key}"
    assert span.attributes[attribute] == 1
    assert attribute in {each.name for each in names.ATTRIBUTES}


def test_explain_measures_it_and_says_what_would_change_it(threshold: Threshold) -> None:
    configure(**{**OFF, threshold.setting: 1})
    explanation = explain(dry_run(BODY, current(), None).span)
    [measure] = [each for each in explanation.reading.measures if each.met]
    assert (measure.setting, measure.unit) == (env_name(threshold.setting), threshold.unit)
    assert "other_rule" not in {note.code for note in explanation.caveats}
    changes = {change.name: change.value for change in explanation.reading.changes}
    assert changes[env_name(threshold.setting)] == measure.value + 1


def test_replay_takes_it(threshold: Threshold) -> None:
    rule = parse_rule(f"thresholds:{threshold.replay}=5")
    assert rule.settings == {threshold.replay: 5}

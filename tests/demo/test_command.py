"""The demo as a user runs it: two stand-ins, two instrumented processes, numbers that agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from otel_kvpolicy.cli import main
from tests.golden import assert_golden


def talk(path: Path) -> Path:
    """Write four one-offs of 600 to 603 tokens, and a chat of three turns of 600 tokens each.

    No two conversations begin alike.
    """
    lines: list[Any] = [
        [
            {"role": "user", "content": f"{index} " + "one-off " * 299},
            {"role": "assistant", "content": "."},
        ]
        for index in range(4)
    ]
    chat: list[Any] = []
    for turn in range(3):
        chat += [
            {"role": "user", "content": f"turn {turn} " + "chatting " * 266},
            {"role": "assistant", "content": "Go on."},
        ]
    path.write_text("\n".join(map(json.dumps, [*lines, chat])))
    return path


CLI: Any = main
"""The command group; its type depends on whether click is installed."""


def demo(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(CLI, ["demo", *arguments])


def numbers_of(*arguments: str) -> dict[str, Any]:
    result = demo(*arguments, "--json")
    assert result.exit_code == 0, result.output
    numbers: dict[str, Any] = json.loads(result.stdout)
    return numbers


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return numbers_of("--input", str(talk(tmp_path_factory.mktemp("demo") / "talk.jsonl")))


def test_every_call_has_a_decision_on_both_sides(numbers: dict[str, Any]) -> None:
    for side in ("policy", "store_everything"):
        assert numbers[side]["calls"] == numbers[side]["decisions_in_spans"] == 7


def test_decisions_have_reasons_and_hint_outcomes(numbers: dict[str, Any]) -> None:
    policy, everything = numbers["policy"]["decisions"], numbers["store_everything"]["decisions"]
    assert {(row["decision"], *row["reasons"]): row["calls"] for row in policy} == {
        ("skip", "one_off_short_prompt"): 5,
        ("store", "multi_turn_conversation"): 2,
    }
    assert {row["hint_outcome"] for row in policy} == {"applied"}
    assert [(row["decision"], row["hint_outcome"]) for row in everything] == [("store", "disabled")]


def test_ratios_and_totals_follow_from_the_decisions(numbers: dict[str, Any]) -> None:
    side = numbers["policy"]
    skipped = sum(row["prompt_tokens"] for row in side["decisions"] if row["decision"] == "skip")
    cached = sum(row["cached_tokens"] for row in side["decisions"])
    assert side["skip_ratio_calls"] == 5 / 7
    assert side["skip_ratio_tokens"] == skipped / side["prompt_tokens"]
    assert sum(row["prompt_tokens"] for row in side["decisions"]) == side["prompt_tokens"]
    assert cached == side["vllm_cached_tokens"] + side["lmcache_cached_tokens"]
    assert numbers["store_everything"]["skip_ratio_calls"] == 0


def test_both_servers_get_the_same_prompts_and_the_policy_writes_fewer_chunks(
    numbers: dict[str, Any],
) -> None:
    policy, everything = numbers["policy"], numbers["store_everything"]
    assert policy["prompt_tokens"] == everything["prompt_tokens"]
    # The one-offs of two chunks each are not written. The chat is: its first turn with its second.
    assert everything["chunks_written"] - policy["chunks_written"] == 4 * 2
    assert policy["chunks_written"] == 7


def test_the_in_process_connector_gives_the_same_decisions_and_writes(
    numbers: dict[str, Any], tmp_path: Path
) -> None:
    in_process = numbers_of(
        "--input", str(talk(tmp_path / "talk.jsonl")), "--lmcache-mode", "in_process"
    )
    for side in ("policy", "store_everything"):
        assert in_process[side]["decisions"] == numbers[side]["decisions"]
        assert in_process[side]["chunks_written"] == numbers[side]["chunks_written"]
        assert in_process[side]["lmcache_hit_ratio"] == numbers[side]["lmcache_hit_ratio"]
        assert in_process[side]["l1_hit_ratio"] is None  # its metrics do not tell L1 from L2


def test_the_report_for_people(tmp_path: Path) -> None:
    result = demo("--input", str(talk(tmp_path / "talk.jsonl")))
    assert result.exit_code == 0, result.output
    assert_golden(result.stdout, Path(__file__).parent / "golden" / "report.txt")


def test_the_users_policy_settings_apply_but_not_their_exporters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "users.jsonl"
    monkeypatch.setenv("KV_CACHE_MIN_CONTEXT_TOKENS", "500")
    monkeypatch.setenv("KV_CACHE_DECISION_LOG", str(log))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier_pigeon")
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "kvpolicy")
    policy = numbers_of("--input", str(talk(tmp_path / "talk.jsonl")))["policy"]
    assert policy["skipped_calls"] == 0
    assert any("large_fixed_context" in row["reasons"] for row in policy["decisions"])
    assert not log.exists()


def _error(result: Result) -> str:
    assert result.exit_code == 1
    assert result.stdout == ""
    lines: list[str] = result.stderr.splitlines()
    assert lines[-1].startswith("Error: ")
    assert "Traceback" not in result.output
    return lines[-1]


def test_a_bad_file_ends_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("[1]")
    assert "bad.jsonl, line 1" in _error(demo("--input", str(path)))


def test_a_failed_application_is_reported_with_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    too_long = [{"role": "user", "content": "x" * 600_000}, {"role": "assistant", "content": "."}]
    path.write_text(json.dumps(too_long))
    assert "maximum context length" in _error(demo("--input", str(path)))  # as the server put it


def test_a_missing_launcher_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    error = _error(demo("--input", str(talk(tmp_path / "talk.jsonl"))))
    assert "pip install 'otel-kvpolicy[demo]'" in error


@pytest.mark.parametrize(
    "option", [("--l1-mib", "0"), ("--users", "0"), ("--lmcache-mode", "none")]
)
def test_impossible_sizes_are_rejected(option: tuple[str, str]) -> None:
    assert demo(*option).exit_code == 2

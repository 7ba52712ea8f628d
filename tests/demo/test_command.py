"""The demo as a user runs it: two stand-ins, two instrumented processes, numbers that agree with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from otel_kvpolicy.cli import main
from otel_kvpolicy.cli.demo import runner


def talk(path: Path) -> Path:
    """Four one-offs of 600 to 603 tokens, and three turns of a chat that grows by 600 tokens each; no two begin alike."""
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


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["demo", *arguments])


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = talk(tmp_path_factory.mktemp("demo") / "talk.jsonl")
    result = demo("--input", str(path), "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_every_call_left_a_decision_on_both_sides(numbers: dict[str, Any]) -> None:
    for side in ("policy", "store_everything"):
        assert numbers[side]["calls"] == numbers[side]["decisions_in_spans"] == 7


def test_decisions_come_with_reasons(numbers: dict[str, Any]) -> None:
    told = {
        (row["decision"], *row["reasons"]): row["calls"] for row in numbers["policy"]["decisions"]
    }
    assert told == {
        ("skip", "one_off_short_prompt"): 5,
        ("store", "multi_turn_conversation"): 2,
    }
    assert {row["hint_outcome"] for row in numbers["policy"]["decisions"]} == {"applied"}
    assert {
        (row["decision"], row["hint_outcome"]) for row in numbers["store_everything"]["decisions"]
    } == {("store", "disabled")}


def test_ratios_follow_from_the_decisions(numbers: dict[str, Any]) -> None:
    side = numbers["policy"]
    skipped = sum(row["prompt_tokens"] for row in side["decisions"] if row["decision"] == "skip")
    assert side["skip_ratio_calls"] == 5 / 7
    assert side["skip_ratio_tokens"] == skipped / side["prompt_tokens"]
    assert sum(row["prompt_tokens"] for row in side["decisions"]) == side["prompt_tokens"]
    assert (
        sum(row["cached_tokens"] for row in side["decisions"])
        == side["vllm_cached_tokens"] + side["lmcache_cached_tokens"]
    )
    assert numbers["store_everything"]["skip_ratio_calls"] == 0


def test_the_same_prompts_reach_both_servers_and_fewer_chunks_are_written(
    numbers: dict[str, Any],
) -> None:
    policy, everything = numbers["policy"], numbers["store_everything"]
    assert policy["prompt_tokens"] == everything["prompt_tokens"]
    # One-offs of two chunks each are not written; the chat's chunks are, those of its first turn with its second.
    assert everything["chunks_written"] - policy["chunks_written"] == 4 * 2
    assert policy["chunks_written"] == 7


def test_the_tables_show_the_same_run(tmp_path: Path) -> None:
    result = demo(
        "--input",
        str(talk(tmp_path / "talk.jsonl")),
        "--lmcache-mode",
        "in_process",
        "--users",
        "2",
    )
    assert result.exit_code == 0, result.output
    for text in (
        "one_off_short_prompt",
        "multi_turn_conversation",
        "71.4%",
        "store everything",
        "chunks written to LMCache",
    ):
        assert text in result.stdout
    assert "left a decision" not in result.stdout


def test_settings_of_the_user_reach_the_application_but_not_its_exporters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_CACHE_MIN_CONTEXT_TOKENS", "500")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    result = demo("--input", str(talk(tmp_path / "talk.jsonl")))
    assert "The rule skipped nothing here" in result.stdout
    assert "large_fixed_context" in result.stdout


def test_a_bad_file_ends_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("[1]")
    result = demo("--input", str(path))
    assert result.exit_code == 1
    assert result.stderr == "Error: bad.jsonl, line 1: message 1 is not an object with a role\n"


def test_an_application_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    path = talk(tmp_path / "talk.jsonl")
    too_long = [{"role": "user", "content": "x" * 600_000}, {"role": "assistant", "content": "."}]
    path.write_text(json.dumps(too_long))
    result = demo("--input", str(path))
    assert result.exit_code == 1
    assert "the application ended with 1 after 0 calls" in result.stderr
    assert "maximum context length" in result.stderr


def test_a_missing_executable_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.sys, "executable", str(tmp_path / "python"))
    result = demo("--input", str(talk(tmp_path / "talk.jsonl")))
    assert result.exit_code == 1
    assert "pip install 'otel-kvpolicy[demo]'" in result.stderr


@pytest.mark.parametrize(
    "option", [("--l1-mib", "0"), ("--users", "0"), ("--lmcache-mode", "none")]
)
def test_sizes_that_make_no_sense_are_refused(option: tuple[str, str]) -> None:
    assert demo(*option).exit_code == 2

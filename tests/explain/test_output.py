"""What a terminal of any width shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .asking import ask
from .conftest import Recorded
from .shapes import span_id, trace_id

widths = pytest.mark.parametrize("columns", [80, 120, 200])


@widths
def test_several_calls_are_a_table_first_and_then_each(recorded: Recorded, columns: int) -> None:
    answer = ask(recorded.order, "--from", recorded.log, columns=columns)
    table, *accounts = answer.out.split("─" * columns)
    spans = recorded.of(recorded.order)
    header, *rows = table.strip().splitlines()
    assert header.split()[:5] == ["began", "verdict", "total", "cached", "span"]
    assert [row.split()[4] for row in rows] == [span_id(span) for span in spans]
    assert [row.split()[1] for row in rows] == ["skip", "store", "store"]
    assert [row.split()[5] for row in rows] == [
        "one_off_short_prompt",
        "long_shared_prefix",
        "multi_turn_conversation",
    ]
    assert [account.split()[0] for account in accounts] == ["SKIPPED", "STORED", "STORED"]


def test_one_call_has_no_table(recorded: Recorded) -> None:
    for arguments in (
        [recorded.mail],
        ["--span", span_id(recorded.of(recorded.mail)[0])],
        [recorded.order, "--skipped"],
    ):
        assert ask(*arguments, "--from", recorded.log).out.startswith("SKIPPED  chat stand-in\n")


@widths
def test_a_list_of_recent_calls_is_a_table_alone_whose_ids_can_be_asked_for(
    recorded: Recorded, columns: int
) -> None:
    answer = ask("--last", 20, "--from", recorded.log, columns=columns)
    header, *rows = answer.out.rstrip().splitlines()
    assert header.split()[:5] == ["began", "verdict", "total", "cached", "trace"]
    assert [row.split()[4] for row in rows] == [
        trace_id(span) for span in reversed(recorded.decided)
    ]
    assert ("service" in header) is (columns > 80)


@widths
@pytest.mark.parametrize("long", [False, True], ids=["real", "long-names"])
def test_no_line_is_wider_than_the_terminal(
    recorded: Recorded, tmp_path: Path, columns: int, long: bool
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(
            f"{json.dumps(stretched(json.loads(line), 100 if long else 1))}\n"
            for line in recorded.log.open()
        )
    )
    for arguments in ([recorded.order], ["--last", "20"]):
        answer = ask(*arguments, "--from", log, columns=columns)
        assert answer.code == 0
        assert max(map(len, answer.out.splitlines())) <= columns


def stretched(entry: dict[str, Any], times: int) -> dict[str, Any]:
    entry["service"] *= times
    entry["attributes"]["gen_ai.request.model"] *= times
    return entry


def test_names_are_shown_as_they_are(recorded: Recorded, tmp_path: Path) -> None:
    """A name in brackets is not taken for a style, nor one in colons for an emoji."""
    log, name = tmp_path / "log.jsonl", "[/x] :smile: [red]"
    entry = json.loads(recorded.log.read_text().splitlines()[0])
    entry |= {"service": name, "name": name}
    entry["attributes"] |= {
        "gen_ai.request.model": name,
        "kvpolicy.reasons": [name],
        "kvpolicy.own": name,
    }
    log.write_text(json.dumps(entry) + "\n")
    for arguments in ([entry["trace_id"]], []):
        answer = ask(*arguments, "--from", log)
        assert answer.code == 0
        assert answer.out.count(name) >= 3


def test_attributes_that_no_rule_accounts_for_are_told(recorded: Recorded, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    entry = json.loads(recorded.log.read_text().splitlines()[0])
    entry["attributes"] |= {
        "kvpolicy.rule": "nightly",
        "kvpolicy.lifetime": 90,
        "kvpolicy.agent.calls": 3,
    }
    log.write_text(json.dumps(entry) + "\n")
    (call,) = ask(entry["trace_id"], "--from", log, "--json").calls
    assert call["changes"] == []
    assert [(fact["name"], fact["value"]) for fact in call["facts"]] == [
        ("kvpolicy.agent.calls", 3),
        ("kvpolicy.lifetime", 90),
    ]
    out = " ".join(ask(entry["trace_id"], "--from", log).out.split())
    assert (
        "also recorded agent.calls 3 (on pydantic-ai's agent span: chat calls decided in this run"
        in out
    )
    assert "lifetime 90" in out


def test_json_is_all_that_is_printed(recorded: Recorded) -> None:
    answer = ask(recorded.order, "--from", recorded.log, "--json", columns=20)
    document = json.loads(answer.out)
    assert document["source"] == str(recorded.log)
    assert document["calls"][0].keys() >= {
        "trace_id",
        "span_id",
        "verdict",
        "measures",
        "changes",
        "afterwards",
        "caveats",
        "usage",
    }
    assert document["calls"][0]["measures"][0] == {
        "name": "prefix",
        "value": 812,
        "threshold": 1024,
        "unit": "tokens",
        "setting": "KV_CACHE_MIN_PREFIX_TOKENS",
        "distance": -212,
        "met": False,
        "text": "812 of 1024 tokens: 212 short",
    }

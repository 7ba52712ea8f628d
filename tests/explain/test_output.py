"""The output for people at several terminal widths, and the JSON output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_kvpolicy.telemetry import names

from .asking import ask, measure_keys
from .conftest import Recorded
from .shapes import span_id, trace_id

widths = pytest.mark.parametrize("columns", [80, 120, 200])


@widths
def test_several_calls_are_printed_as_a_table_and_then_in_detail(
    recorded: Recorded, columns: int
) -> None:
    answer = ask(recorded.order, "--from", recorded.log, columns=columns)
    table, *details = answer.out.split("─" * columns)
    spans = recorded.of(recorded.order)
    header, *rows = table.strip().splitlines()
    assert header.split()[:5] == ["started", "verdict", "total", "cached", "span"]
    assert [row.split()[4] for row in rows] == [span_id(span) for span in spans]
    assert [row.split()[1] for row in rows] == ["skip", "store", "store"]
    assert [row.split()[5] for row in rows] == [
        "one_off_short_prompt",
        "long_shared_prefix",
        "multi_turn_conversation",
    ]
    assert [detail.split()[0] for detail in details] == ["SKIPPED", "STORED", "STORED"]


def test_a_single_call_is_printed_without_a_table(recorded: Recorded) -> None:
    for arguments in (
        [recorded.mail],
        ["--span", span_id(recorded.of(recorded.mail)[0])],
        [recorded.order, "--skipped"],
    ):
        assert ask(*arguments, "--from", recorded.log).out.startswith("SKIPPED  chat stand-in\n")


@widths
def test_a_listing_is_a_table_of_whole_trace_ids(recorded: Recorded, columns: int) -> None:
    answer = ask("--last", 20, "--from", recorded.log, columns=columns)
    header, *rows = answer.out.rstrip().splitlines()
    assert header.split()[:5] == ["started", "verdict", "total", "cached", "trace"]
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


def test_names_are_printed_unchanged(recorded: Recorded, tmp_path: Path) -> None:
    """Brackets are not taken for styles, nor colons for emoji."""
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


def test_attributes_of_an_unknown_rule_are_listed_with_their_meaning(
    recorded: Recorded, tmp_path: Path
) -> None:
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
    meanings = {attribute.name: attribute.meaning for attribute in names.ATTRIBUTES}
    assert [fact["meaning"] for fact in call["facts"]] == [meanings[names.AGENT_CALLS], ""]
    out = " ".join(ask(entry["trace_id"], "--from", log).out.split())
    assert f"agent.calls 3 ({meanings[names.AGENT_CALLS]})" in out
    assert "lifetime 90" in out


def test_the_json_output_is_one_document(recorded: Recorded) -> None:
    answer = ask(recorded.order, "--from", recorded.log, "--json", columns=20)
    document = json.loads(answer.out)
    assert (document["source"], document["notes"], document["error"]) == (
        str(recorded.log),
        [],
        None,
    )
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
    measure = document["calls"][0]["measures"][0]
    assert measure_keys(document["calls"][0])[0] == (812, 1024, -212, False)
    assert (measure["unit"], measure["setting"]) == ("tokens", "KV_CACHE_MIN_PREFIX_TOKENS")

"""``otel-kvpolicy replay`` as its users run it."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from otel_kvpolicy.cli import main
from otel_kvpolicy.cli.replay.simulator import comparison

from .traces import MOONCAKE, mooncake_line, real, write_lines


def replay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], env={"COLUMNS": "80"})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two conversations that go on in turn, and calls that never return."""
    lines: list[dict[str, Any]] = []
    for at in range(40):
        talk = 1000 * (at % 2)
        lines += [
            mooncake_line([0, *range(talk + 1, talk + 3 + at // 2)], 30 * at),
            mooncake_line([0, 10_000 + at, 20_000 + at], 30 * at + 9),
        ]
    return write_lines(tmp_path / "trace.jsonl", lines)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_table_for_each_size_a_row_for_each_rule(trace: Path) -> None:
    result = replay(trace, "--l1", "10,60", "--l1", "20")
    assert result.exit_code == 0, result.output
    assert not result.stderr  # a progress bar is for terminals
    assert "Mooncake: 80 requests" in result.stdout
    assert re.findall(r"L1 (\d+) chunks", result.stdout) == ["10", "60", "20"]
    for rule in ("always", "never", "thresholds", "adaptive", "turns", "oracle", "belady"):
        assert len(re.findall(rf"^ {rule} ", result.stdout, re.MULTILINE)) == 3
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout


def test_eighty_columns_hold_all_tiers_and_settings(trace: Path) -> None:
    result = replay(
        trace,
        "--l1",
        "40",
        "--l2",
        "80",
        "--gpu",
        "10",
        "--rule",
        "thresholds:prefix=512,context=off,turns=2",
    )
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout
    assert all(name in result.stdout for name in ("gpu %", "L1 %", "L2 %", "to L2", "context=off,"))


def test_sizes_are_shares_of_the_trace_by_default(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert replay(trace, "--rule", "always", "--out", out).exit_code == 0
    facts = json.loads(out.read_text())
    sizes = [row["l1_chunks"] for row in facts["results"]]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == facts["distinct_chunks"]
    assert [row["hit_ratio"] for row in facts["results"]] == sorted(
        row["hit_ratio"] for row in facts["results"]
    )


def test_csv_and_json_say_the_same(trace: Path, tmp_path: Path) -> None:
    table, facts = tmp_path / "out.csv", tmp_path / "out.json"
    result = replay(
        trace,
        "--l1",
        "30",
        "--l2",
        "60",
        "--rule",
        "always",
        "--rule",
        "never",
        "--out",
        table,
        "--out",
        facts,
    )
    assert result.exit_code == 0, result.output
    read = json.loads(facts.read_text())
    assert (read["source"], read["formats"], read["requests"], read["chunk_tokens"]) == (
        "trace.jsonl",
        ["Mooncake"],
        80,
        512,
    )
    assert [{name: str(value) for name, value in row.items()} for row in read["results"]] == rows(
        table
    )
    always, never = read["results"]
    assert always["hit_ratio"] == pytest.approx(always["l1_hit_ratio"] + always["l2_hit_ratio"])
    assert (
        never["hit_ratio"],
        never["chunks_written"],
        never["skipped_calls_ratio"],
        never["skipped_tokens_ratio"],
    ) == (0, 0, 1, 1)
    assert (
        always["chunks_written"] + always["chunks_promoted"] - always["l1_evictions"] == 30
    )  # what is held in the end
    assert always["l2_chunks_written"] - always["l2_evictions"] == 60


def test_bytes_by_model_and_by_hand(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert (
        replay(
            trace, "--l1", "1GiB", "--model", "llama-3.1-8b", "--rule", "always", "--out", out
        ).exit_code
        == 0
    )
    assert rows(out)[0]["l1_chunks"] == "16"
    assert (
        replay(
            trace, "--l1", "1GiB", "--kv-bytes-per-token", "65536", "--rule", "always", "--out", out
        ).exit_code
        == 0
    )
    assert rows(out)[0]["l1_chunks"] == "32"


def test_warm_up(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    result = replay(trace, "--l1", "1000", "--rule", "always", "--warm-up", "0.5", "--out", out)
    assert "the first 40 uncounted" in " ".join(result.stdout.split())
    cold = tmp_path / "cold.csv"
    replay(trace, "--l1", "1000", "--rule", "always", "--out", cold)
    assert rows(out)[0]["requests"] == "40"
    assert float(rows(out)[0]["hit_ratio"]) > float(rows(cold)[0]["hit_ratio"])


def test_the_sweep_finds_thresholds_that_are_as_good_as_it_says(
    trace: Path, tmp_path: Path
) -> None:
    out, again = tmp_path / "best.csv", tmp_path / "again.csv"
    result = replay(trace, "--l1", "20,40", "--sweep", "--out", out)
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"^ +\d+ +(?:hits|writes)", result.stdout, re.MULTILINE)) == 4
    found = rows(out)
    assert (
        replay(
            trace,
            "--l1",
            "20,40",
            *(part for row in found for part in ("--rule", row["rule"])),
            "--out",
            again,
        ).exit_code
        == 0
    )
    assert rows(again) == found
    replay(trace, "--l1", "20,40", "--rule", "thresholds", "--rule", "turns", "--out", again)
    for size in ("20", "40"):
        best = max(float(row["hit_ratio"]) for row in found if row["l1_chunks"] == size)
        assert best >= max(
            float(row["hit_ratio"]) for row in rows(again) if row["l1_chunks"] == size
        )


def test_processes_find_what_one_finds(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    assert replay(trace, "--jobs", "1", "--out", one).exit_code == 0
    monkeypatch.setattr(comparison, "_WORTH_PROCESSES", 0)
    assert replay(trace, "--jobs", "2", "--out", two).exit_code == 0
    assert one.read_text() == two.read_text()


class Page(HTMLParser):
    """What a browser would take from a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or ""
            for name, value in attrs
            if name in {"src", "href", "xlink:href", "srcset", "action", "data"}
        ]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


CANARY = "<script>alert(1)</script>&$x^{"


def test_the_report_asks_nothing_of_any_server_and_escapes_every_name(tmp_path: Path) -> None:
    lines = [
        mooncake_line([at, at + 1], at, turns=at % 3, **{"class": CANARY if at % 2 else "agent"})
        for at in range(30)
    ]
    folder = tmp_path / "a<img src=x onerror=alert(1)>"
    folder.mkdir()
    trace = write_lines(folder / "b<b>&.jsonl", lines)
    out = tmp_path / "report.html"
    result = replay(trace, "--out", out)
    assert result.exit_code == 0, result.output
    page = Page(out.read_text())
    assert "script" not in page.tags
    assert not {"img", "b", "link", "iframe", "object"}.intersection(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert page.tags.count("svg") == 3
    text = "".join(page.texts)
    assert "b<b>&.jsonl" in text
    assert CANARY in text
    assert "@import" not in out.read_text()
    assert not re.search(r"url\((?!#)", out.read_text())


def test_the_report_shows_what_the_table_shows(trace: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "report.html", tmp_path / "out.csv"
    assert replay(trace, "--l1", "10,20,30", "--out", out, "--out", table).exit_code == 0
    texts = Page(out.read_text()).texts
    for row in rows(table):
        assert f"{int(row['chunks_written']):,}" in texts
        assert f"{float(row['hit_ratio']):.4f}" in texts
    assert {"l1 chunks", "chunks written", "dead writes", "skipped calls ratio"} <= {*texts}
    assert out.stat().st_size < 300_000
    again = tmp_path / "again.html"
    replay(trace, "--l1", "10,20,30", "--out", again)
    assert again.read_text() == out.read_text()


def test_a_report_of_rules_that_judge_no_call(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert replay(trace, "--rule", "always", "--rule", "belady", "--out", out).exit_code == 0
    assert Page(out.read_text()).tags.count("svg") == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--l1", "many"], "'many' is no size"),
        (["--l1", "1GiB"], "give --model or --kv-bytes-per-token"),
        (["--model", "qwen3-8b", "--kv-bytes-per-token", "9"], "give one of them"),
        (["--rule", "lfu"], "no rule 'lfu'"),
        (["--rule", "turns:x=1"], "no setting 'x'"),
        (["--out", "report.pdf"], "ends in none of"),
        (["--clients", "0"], "--clients"),
        (["--warm-up", "1"], "--warm-up"),
    ],
)
def test_wrong_usage_ends_with_2(trace: Path, arguments: list[str], problem: str) -> None:
    result = replay(trace, *arguments)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


def test_no_trace_ends_with_2(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for path, problem in (
        (empty, "it is empty"),
        (tmp_path / "missing", "no such file"),
        (tmp_path, "empty.jsonl is no trace"),
    ):
        result = replay(path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert problem in result.stderr
        assert "Traceback" not in result.stderr


def test_broken_lines_are_named_on_standard_error(trace: Path) -> None:
    trace.write_text(trace.read_text() + "{broken\n")
    result = replay(trace, "--rule", "always")
    assert result.exit_code == 0
    assert "1 broken line passed over" in result.stderr
    assert "trace.jsonl:81: no JSON" in result.stderr


def test_a_report_that_cannot_be_written_is_said(trace: Path, tmp_path: Path) -> None:
    result = replay(trace, "--out", tmp_path / "missing" / "r.csv")
    assert result.exit_code == 1
    assert "cannot write" in result.stderr


def test_without_the_extra_one_line_says_what_to_install(trace: Path) -> None:
    script = "import sys; sys.modules['numpy'] = None; from otel_kvpolicy.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "replay", str(trace)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "Error: replay needs numpy: pip install 'otel-kvpolicy[replay]'\n"


def test_real_traffic_from_the_shell(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = [
        sys.executable,
        "-m",
        "otel_kvpolicy.cli",
        "replay",
        str(real(MOONCAKE)),
        "--l1",
        "2500,5000,10000,20000,50000,200000",
    ]
    done = subprocess.run(
        [*command, "--jobs", "2", "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = {
        (row["rule"], row["l1_chunks"]): (
            round(100 * float(row["hit_ratio"]), 2),
            int(row["chunks_written"]),
        )
        for row in rows(out)
    }
    assert written["always", "5000"] == (12.09, 242_298)
    assert written["thresholds", "5000"] == (12.11, 240_921)
    assert written["turns", "50000"] == (23.19, 67_142)
    assert written["belady", "2500"] == (28.25, 47_867)
    assert len(written) == 6 * 7

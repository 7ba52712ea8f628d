"""The command ``otel-kvpolicy replay``."""

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

from .full_traces import MOONCAKE, full_trace_path
from .traces import MOONCAKE_EXCERPT, mooncake_line, write_lines

CLI: Any = main
"""The command group; its type depends on whether click is installed."""


def replay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(CLI, ["replay", *map(str, arguments)], env={"COLUMNS": "80"})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two conversations whose calls alternate, with calls between them that never return."""
    lines: list[dict[str, Any]] = []
    for i in range(40):
        conversation = 1000 * (i % 2)
        lines += [
            mooncake_line([0, *range(conversation + 1, conversation + 3 + i // 2)], 30 * i),
            mooncake_line([0, 10_000 + i, 20_000 + i], 30 * i + 9),
        ]
    return write_lines(tmp_path / "trace.jsonl", lines)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_it_prints_one_table_per_size_with_one_row_per_rule(trace: Path) -> None:
    result = replay(trace, "--l1", "10,60", "--l1", "20")
    assert result.exit_code == 0, result.output
    assert not result.stderr  # no progress bar, because this is not a terminal
    assert "Mooncake: 80 requests" in result.stdout
    assert re.findall(r"L1 (\d+) chunks", result.stdout) == ["10", "60", "20"]
    for rule in ("always", "never", "thresholds", "adaptive", "turns", "oracle", "belady"):
        assert len(re.findall(rf"^ {rule} ", result.stdout, re.MULTILINE)) == 3
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout


def test_the_tables_fit_in_80_columns(trace: Path) -> None:
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


def test_the_default_sizes_go_up_to_all_chunks_of_the_trace(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert replay(trace, "--rule", "always", "--out", out).exit_code == 0
    facts = json.loads(out.read_text())
    sizes = [row["l1_chunks"] for row in facts["results"]]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == facts["distinct_chunks"]
    assert [row["hit_ratio"] for row in facts["results"]] == sorted(
        row["hit_ratio"] for row in facts["results"]
    )


def test_csv_and_json_have_the_same_results(trace: Path, tmp_path: Path) -> None:
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
    # Both tiers are full in the end.
    assert always["chunks_written"] + always["chunks_promoted"] - always["l1_evictions"] == 30
    assert always["l2_chunks_written"] - always["l2_evictions"] == 60


def test_sizes_in_bytes_use_the_model_or_the_given_kv_bytes(trace: Path, tmp_path: Path) -> None:
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


def test_warm_up_requests_do_not_count(trace: Path, tmp_path: Path) -> None:
    warm, cold, facts = tmp_path / "warm.csv", tmp_path / "cold.csv", tmp_path / "warm.json"
    arguments = (trace, "--l1", "1000", "--rule", "always")
    assert replay(*arguments, "--warm-up", "0.5", "--out", warm, "--out", facts).exit_code == 0
    assert replay(*arguments, "--out", cold).exit_code == 0
    assert json.loads(facts.read_text())["requests_uncounted"] == 40
    assert rows(warm)[0]["requests"] == "40"
    assert float(rows(warm)[0]["hit_ratio"]) > float(rows(cold)[0]["hit_ratio"])


def test_the_sweep_finds_thresholds_at_least_as_good_as_the_fixed_rules(
    trace: Path, tmp_path: Path
) -> None:
    out, again = tmp_path / "best.csv", tmp_path / "again.csv"
    result = replay(trace, "--l1", "20,40", "--sweep", "--out", out)
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"^ +\d+ +(?:hits|writes)", result.stdout, re.MULTILINE)) == 4
    best = rows(out)
    rules = [part for row in best for part in ("--rule", row["rule"])]
    assert replay(trace, "--l1", "20,40", *rules, "--out", again).exit_code == 0
    assert rows(again) == best
    replay(trace, "--l1", "20,40", "--rule", "thresholds", "--rule", "turns", "--out", again)
    for size in ("20", "40"):
        best_ratio = max(float(row["hit_ratio"]) for row in best if row["l1_chunks"] == size)
        assert best_ratio >= max(
            float(row["hit_ratio"]) for row in rows(again) if row["l1_chunks"] == size
        )


def test_several_processes_find_the_same_as_one(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    assert replay(trace, "--jobs", "1", "--out", one).exit_code == 0
    monkeypatch.setattr(comparison, "_MIN_REQUESTS_FOR_PROCESSES", 0)
    assert replay(trace, "--jobs", "2", "--out", two).exit_code == 0
    assert one.read_text() == two.read_text()


class Page(HTMLParser):
    """The tags, links and texts in an HTML page."""

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


def test_the_report_loads_nothing_and_escapes_every_name(tmp_path: Path) -> None:
    lines = [
        mooncake_line([i, i + 1], i, turns=i % 3, **{"class": CANARY if i % 2 else "agent"})
        for i in range(30)
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


def test_the_report_has_the_figures_of_the_csv_file(trace: Path, tmp_path: Path) -> None:
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


def test_a_report_without_rules_that_skip_calls_has_two_plots(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert replay(trace, "--rule", "always", "--rule", "belady", "--out", out).exit_code == 0
    assert Page(out.read_text()).tags.count("svg") == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--l1", "many"], ["'many'"]),
        (["--l1", "1GiB"], ["--model", "--kv-bytes-per-token"]),
        (
            ["--model", "qwen3-8b", "--kv-bytes-per-token", "9"],
            ["--model", "--kv-bytes-per-token"],
        ),
        (["--rule", "lfu"], ["--rule", "'lfu'"]),
        (["--rule", "turns:x=1"], ["--rule", "turns", "'x'"]),
        (["--out", "report.pdf"], ["--out", "'report.pdf'", ".html"]),
        (["--clients", "0"], ["--clients"]),
        (["--warm-up", "1"], ["--warm-up"]),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_culprit(
    trace: Path, arguments: list[str], named: list[str]
) -> None:
    result = replay(trace, *arguments)
    assert result.exit_code == 2
    assert all(name in " ".join(result.stderr.split()) for name in named)


def test_an_unsupported_input_exits_with_2_and_names_the_file(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for path, named in (
        (empty, "empty.jsonl"),
        (tmp_path / "missing", "missing"),
        (tmp_path, "empty.jsonl"),
    ):
        result = replay(path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert named in result.stderr
        assert "Traceback" not in result.stderr


def test_broken_lines_are_listed_on_standard_error(trace: Path) -> None:
    trace.write_text(trace.read_text() + "{broken\n")
    result = replay(trace, "--rule", "always")
    assert result.exit_code == 0
    assert "1 broken line" in result.stderr
    assert "trace.jsonl:81: " in result.stderr


def test_a_file_that_cannot_be_written_exits_with_1(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "r.csv"
    result = replay(trace, "--out", path)
    assert result.exit_code == 1
    assert str(path) in result.stderr


def test_a_missing_extra_gets_one_line_with_the_install_command(trace: Path) -> None:
    script = "import sys; sys.modules['numpy'] = None; from otel_kvpolicy.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "replay", str(trace)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "Error: replay needs numpy: pip install 'otel-kvpolicy[replay]'\n"


def from_the_shell(trace: Path, sizes: str, out: Path) -> dict[tuple[str, str], tuple[float, int]]:
    """Run the command in a process. Return hit rate in % and chunks written, by rule and size."""
    command = [sys.executable, "-m", "otel_kvpolicy.cli", "replay", str(trace), "--l1", sizes]
    done = subprocess.run(
        [*command, "--jobs", "2", "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {
        (row["rule"], row["l1_chunks"]): (
            round(100 * float(row["hit_ratio"]), 2),
            int(row["chunks_written"]),
        )
        for row in rows(out)
    }


def test_an_excerpt_of_real_traffic_from_the_shell(tmp_path: Path) -> None:
    figures = from_the_shell(MOONCAKE_EXCERPT, "589,2356", tmp_path / "out.csv")
    assert figures["always", "589"] == (3.58, 10_550)
    assert figures["thresholds", "2356"] == (3.80, 10_467)
    assert figures["belady", "589"] == (9.90, 816)
    assert len(figures) == 2 * 7


@pytest.mark.bars
def test_an_hour_of_real_traffic_from_the_shell(tmp_path: Path) -> None:
    sizes = "2500,5000,10000,20000,50000,200000"
    figures = from_the_shell(full_trace_path(MOONCAKE), sizes, tmp_path / "out.csv")
    assert figures["always", "5000"] == (12.09, 242_298)
    assert figures["thresholds", "5000"] == (12.11, 240_921)
    assert figures["turns", "50000"] == (23.19, 67_142)
    assert figures["belady", "2500"] == (28.25, 47_867)
    assert len(figures) == 6 * 7

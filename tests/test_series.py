"""``series.py`` is the only place that spells the metric names of other programs."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_kvpolicy import series

ROOT = Path(__file__).parents[1]
SUFFIXES = ("", "_bucket", "_sum", "_count", "_created")

FOREIGN = re.compile(
    r"(?<![\w:])(?:"
    r"vllm:[a-z]\w*|lmcache:[a-z]\w*|lmcache_(?:mp|blend)[_:][a-z]\w*|DCGM_\w+"
    r"|node_(?:memory|pressure|disk|network|filesystem|cpu|load|vmstat|hwmon)\w*"
    r"|nvidia_(?:smi|gpu)_\w+|epistemic_graph_\w+|traces_span_metrics_\w+"
    r")"
)
"""A metric name of another program, inside a string."""

PROGRAM_NAMES = {"vllm:", "lmcache:", "lmcache_mp", "lmcache_mp:", "lmcache_mp_"}
"""Prefixes without a name; each is a constant in ``series.py``."""

NEVER_QUERIED = {"DCGM_FI_DEV_FB"}
"""Names for which a test asserts that no query has them."""


def _python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    found = [ROOT / name for name in listed] or [
        path
        for folder in ("otel_kvpolicy", "tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return [path for path in found if path.is_file()]


def _is_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the string literals of a file, including parts of f-strings, but no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if isinstance(node.value, str):
            yield node.lineno, node.value


def _named(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and metric name for each foreign metric name that a file spells."""
    for line, text in _strings(path):
        if text in PROGRAM_NAMES:
            yield line, text
        for match in FOREIGN.finditer(text):
            if not text[match.end() :].startswith("."):  # a file name, such as *_0.5.6.prom
                yield line, match[0]


def test_no_other_module_spells_a_foreign_metric_name() -> None:
    spelled = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in _python_files()
        if path != ROOT / "otel_kvpolicy" / "series.py" and not _is_test(path)
        for line, name in _named(path)
    ]
    assert spelled == []


def test_a_foreign_metric_name_in_a_test_is_defined_in_series() -> None:
    """Tests may spell names as a check on ``series.py``, but only names that it defines."""
    known = {f"{one.name}{suffix}" for one in series.EVERY for suffix in SUFFIXES}
    unknown = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in _python_files()
        if _is_test(path) and path != Path(__file__)
        for line, name in _named(path)
        if name not in known | PROGRAM_NAMES | NEVER_QUERIED
    ]
    assert unknown == []


def test_the_search_finds_names_in_strings_but_not_in_docstrings(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""Of vllm:in_a_docstring_total."""\n'
        'a = "rate(vllm:num_requests_running[5m])"\n'
        'b = f"lmcache_mp_lookup_{kind}_tokens_total"\n'
        'c = "lmcache_mp:l1_write_keys_total", "node_memory_MemTotal_bytes"\n'
        'd = "lmcache_mp_0.5.6_metrics.prom", "num_lmcache_cached_tokens"\n'
        'd = "page without lmcache_mp series", "DCGM_FI_DEV_SM_CLOCK"\n'
        'e = name.startswith("vllm:")\n'
    )
    assert list(_named(path)) == [
        (2, "vllm:num_requests_running"),
        (3, "lmcache_mp_lookup_"),
        (4, "lmcache_mp:l1_write_keys_total"),
        (4, "node_memory_MemTotal_bytes"),
        (6, "DCGM_FI_DEV_SM_CLOCK"),
        (7, "vllm:"),
    ]


def test_each_series_has_one_constant() -> None:
    assert [
        name for name, count in Counter(one.name for one in series.EVERY).items() if count > 1
    ] == []


def test_dashboards_query_only_series_with_a_constant() -> None:
    assert set(series.SERVERS) <= set(series.EVERY)


@pytest.mark.parametrize("one", series.EVERY, ids=lambda one: one.name)
def test_a_series_has_a_meaning_a_unit_and_a_valid_release(one: series.Series) -> None:
    assert one.meaning.endswith(".")
    assert one.unit or one.name.endswith("_info") or one is series.UP
    assert one.name.endswith("_total") == (one.kind == "counter")
    assert not one.lazy or one.kind == "counter"
    assert re.fullmatch(r"|(vLLM|LMCache) \d+(\.\d+)+", one.since)


@pytest.mark.parametrize(
    ("one", "stem"),
    [
        (series.PROMPT_TOKENS, "prompt_tokens"),
        (series.L1_WRITE, "l1_write_chunks"),
        (series.IN_STORED_TOKENS, "num_stored_tokens"),
        (series.FIRST_TOKEN, "time_to_first_token_seconds"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_stem_is_the_name_without_prefix_and_total(one: series.Series, stem: str) -> None:
    assert one.stem == stem

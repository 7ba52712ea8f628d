"""The README's size, links, tables and command outputs of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from otel_kvpolicy.policy import REASONS
from otel_kvpolicy.settings import Settings, env_name
from otel_kvpolicy.telemetry import names
from tools import docs_tables

from .pages import PAGES, ROOT, TITLES, blocks

DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)(?P<path>[^)#\s]+)(?:#(?P<anchor>[^)\s]*))?\)")


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and MkDocs make of a heading."""
    text = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[\s]+", "-", text)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8_000


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for link in _LINK.finditer(page.read_text(encoding="utf-8")):
        target = (page.parent / link["path"]).resolve()
        assert target.exists(), link[0]
        if link["anchor"] and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert link["anchor"] in map(anchor, headings), link[0]


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:benchmarks|collector|dashboards|docs|examples|otel_kvpolicy|tests|tools)/[\w./-]*)`",
        page.read_text(encoding="utf-8"),
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "collector"], ids=lambda page: page.name
)
def test_prose_is_wrapped_at_100_columns(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    long = [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")]
    assert long == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_generated_parts_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert docs_tables.filled(text) == text, "run make tables"


def test_every_setting_attribute_metric_and_reason_is_in_a_generated_table() -> None:
    configuration = (DOCS / "configuration.md").read_text(encoding="utf-8")
    telemetry = (DOCS / "telemetry.md").read_text(encoding="utf-8")
    for text, expected in (
        (configuration, [env_name(field) for field in Settings.model_fields]),
        (configuration, list(REASONS)),
        (telemetry, [attribute.name for attribute in names.ATTRIBUTES]),
        (telemetry, [metric.name for metric in names.METRICS]),
        (telemetry, [metric.prometheus for metric in names.METRICS]),
    ):
        assert [name for name in expected if f"| `{name}` |" not in text] == []


def test_every_generated_part_has_a_place() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    marks = set(re.findall(r"<!-- (?!/)(\w+) -->", text))
    assert marks - {"output", "table"} == set(docs_tables.GENERATED)


def test_every_outcome_of_the_hint_is_explained() -> None:
    from typing import get_args

    from otel_kvpolicy.record import Outcome

    text = (DOCS / "telemetry.md").read_text(encoding="utf-8")
    assert [value for value in get_args(Outcome) if f"| `{value}` |" not in text] == []


def test_every_alert_is_listed() -> None:
    rules = yaml.safe_load((ROOT / "dashboards/rules/alerts.yaml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    listed = re.findall(
        r"^\| `(\w+)` \|", (DOCS / "dashboards.md").read_text(encoding="utf-8"), re.M
    )
    assert set(listed) == alerts


def test_the_layout_that_the_architecture_page_shows_exists() -> None:
    [layout] = [
        block.text
        for block in blocks(DOCS / "architecture.md")
        if block.text.startswith("otel_kvpolicy/")
    ]
    folders: list[str] = []
    for line in layout.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [name.rstrip("/")]
        assert ROOT.joinpath(*folders).exists(), name


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if f": {page.name}" not in text] == []


def test_a_stale_table_is_filled_and_an_output_is_run() -> None:
    stale = "<!-- reasons -->\nold\n<!-- /reasons -->"
    assert docs_tables.filled(stale).count("\n| `") == len(REASONS)
    command = "<!-- output -->\n```console\n$ otel-kvpolicy --version\nold\n```\n<!-- /output -->"
    assert "old" not in docs_tables.filled(command)
    with pytest.raises(ValueError, match="only otel-kvpolicy"):
        docs_tables.output_of("rm -rf .")

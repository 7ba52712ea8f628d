"""The docs' Python runs against the embedded stand-in, and their commands exist as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from otel_kvpolicy.cli import main
from otel_kvpolicy.settings import CONFIG_FILE, Settings, env_name
from otel_kvpolicy.standin import StandIn

from .pages import PAGES, ROOT, TITLES, commands, outputs, program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")
_SERVER = "http://localhost:8000/v1"
_WITH_PYTHON = [page for page in PAGES if program(page)]


@pytest.fixture(scope="module")
def model_server() -> Iterator[StandIn]:
    with StandIn(models=("my-model",)) as server:
        yield server


@pytest.mark.parametrize("page", _WITH_PYTHON, ids=lambda page: page.name)
def test_python_on_a_page_runs_and_prints_what_the_page_says(
    page: Path, model_server: StandIn, tmp_path: Path
) -> None:
    model_server.requests.clear()
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page).replace(_SERVER, model_server.base_url), encoding="utf-8")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KV_CACHE_", "LMCACHE_", "OPENAI_", "OTEL_"))
    }
    done = subprocess.run(
        [sys.executable, script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(outputs(page))
    if _SERVER in program(page):
        sent = [request.body for request in model_server.requests]
        assert sent
        assert all("kv_transfer_params" in body for body in sent)


def test_the_pages_that_teach_code_have_programs() -> None:
    assert {page.name for page in _WITH_PYTHON} >= {
        "README.md",
        "getting-started.md",
        "configuration.md",
        "pydantic-ai.md",
    }


@pytest.fixture
def sample_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that commands in the docs name."""
    (tmp_path / "traces").mkdir()
    for page in PAGES:
        for command in commands(page):
            for word in shlex.split(command):
                if re.fullmatch(r"[a-z]+\.(json|jsonl)(\.gz)?", word):
                    (tmp_path / word).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _words(command: str) -> list[str]:
    """Return the words of a command without its variables and ``opentelemetry-instrument``."""
    words = shlex.split(command)
    while words and _ASSIGNMENT.match(words[0]):
        del words[0]
    return words


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_commands_of_the_package_parse(page: Path, sample_folder: Path) -> None:
    group: click.Command = main  # type: ignore[assignment] # without click it is a function
    for command in commands(page):
        words = _words(command)
        if not words or words[0] != "otel-kvpolicy":
            continue
        arguments = words[1:]
        node: click.Command = group
        with click.Context(group) as context:
            while isinstance(node, click.Group) and not arguments[0].startswith("-"):
                name = arguments.pop(0)
                child = node.get_command(context, name)
                assert child is not None, f"{command}: no command {name}"
                node = child
            try:
                node.make_context("otel-kvpolicy", arguments)
            except click.exceptions.Exit:  # --version, --help
                pass
            except click.ClickException as error:
                pytest.fail(f"{command}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_make_targets_extras_and_files_in_commands_exist(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= targets
    for command in commands(page):
        words = _words(command)
        if words[:1] == ["make"]:
            assert words[1] in targets, command
        for extra in re.findall(r"(?:\.|otel-kvpolicy)\[([a-z,]+)\]", command):
            assert set(extra.split(",")) <= extras, command
        for name in re.findall(r"\b(?:collector|dashboards|examples|tools)/\S+\.\w+", command):
            assert (ROOT / name).exists(), command


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    known = {*map(env_name, Settings.model_fields), CONFIG_FILE}
    named = set(re.findall(r"\bKV_CACHE_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
    families = {"KV_CACHE_MIN"}  # KV_CACHE_MIN_* stands for several
    assert named - known - families == set()


def test_the_public_api_page_covers_the_public_api() -> None:
    import otel_kvpolicy

    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in otel_kvpolicy.__all__ if f"otel_kvpolicy.{name}" not in text] == []

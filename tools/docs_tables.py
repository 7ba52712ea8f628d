"""Fill the generated parts of the docs: ``python -m tools.docs_tables [--check]``.

With ``--check``, pages that are out of date are reported and not written. A page marks each part,
as in ``<!-- settings -->`` … ``<!-- /settings -->``. Tables come from the settings, the telemetry
names and the rules. A part marked ``output`` has a command, which is run in ``docs/samples``, and
its output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from otel_kvpolicy.policy import REASONS, THRESHOLDS
from otel_kvpolicy.settings import CONFIG_FILE, Settings, env_name
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry.names import ATTRIBUTES, METRICS

DOCS: Final = Path(__file__).parents[1] / "docs"
SAMPLES: Final = DOCS / "samples"

_OUTPUT = re.compile(
    r"<!-- output -->\n```console\n\$ (?P<command>[^\n]+)\n(?P<shown>.*?)```\n<!-- /output -->",
    re.DOTALL,
)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def attribute_table() -> str:
    """Return the span attributes as Markdown."""
    return _table(
        ("attribute", "type", "meaning"),
        ((f"`{item.name}`", item.type, item.meaning) for item in ATTRIBUTES),
    )


def metric_table() -> str:
    """Return the metrics as Markdown."""
    rows = (
        (f"`{item.name}`", f"`{item.prometheus}`", item.kind, f"`{item.unit}`", item.meaning)
        for item in METRICS
    )
    return _table(("metric", "in Prometheus", "kind", "unit", "meaning"), rows)


def point_table() -> str:
    """Return the attributes that the points of each metric have, as Markdown."""
    rows = (
        (f"`{item.name}`", ", ".join(f"`{name}`" for name in item.attributes)) for item in METRICS
    )
    return _table(("metric", "attributes of its points"), rows)


def reason_table() -> str:
    """Return the reason codes as Markdown, with the setting of those that are thresholds."""
    settings = {item.reason: f"`{env_name(item.setting)}`" for item in THRESHOLDS}
    rows = ((f"`{code}`", meaning, settings.get(code, "")) for code, meaning in REASONS.items())
    return _table(("reason code", "meaning", "threshold"), rows)


def settings_table() -> str:
    """Return the settings as Markdown."""
    rows = [
        (
            f"`{env_name(name)}`",
            f"`{str(field.default).lower()}`" if field.default is not None else "unset",
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]
    example = f'`{env_name("mode")} = "observe"`'
    rows.append(
        (
            f"`{CONFIG_FILE}`",
            "unset",
            f"a TOML file of these settings, such as {example}; the environment wins over it",
        )
    )
    return _table(("setting", "default", "meaning"), rows)


def output_of(command: str) -> str:
    """Run an ``otel-kvpolicy`` command in ``docs/samples`` and return what it prints.

    Raises:
        ValueError: the command is not ``otel-kvpolicy``.
    """
    program, *arguments = shlex.split(command)
    if program != "otel-kvpolicy":
        raise ValueError(f"only otel-kvpolicy can be run, not {program!r}")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KV_CACHE_", "LMCACHE_", "OPENAI_", "OTEL_"))
    }
    done = subprocess.run(  # noqa: S603 - a command in the docs
        [sys.executable, "-m", "otel_kvpolicy.cli", *arguments],
        cwd=SAMPLES,
        env={**environment, "TZ": "UTC", "COLUMNS": "80", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def doctor_output() -> str:
    """Run ``otel-kvpolicy doctor`` against the stand-in and return what it found.

    The sections about this process and the versions of the servers are left out.
    """
    options = ("--base-url", "http://gb10:8000/v1", "--lmcache-url", "http://gb10:8080")
    with StandIn() as server:
        real = ("--base-url", server.base_url, "--lmcache-url", str(server.lmcache_url))
        printed = output_of(shlex.join(("otel-kvpolicy", "doctor", *real, "--settle", "0.05")))
    _process, _servers, *sections = printed.strip().split("\n\n")
    command = " ".join(("otel-kvpolicy", "doctor", *options))
    return "\n".join(("```console", f"$ {command}", "…", "\n\n".join(sections), "```"))


GENERATED: Final[dict[str, Callable[[], str]]] = {
    "attributes": attribute_table,
    "doctor": doctor_output,
    "metrics": metric_table,
    "points": point_table,
    "reasons": reason_table,
    "settings": settings_table,
}
"""Name of a mark -> function that returns the text between the marks."""


def filled(text: str) -> str:
    """Return the page with every generated part up to date."""
    for name, make in GENERATED.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        if start:
            _, end, after = rest.partition(f"<!-- /{name} -->")
            text = f"{before}{start}\n{make()}\n\n{end}{after}"
    return _OUTPUT.sub(
        lambda found: found[0].replace(
            f"{found['command']}\n{found['shown']}",
            f"{found['command']}\n{output_of(found['command'])}",
        ),
        text,
    )


def main(arguments: list[str]) -> int:
    """Fill all pages; with ``--check`` return 1 and name the pages that are out of date."""
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"out of date: {', '.join(stale)}; run make tables", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

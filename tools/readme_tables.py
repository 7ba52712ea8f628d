"""The README's tables, made from the names file and the settings: ``python -m tools.readme_tables README.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from otel_kvpolicy.settings import CONFIG_FILE, Settings, env_name
from otel_kvpolicy.telemetry.names import ATTRIBUTES, METRICS


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def attribute_table() -> str:
    """Span attributes as Markdown."""
    return _table(
        ("attribute", "type", "meaning"),
        ((f"`{each.name}`", each.type, each.meaning) for each in ATTRIBUTES),
    )


def metric_table() -> str:
    """Metrics as Markdown."""
    rows = (
        (f"`{each.name}`", f"`{each.prometheus}`", each.kind, f"`{each.unit}`", each.meaning)
        for each in METRICS
    )
    return _table(("metric", "in Prometheus", "kind", "unit", "meaning"), rows)


def settings_table() -> str:
    """Settings as Markdown."""
    rows = [
        (
            f"`{env_name(name)}`",
            f"`{str(field.default).lower() if field.default is not None else 'unset'}`",
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]
    example = f'`{env_name("mode")} = "observe"`'
    rows.append(
        (
            f"`{CONFIG_FILE}`",
            "`unset`",
            f"a TOML file of these settings, such as {example}; the environment goes over it",
        )
    )
    return _table(("setting", "default", "meaning"), rows)


def _main(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name, table in {
        "attributes": attribute_table(),
        "metrics": metric_table(),
        "settings": settings_table(),
    }.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}{start}{table}\n{end}{after}"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

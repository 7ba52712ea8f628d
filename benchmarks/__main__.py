"""``python -m benchmarks [PART…] [--out FILE.json]``: prints tables and writes JSON. Ratios of one run are what counts, not times."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PARTS = ("decision", "changes", "calls", "instructions", "startup", "adaptive", "replay")


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Rows of one shape as a table."""
    made = Table(title=title)
    for name in rows[0]:
        made.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        made.add_row(
            *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        )
    return made


def main() -> None:
    """Runs the parts asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to measure")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    asked = parser.parse_args()
    console = Console()
    figures: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for part in asked.parts or PARTS:
        figures[part] = importlib.import_module(f"benchmarks.{part}").run()
        console.print(table(part, figures[part]))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Run benchmarks, print tables, and optionally write the figures as JSON.

Usage: ``python -m benchmarks [PART…] [--out FILE.json]``. Compare ratios within one run; times
depend on the machine.
"""

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
    """Return a table of rows that have the same keys."""
    result = Table(title=title)
    for name in rows[0]:
        result.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        result.add_row(
            *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        )
    return result


def main() -> None:
    """Run the given parts, by default all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], help="parts to run (default: all)"
    )
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    console = Console()
    figures: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for part in arguments.parts or PARTS:
        figures[part] = importlib.import_module(f"benchmarks.{part}").run()
        console.print(table(part, figures[part]))
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

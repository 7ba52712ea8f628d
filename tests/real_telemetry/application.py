"""Runs the load of ``compose.yaml``, then waits until standard input ends.

``opentelemetry-instrument`` runs it. While it stays, it can be scraped.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    load = Path(__file__).parents[2] / "collector" / "load.py"
    runpy.run_path(str(load), run_name="__main__")
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.read()

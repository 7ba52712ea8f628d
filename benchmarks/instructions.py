"""The cost of a whole call in instructions, as counted by callgrind.

``calls`` measures time, which varies on a busy machine by more than an instrumentation adds. The
number of instructions does not vary. Each setup runs twice under valgrind, with few calls and with
more; the difference gives the cost of one call. Needs valgrind, and takes minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from .calls import SETUPS, installed, set_up

WAYS: Final = ("sync", "stream")
FEW: Final = 10
MORE: Final = 60


def _count(setup: str, way: str, calls: int) -> int:
    """Return the number of instructions of a process that makes ``calls`` calls."""
    valgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    command = (*valgrind, sys.executable, "-m", "benchmarks.instructions", setup, way, str(calls))
    ended = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    match = re.search(r"Collected : (\d+)", ended.stderr)
    if match is None:
        raise RuntimeError(f"valgrind printed no instruction count: {ended.stderr[-500:]}")
    return int(match[1])


def _per_call(setup: str, way: str) -> float:
    return (_count(setup, way, MORE) - _count(setup, way, FEW)) / (MORE - FEW)


def run() -> list[dict[str, Any]]:
    """Measure all installed setups.

    ``added_share`` is what a setup adds, divided by what genai-openai adds.
    """
    if shutil.which("valgrind") is None:
        return [{"way": "not measured: valgrind is not installed"}]
    pairs = [(way, name) for way in WAYS for name, setup in SETUPS.items() if installed(setup)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        taken = dict(
            zip(pairs, pool.map(lambda pair: _per_call(pair[1], pair[0]), pairs), strict=True)
        )
    rows = []
    for way, name in pairs:
        added = taken[way, name] - taken[way, "plain"]
        theirs = taken.get((way, "genai-openai"), float("nan")) - taken[way, "plain"]
        rows.append(
            {
                "way": way,
                "setup": name,
                "kilo_instructions": taken[way, name] / 1e3,
                "added_kilo_instructions": added / 1e3,
                "added_share": added / theirs if theirs else float("nan"),
            }
        )
    return rows


if __name__ == "__main__":
    set_up(SETUPS[sys.argv[1]])[sys.argv[2]](int(sys.argv[3]))

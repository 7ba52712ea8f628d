"""What a whole call costs in instructions, as callgrind counts them: the same from run to run, whatever else the machine does.

``calls`` measures time, which a busy machine blurs by more than what an instrumentation adds. Each set-up runs twice under valgrind, with
few calls and with more; the difference is what a call takes. It needs valgrind, and some minutes.
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
    """Instructions of a whole process that makes so many calls."""
    valgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    command = (*valgrind, sys.executable, "-m", "benchmarks.instructions", setup, way, str(calls))
    ended = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    found = re.search(r"Collected : (\d+)", ended.stderr)
    if found is None:
        raise RuntimeError(f"valgrind said nothing of instructions: {ended.stderr[-500:]}")
    return int(found[1])


def _of_a_call(setup: str, way: str) -> float:
    return (_count(setup, way, MORE) - _count(setup, way, FEW)) / (MORE - FEW)


def run() -> list[dict[str, Any]]:
    """Measures all set-ups that are installed; ``added_share`` is what a set-up adds over what genai-openai adds."""
    if shutil.which("valgrind") is None:
        return [{"way": "not measured: valgrind is not installed"}]
    asked = [(way, name) for way in WAYS for name, setup in SETUPS.items() if installed(setup)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        taken = dict(
            zip(asked, pool.map(lambda each: _of_a_call(each[1], each[0]), asked), strict=True)
        )
    rows = []
    for way, name in asked:
        added = taken[way, name] - taken[way, "plain"]
        theirs = taken.get((way, "genai-openai"), float("nan")) - taken[way, "plain"]
        rows.append(
            {
                "way": way,
                "set-up": name,
                "kilo_instructions": taken[way, name] / 1e3,
                "added_kilo_instructions": added / 1e3,
                "added_share": added / theirs if theirs else float("nan"),
            }
        )
    return rows


if __name__ == "__main__":
    set_up(SETUPS[sys.argv[1]])[sys.argv[2]](int(sys.argv[3]))

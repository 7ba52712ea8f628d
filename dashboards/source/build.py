"""Build the dashboards' JSON and the rules' YAML.

    python -m dashboards.source.build

Run it from the root of a clone; it writes ``dashboards/grafana/`` and ``dashboards/rules/``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from . import host, policy, rules, tiers, why

FOLDER: Final = Path(__file__).parents[1]
"""The repository's ``dashboards`` folder, which holds the built files."""

_DASHBOARDS: Final = {
    "kv-policy.json": policy.build,
    "kv-policy-lmcache.json": tiers.build,
    "gb10-host.json": host.build,
    "why-skipped.json": why.build,
}


def files() -> Mapping[str, str]:
    """Return the content of every built file by its path relative to the ``dashboards`` folder."""
    built = {
        f"grafana/{name}": json.dumps(build(), indent=2, ensure_ascii=False) + "\n"
        for name, build in _DASHBOARDS.items()
    }
    return built | {f"rules/{name}": rules.as_yaml(groups) for name, groups in rules.GROUPS.items()}


def write(folder: Path) -> list[Path]:
    """Write every built file into ``folder`` and return their paths."""
    paths = []
    for name, content in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        paths.append(path)
    return paths


def main() -> None:
    """Write the built files into the repository, or into the folder given with ``--to``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder to write to")
    for path in write(parser.parse_args().to):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()

"""Everything that is built, as file names and contents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from . import host, policy, rules, tiers, why

_DASHBOARDS: Final = {
    "kv-policy.json": policy.build,
    "kv-policy-lmcache.json": tiers.build,
    "gb10-host.json": host.build,
    "why-skipped.json": why.build,
}


def files() -> Mapping[str, str]:
    """Content by path, relative to the folder of dashboards."""
    built = {
        f"grafana/{name}": json.dumps(build(), indent=2, ensure_ascii=False) + "\n"
        for name, build in _DASHBOARDS.items()
    }
    return built | {f"rules/{name}": rules.as_yaml(groups) for name, groups in rules.GROUPS.items()}

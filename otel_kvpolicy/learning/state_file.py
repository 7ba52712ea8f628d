"""The file in which what was learned survives a restart: JSON, written whole or not at all. It holds counts by class, no content."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path

from ..policy.adaptive import AdaptiveRule

__all__ = ["restore", "save"]

_log = logging.getLogger("otel_kvpolicy")


def restore(rule: AdaptiveRule, path: Path) -> bool:
    """Lets ``rule`` go on from the file; false where there is none. A damaged one is set aside with a warning and learned anew.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        rule.restore(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return False
    except ValueError as error:  # no JSON, no UTF-8, or not our state
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        _log.warning("KV_CACHE_STATE_FILE: %s cannot be used (%s); set aside as %s, and learned anew", path, error, aside.name)
        return False
    return True


def save(rule: AdaptiveRule, path: Path) -> None:
    """Writes what was learned. Of several processes that share a file the last one wins.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(rule.export(), file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty file under the new name
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

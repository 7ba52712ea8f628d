"""The file in which what was learned survives a restart: JSON, written whole or not at all. It holds counts by class, no content."""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from ..policy.adaptive.rule import AdaptiveRule

_log = logging.getLogger("otel_kvpolicy")

_MOST_BYTES: Final = 4 << 20
"""A full table takes less than half as much: what is larger is not ours, and not worth a call's time."""

_TIMES: Final = ("gap_seconds", "visible", "lifetime")


def load(rule: AdaptiveRule, path: Path) -> None:
    """Lets ``rule`` go on from the file, which is left alone.

    Where the rule has learned already, both count. Of the times its own stay, once it has any: they are of the cache as it is now.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError, RecursionError: it holds no JSON, no UTF-8, or not our state.
    """
    size = _ordinary(path)
    if size > _MOST_BYTES:
        raise ValueError(f"{size} bytes are more than it ever holds")
    state, own = json.loads(path.read_bytes()), rule.export()
    if isinstance(state, dict) and any(own["lifetime"]["gaps"]):
        state |= {name: own[name] for name in _TIMES}
    rule.restore(state)


def restore(rule: AdaptiveRule, path: Path) -> bool:
    """Lets ``rule`` go on from the file; false where there is none. A damaged one is set aside with a warning and learned anew.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        load(rule, path)
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError) as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        _log.warning(
            "KV_CACHE_STATE_FILE: %s cannot be used (%s); set aside as %s, and learned anew",
            path,
            error,
            aside.name,
        )
        return False
    return True


def save(rule: AdaptiveRule, path: Path) -> None:
    """Writes what was learned. Of several processes that share a file the last one wins.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    path = path.resolve()  # of a link, what it leads to is replaced, not the link
    if path.exists():
        _ordinary(path)
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


def _ordinary(path: Path) -> int:
    """Its size. A pipe would keep a call waiting, and to replace ``/dev/null`` would break more than us."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no ordinary file")
    return found.st_size

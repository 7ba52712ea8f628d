"""The state file of the adaptive rule: JSON with counts by class, written atomically."""

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
"""A full table takes less than half of this. A larger file is not a state file."""

_TIMES: Final = ("gap_seconds", "visible", "lifetime")


def load(rule: AdaptiveRule, path: Path) -> None:
    """Load the file into ``rule`` without changing the file.

    If the rule already has counts, those of the file are merged in. If it already has times, they
    stay, because they describe the cache as it is now.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError, RecursionError: the file is not UTF-8 or JSON, or does not hold such a state.
    """
    size = _size(path)
    if size > _MOST_BYTES:
        raise ValueError(f"{size} bytes are more than a state file can have")
    state, own = json.loads(path.read_bytes()), rule.export()
    if isinstance(state, dict) and any(own["lifetime"]["gaps"]):
        state |= {name: own[name] for name in _TIMES}
    rule.restore(state)


def restore(rule: AdaptiveRule, path: Path) -> bool:
    """Load the state file into ``rule``. Return False if it is missing.

    A damaged file is renamed and ignored, with a warning.

    Raises:
        OSError: the file exists and cannot be read.
    """
    try:
        load(rule, path)
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError) as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        _log.warning(
            "KV_CACHE_STATE_FILE: cannot use %s (%s). It is renamed to %s, and the adaptive rule "
            "starts without it.",
            path,
            error,
            aside.name,
        )
        return False
    return True


def save(rule: AdaptiveRule, path: Path) -> None:
    """Write the state file. If several processes share one, the last writer wins.

    Raises:
        OSError: the file cannot be written. Its old content stays.
    """
    path = path.resolve()  # replace the target of a link, not the link
    if path.exists():
        _size(path)
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


def _size(path: Path) -> int:
    """Return the size of a regular file.

    Reading a pipe would block the call, and replacing ``/dev/null`` would break the machine.

    Raises:
        OSError: the path is missing, or not a regular file.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a regular file")
    return status.st_size

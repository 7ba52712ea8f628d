"""Faults of this package: counted, said once, and never the caller's."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from .instruments import Instruments

_log = logging.getLogger("otel_kvpolicy")
_MAX_SAID: Final = 256


class Faults:
    """Where a fault ends.

    Args:
        instruments: to count it.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._said: set[tuple[str, type[Exception]]] = set()

    def caught(self, seam: str, error: Exception) -> None:
        """Counts ``error`` and logs its type and place once for each seam. Its message may quote a prompt, so it goes to debug only."""
        key = (seam, type(error))
        if key not in self._said and len(self._said) < _MAX_SAID:
            self._said.add(key)
            with suppress(Exception):  # a log handler of the user's that raises
                _log.warning(
                    "%s failed with %s; the call is not affected. Further ones are only counted (kvpolicy.errors)",
                    seam,
                    type(error).__name__,
                )
                _log.debug("%s failed", seam, exc_info=error)
        with suppress(Exception):  # a broken meter must not become the caller's error
            self._instruments.failed(seam, error)

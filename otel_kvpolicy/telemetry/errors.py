"""Internal errors: counted, logged once, never raised to the caller."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from .instruments import Instruments

_log = logging.getLogger("otel_kvpolicy")
_MAX_LOGGED: Final = 256


class ErrorReporter:
    """Counts and logs internal errors.

    Args:
        instruments: metric instruments to count with.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._logged: set[tuple[str, type[Exception]]] = set()

    def report(self, seam: str, error: Exception) -> None:
        """Count an error, and log its place and type the first time. Never raises.

        Its message can quote a prompt, so it is logged at debug level only.

        Args:
            seam: place in this package that failed, one of a few fixed names.
            error: what it raised.
        """
        key = (seam, type(error))
        if key not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(key)
            with suppress(Exception):  # the application's log handler may raise
                _log.warning(
                    "%s failed with %s; the call is not affected. Further errors of this kind are "
                    "only counted (kvpolicy.errors).",
                    seam,
                    type(error).__name__,
                )
                _log.debug("%s failed", seam, exc_info=error)
        with suppress(Exception):  # a broken meter must not break the caller's request
            self._instruments.failed(seam, error)

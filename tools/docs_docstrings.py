"""Griffe extension: show Sphinx roles in docstrings, such as ``:class:`X```, as plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|func|meth|mod):`~?([^`]+)`")


class PlainRoles(griffe.Extension):
    """Replace each Sphinx role by the code that it names."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)

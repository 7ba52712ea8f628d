"""The report: one HTML file that asks nothing of any server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..simulator.comparison import Result, row_of
from ..trace.readers import Loaded
from .classes import classes_of
from .plots import hits_by_capacity, looks_of, skips_by_class, writes_and_hits
from .tables import sizes_text, trace_text

_SAME_FOR_ALL: Final = ("requests", "input_tokens")
_NEVER_SKIP: Final = ("always", "never", "belady")
"""Rules whose skips say nothing: all, none, and those of a cache that chooses chunk by chunk."""


def report(loaded: Loaded, results: Sequence[Result], source: str) -> str:
    """The page.

    Args:
        loaded: the trace.
        results: in any order.
        source: what the trace is called.
    """
    environment = Environment(
        loader=PackageLoader("otel_kvpolicy.cli.replay.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters["figure"] = _figure
    sizes = sorted({each.tiers for each in results}, key=lambda tiers: tiers.l1)
    middle = sizes[(len(sizes) - 1) // 2]
    judged = [
        each for each in results if each.tiers == middle and each.rule.name not in _NEVER_SKIP
    ]
    looks = looks_of(results)
    rows = [
        {name: value for name, value in row_of(each).items() if name not in _SAME_FOR_ALL}
        for each in results
    ]
    return environment.get_template("report.html.j2").render(
        source=source,
        summary=f"{trace_text(loaded)}.",
        notes=loaded.notes,
        sizes=sizes_text(middle),
        hits=Markup(hits_by_capacity(results, looks)),  # noqa: S704 - matplotlib escapes what it writes
        writes=Markup(writes_and_hits(results, looks)),  # noqa: S704
        skips=judged and Markup(skips_by_class(judged, looks, classes_of(loaded.trace))),  # noqa: S704
        columns=[name for name in rows[0] if any(row[name] for row in rows)],
        rows=rows,
    )


def _figure(value: Any) -> str:
    return (
        f"{value:.4f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )

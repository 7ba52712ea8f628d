"""Write results to files: CSV, JSON, or an HTML report, depending on the suffix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..simulator import Result, row_of
from ..trace import Loaded
from .tables import tiers_text, trace_text

_SAME_IN_ALL_ROWS: Final = ("requests", "input_tokens")
_WITHOUT_SKIP_PLOT: Final = ("always", "never", "belady")
"""Rules left out of the plot of skipped calls: they skip none, all, or decide chunk by chunk."""


def _csv(loaded: Loaded, results: Sequence[Result], source: str) -> str:
    rows = [row_of(result) for result in results]
    text = io.StringIO()
    table = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _json(loaded: Loaded, results: Sequence[Result], source: str) -> str:
    trace = loaded.trace
    facts = {
        "source": source,
        "formats": loaded.formats,
        "notes": loaded.notes,
        "broken_lines": loaded.broken,
        "requests": len(trace),
        "requests_uncounted": trace.first_counted,
        "chunk_tokens": trace.block_tokens,
        "distinct_chunks": trace.unique_blocks,
        "results": [row_of(result) for result in results],
    }
    return json.dumps(facts, indent=1) + "\n"


def _html(loaded: Loaded, results: Sequence[Result], source: str) -> str:
    """Render a self-contained page: it loads nothing from any server."""
    from . import plots  # imports matplotlib, which is slow

    environment = Environment(
        loader=PackageLoader("otel_kvpolicy.cli.replay.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters["figure"] = _figure
    sizes = sorted({result.tiers for result in results}, key=lambda tiers: tiers.l1)
    middle = sizes[(len(sizes) - 1) // 2]
    with_skips = [
        result
        for result in results
        if result.tiers == middle and result.rule.name not in _WITHOUT_SKIP_PLOT
    ]
    styles = plots.styles_of(results)
    rows = [
        {name: value for name, value in row_of(result).items() if name not in _SAME_IN_ALL_ROWS}
        for result in results
    ]
    skips = plots.skips_by_class(with_skips, styles, loaded.trace) if with_skips else ""
    return environment.get_template("report.html.j2").render(
        source=source,
        summary=f"{trace_text(loaded)}.",
        notes=loaded.notes,
        sizes=tiers_text(middle),
        # The plots are safe to insert: matplotlib escapes the text in them.
        hits=Markup(plots.hits_by_capacity(results, styles)),  # noqa: S704
        writes=Markup(plots.writes_and_hits(results, styles)),  # noqa: S704
        skips=Markup(skips),  # noqa: S704
        columns=[name for name in rows[0] if any(row[name] for row in rows)],
        rows=rows,
    )


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


WRITERS: Final[Mapping[str, Callable[[Loaded, Sequence[Result], str], str]]] = {
    ".csv": _csv,
    ".json": _json,
    ".html": _html,
}
"""By suffix, a function that returns the file's text for a trace, its results and its name."""

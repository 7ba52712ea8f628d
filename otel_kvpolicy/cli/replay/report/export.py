"""Results as files: CSV, JSON or an HTML report, by the file's suffix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..simulator.comparison import Result, row_of
from ..trace.readers import Loaded


def _csv(loaded: Loaded, results: Sequence[Result], source: str) -> str:
    rows = [row_of(each) for each in results]
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
        "results": [row_of(each) for each in results],
    }
    return json.dumps(facts, indent=1) + "\n"


def _html(loaded: Loaded, results: Sequence[Result], source: str) -> str:
    from .html import report  # draws: a library of some weight

    return report(loaded, results, source)


WRITERS: Final[Mapping[str, Callable[[Loaded, Sequence[Result], str], str]]] = {
    ".csv": _csv,
    ".json": _json,
    ".html": _html,
}
"""By suffix: the trace, its results and what it is called -> the file's text."""

"""An examination for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .examination import Examination
from .servers import LMCacheFacts, VLLMFacts

__all__ = ["show"]

_STYLE: Final = {
    "honoured": "bold green",
    "ignored": "bold red",
    "refused": "bold red",
    "no_connector": "bold red",
    "inconclusive": "bold yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}
_WORD: Final = {"no_connector": "no effect"}
_MODE: Final = {
    "mp": "LMCache's multi-process server",
    "in_process": "LMCache inside vLLM's process",
    "unknown": "not to be seen from outside",
}
_WAY: Final = {"told": "LMCache's own word", "salted": "cached tokens", "counted": "counters", "connector": "counters", "answer": "answer"}


def show(console: Console, found: Examination) -> None:
    """Prints it: the process, the servers, the findings with their evidence, and what to do."""
    _section(console, "this process", ((check.name, check.state, check.text) for check in found.checks))
    if found.vllm is not None:
        _section(console, "the servers", ((name, "", text) for name, text in _servers(found, found.vllm)))
    rows: list[tuple[str, str, str]] = []
    for finding in found.findings:
        first, *more = [f"{_WAY[one.way]}: {one.text}" for one in finding.evidence] or ["nothing on this server tells"]
        rows.append((finding.arm, finding.outcome, first))
        rows += [("", "", text) for text in more]
    if rows:
        _section(console, "is the hint honoured?", rows)
    console.print()
    if found.trouble:
        console.print(Text.assemble(("inconclusive", _STYLE["inconclusive"]), f": {found.trouble}"))
    for note in found.notes:
        console.print(Text(note))


def _servers(found: Examination, vllm: VLLMFacts) -> Iterable[tuple[str, str]]:
    told = [f"version {vllm.version or 'not told'}", f"model {vllm.model}"]
    if vllm.max_model_len:
        told.append(f"up to {vllm.max_model_len} tokens")
    told.append("metrics" if vllm.page else "no metrics")
    if vllm.prefix_caching is not None:
        told.append(f"its own prefix cache {'on' if vllm.prefix_caching else 'off'}")
    if found.reports_cached is not None:
        told.append(f"cached tokens {'reported' if found.reports_cached else 'not reported'}")
    yield "vLLM", ", ".join(told)
    mode = "no KV connector" if found.connector is False else _MODE[found.mode]
    yield "connector", f"{mode}; chunks of {found.chunk} tokens"
    if found.lmcache is not None:
        yield "LMCache", _lmcache(found.lmcache)
    release = f"LMCache's are those of {found.release}; " if found.release else ""
    missing = f"{len(found.missing)} that the dashboards need are missing" if found.missing else "all that the dashboards need are there"
    if vllm.page or (found.lmcache and found.lmcache.page):
        yield "metric names", release + missing


def _lmcache(lmcache: LMCacheFacts) -> str:
    told = [f"version {lmcache.version or 'not told'}"]
    if lmcache.l1_bytes:
        told.append(f"L1 {lmcache.l1_bytes / 2**30:.3g} GiB, {(lmcache.l1_used_bytes or 0) / lmcache.l1_bytes:.0%} used")
    told.append(f"L2 {', '.join(lmcache.l2)}" if lmcache.l2 else "no L2")
    told.append("metrics" if lmcache.page else "no metrics")
    return ", ".join(told)


def _section(console: Console, title: str, rows: Iterable[tuple[str, str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, state, text in rows:
        grid.add_row(name, Text(_WORD.get(state, state), _STYLE.get(state, "")), Text(text))
    console.print()
    console.print(Text(title, "bold"))
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))

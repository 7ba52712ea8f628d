"""An examination for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ... import settings
from .advice import advice
from .examination import Examination
from .findings import Finding
from .server_facts import LMCacheFacts, VLLMFacts

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
_WAY: Final = {
    "told": "asked, ",
    "salted": "by cached tokens, ",
    "counted": "by counters, ",
    "connector": "",
    "answer": "the server answered ",
}


def show(console: Console, found: Examination) -> None:
    """Prints it: the process, the servers, the verdict on each hint, what it rests on, and what to do."""
    _section(
        console, "this process", ((check.name, check.state, check.text) for check in found.checks)
    )
    if found.vllm is not None:
        _section(
            console,
            "the servers",
            ((name, None, text) for name, text in _servers(found, found.vllm)),
        )
    if found.findings:
        sent = settings.current().hint_keys
        mark = f"what is sent (KV_CACHE_HINT_KEYS={sent})"
        _section(
            console,
            "is the hint honoured?",
            ((one.arm, one.outcome, mark if one.arm == sent else "") for one in found.findings),
        )
        _section(
            console,
            "how that is known",
            ((name, None, text) for name, text in _evidence(found.findings)),
        )
    lines = [f"{found.trouble}."] if found.trouble else advice(found)
    _section(
        console,
        "what is in the way" if found.trouble else "what to do",
        (("-", None, line) for line in lines),
    )
    console.print()
    console.print(
        Text.assemble("verdict: ", _word(found.outcome), f" (exit code {found.exit_code})")
    )


def _evidence(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """Each hint's, or once where it is the same for each."""
    texts = {
        one.arm: [f"{_WAY[each.way]}{each.text}" for each in one.evidence]
        or ["nothing on this server tells"]
        for one in findings
    }
    if len({tuple(lines) for lines in texts.values()}) == 1:
        texts = {"each": texts[findings[0].arm]}
    for arm, lines in texts.items():
        for index, line in enumerate(lines):
            yield ("" if index else arm), line


def _word(state: str) -> tuple[str, str]:
    return _WORD.get(state, state), _STYLE.get(state, "")


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
    pages = [
        name
        for name, page in (("vLLM", vllm.page), ("LMCache", found.lmcache and found.lmcache.page))
        if page
    ]
    if pages:
        release = f"LMCache's are those of {found.release}; " if found.release else ""
        missing = (
            f"{len(found.missing)} that the dashboards need are missing"
            if found.missing
            else "all that the dashboards need are there"
        )
        yield "metric names", f"{release}{missing} (looked at: {', '.join(pages)})"


def _lmcache(lmcache: LMCacheFacts) -> str:
    told = [f"version {lmcache.version or 'not told'}"]
    if lmcache.l1_bytes:
        told.append(
            f"L1 {lmcache.l1_bytes / 2**30:.3g} GiB, {(lmcache.l1_used_bytes or 0) / lmcache.l1_bytes:.0%} used"
        )
    told.append(f"L2 {', '.join(lmcache.l2)}" if lmcache.l2 else "no L2")
    told.append("metrics" if lmcache.page else "no metrics")
    return ", ".join(told)


def _section(console: Console, title: str, rows: Iterable[tuple[str, str | None, str]]) -> None:
    """A titled list: a name, a state where the rows have one, a text. Nothing is cut: what is too long goes on in the next line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    for name, state, text in rows:
        grid.add_row(
            name,
            *(() if state is None else (Text(*_word(state), no_wrap=True),)),
            Text(text, overflow="fold"),
        )
    console.print()
    console.print(Text(title, "bold"))
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))

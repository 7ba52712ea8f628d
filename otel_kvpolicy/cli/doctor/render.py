"""Print an examination for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ... import settings
from ...hints.lmcache import LMCACHE
from .advice import advice
from .examination import Examination
from .findings import EvidenceKind, Finding
from .server_facts import LMCacheFacts, Mode, VLLMFacts

_STYLES: Final = {
    "honoured": "bold green",
    "ignored": "bold red",
    "refused": "bold red",
    "no_connector": "bold red",
    "inconclusive": "bold yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}
_WORDS: Final = {"no_connector": "no effect"}
_MODES: Final[dict[Mode, str]] = {
    "mp": "LMCache's multi-process server",
    "in_process": "LMCache inside vLLM's process",
    "unknown": "unknown: nothing on its pages shows it",
}
_KINDS: Final[dict[EvidenceKind, str]] = {
    "lmcache_report": "LMCache's report: ",
    "cached_tokens": "cached tokens: ",
    "store_counter": "store counter: ",
    "connector": "",
    "answer": "the server answered: ",
}

Row = tuple[str, str | None, str]
"""A name, a state to be shown as a word, or None, and a text."""


def show(console: Console, exam: Examination) -> None:
    """Print the checks, the servers, the findings with their evidence, and what to do."""
    _section(
        console, "This process", ((check.name, check.state, check.text) for check in exam.checks)
    )
    if exam.vllm is not None:
        _section(console, "Servers", _servers(exam, exam.vllm))
    if exam.findings:
        keys = settings.current().hint_keys
        sent = keys if exam.configured_dialect == LMCACHE.name else None
        mark = f"sent with your settings (KV_CACHE_HINT_KEYS={keys})"
        _section(
            console,
            "Is the hint honoured?",
            (
                (finding.arm, finding.outcome, mark if finding.arm == sent else "")
                for finding in exam.findings
            ),
        )
        _section(console, "Evidence", _evidence(exam.findings))
    if exam.trouble:
        _section(console, "What went wrong", [("-", None, f"{exam.trouble}.")])
    else:
        _section(console, "What to do", (("-", None, note.text) for note in advice(exam)))
    console.print()
    console.print(Text.assemble("verdict: ", _word(exam.outcome), f" (exit code {exam.exit_code})"))


def _evidence(findings: Sequence[Finding]) -> Iterator[Row]:
    """Yield the evidence on each hint, or once if it is the same for all."""
    lines = {
        finding.arm: [f"{_KINDS[one.kind]}{one.text}" for one in finding.evidence]
        or ["none: nothing on this server shows what is stored"]
        for finding in findings
    }
    if len({tuple(texts) for texts in lines.values()}) == 1:
        lines = {"all": lines[findings[0].arm]}
    for arm, texts in lines.items():
        for index, text in enumerate(texts):
            yield "" if index else arm, None, text


def _word(state: str) -> tuple[str, str]:
    return _WORDS.get(state, state), _STYLES.get(state, "")


def _servers(exam: Examination, vllm: VLLMFacts) -> Iterator[Row]:
    facts = [f"version {vllm.version or 'unknown'}", f"model {vllm.model}"]
    if vllm.max_model_len:
        facts.append(f"up to {vllm.max_model_len} tokens")
    facts.append("metrics" if vllm.page else "no metrics")
    if vllm.prefix_caching is not None:
        facts.append(f"own prefix cache {'on' if vllm.prefix_caching else 'off'}")
    if exam.reports_cached is not None:
        facts.append(f"cached tokens {'reported' if exam.reports_cached else 'not reported'}")
    yield "vLLM", None, ", ".join(facts)
    mode = "no KV connector" if exam.connector is False else _MODES[exam.mode]
    yield "connector", None, f"{mode}; chunks of {exam.chunk} tokens"
    if exam.dialect is not None:
        yield "dialect", None, exam.dialect.text
    if exam.lmcache is not None:
        yield "LMCache", None, _lmcache(exam.lmcache)
    lmcache_page = exam.lmcache.page if exam.lmcache else None
    if vllm.page or lmcache_page:
        yield "metric names", None, _metric_names(exam, vllm.page is not None, bool(lmcache_page))


def _metric_names(exam: Examination, vllm: bool, lmcache: bool) -> str:
    pages = " and ".join(name for name, has in (("vLLM", vllm), ("LMCache", lmcache)) if has)
    missing = (
        f"{len(exam.missing)} of those that the dashboards need are missing"
        if exam.missing
        else "all that the dashboards need are there"
    )
    release = f"; LMCache's are those of {exam.release}" if exam.release else ""
    return f"{missing} ({pages}){release}"


def _lmcache(lmcache: LMCacheFacts) -> str:
    facts = [f"version {lmcache.version or 'unknown'}"]
    if lmcache.l1_bytes:
        used = (lmcache.l1_used_bytes or 0) / lmcache.l1_bytes
        facts.append(f"L1 {lmcache.l1_bytes / 2**30:.3g} GiB, {used:.0%} used")
    facts.append(f"L2 {', '.join(lmcache.l2)}" if lmcache.l2 else "no L2")
    facts.append("metrics" if lmcache.page else "no metrics")
    return ", ".join(facts)


def _section(console: Console, title: str, rows: Iterable[Row]) -> None:
    """Print a titled list. Long texts are wrapped, never cut."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    for name, state, text in rows:
        cells = () if state is None else (Text(*_word(state), no_wrap=True),)
        grid.add_row(name, *cells, Text(text, overflow="fold"))
    console.print()
    console.print(Text(title, "bold"))
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))

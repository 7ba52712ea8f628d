"""The whole examination: what the servers say, the trials, the findings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ... import series, settings
from ..http import Http, ServerError
from ..metrics_page import Page
from .environment import Check
from .findings import Finding, Outcome, judge
from .probe import Bench, Plan, Size, measure
from .server_facts import (
    LMCacheFacts,
    Mode,
    VLLMFacts,
    missing_series,
    mode_of,
    read_lmcache,
    read_vllm,
    release_of,
)
from .trial import ARMS, STORE, Trial

HONOURED: Final = 0
IGNORED: Final = 1
INCONCLUSIVE: Final = 3

_DEFAULT_CHUNK: Final = 256
_IN_PROCESS_REFRESH: Final = 10.0
_KEYS: Final = ("skip_save", "max_offload_tokens", "both")
_CERTAIN: Final[frozenset[Outcome]] = frozenset({"refused", "no_connector"})
"""Outcomes that no further round changes."""


@dataclass(frozen=True)
class Wish:
    """What the user asked for.

    Attributes:
        model: to ask; the first one served by default.
        chunk: tokens of a chunk, where the server does not tell.
        rounds: trials of each hint.
        more_rounds: further ones while the findings are inconclusive.
        settle: seconds to wait for a store to show.
        refresh: seconds between two updates of the counters; None for what the mode is known for.
    """

    model: str | None = None
    chunk: int | None = None
    rounds: int = 3
    more_rounds: int = 3
    settle: float = 1.0
    refresh: float | None = None


@dataclass
class Examination:
    """What was found. ``trouble`` says why there is no more of it.

    Attributes:
        checks: of the process side.
        trouble: what ended it early, in one line.
        vllm: what vLLM says.
        lmcache: what LMCache's server says.
        mode: how vLLM reaches LMCache.
        chunk: tokens of a chunk.
        connector: whether vLLM asked a KV connector about the prompts.
        reports_cached: whether usage says how many tokens came from a cache; None where no call was answered.
        trials: all of them.
        findings: for each hint.
        missing: series that the dashboards need and that are not there.
        release: LMCache release that the metric names belong to.
    """

    checks: list[Check]
    trouble: str | None = None
    vllm: VLLMFacts | None = None
    lmcache: LMCacheFacts | None = None
    mode: Mode = "unknown"
    chunk: int = _DEFAULT_CHUNK
    connector: bool | None = None
    reports_cached: bool | None = None
    trials: tuple[Trial, ...] = ()
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    release: str | None = None

    @property
    def sent(self) -> Finding | None:
        """The finding on the hint that this package sends with the present settings."""
        return next(
            (finding for finding in self.findings if finding.arm == settings.current().hint_keys),
            None,
        )

    @property
    def outcome(self) -> Outcome:
        """What became of that hint; inconclusive where the examination ended early."""
        return "inconclusive" if self.trouble or self.sent is None else self.sent.outcome

    @property
    def exit_code(self) -> int:
        """0 honoured, 1 not, 3 not known."""
        return {"honoured": HONOURED, "inconclusive": INCONCLUSIVE}.get(self.outcome, IGNORED)

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        vllm, lmcache = self.vllm, self.lmcache
        return {
            "outcome": self.outcome,
            "hint_keys": settings.current().hint_keys,
            "exit_code": self.exit_code,
            "trouble": self.trouble,
            "mode": self.mode,
            "connector": self.connector,
            "vllm": vllm
            and {
                "version": vllm.version,
                "model": vllm.model,
                "max_model_len": vllm.max_model_len,
                "metrics": vllm.page is not None,
                "prefix_caching": vllm.prefix_caching,
                "reports_cached_tokens": self.reports_cached,
            },
            "lmcache": lmcache
            and {
                "version": lmcache.version,
                "chunk_size": lmcache.chunk_size,
                "l1_bytes": lmcache.l1_bytes,
                "l1_used_bytes": lmcache.l1_used_bytes,
                "l2": list(lmcache.l2),
                "metrics": lmcache.page is not None,
            },
            "metrics_release": self.release,
            "missing_metrics": list(self.missing),
            "findings": {
                finding.arm: {
                    "outcome": finding.outcome,
                    "evidence": [dict(vars(one)) for one in finding.evidence],
                }
                for finding in self.findings
            },
            "trials": [trial.as_json() for trial in self.trials],
            "checks": [check._asdict() for check in self.checks],
        }


def examine(
    vllm: Http,
    lmcache: Http | None,
    wish: Wish,
    checks: list[Check],
    progress: Callable[[str], None],
) -> Examination:
    """Examines the servers. Never raises for what they do.

    Args:
        vllm: the OpenAI-compatible server.
        lmcache: LMCache's multi-process server, where its address is given.
        wish: how.
        checks: of the process side, to be told along with it.
        progress: told what is being done.
    """
    found = Examination(checks)
    try:
        _examine(found, vllm, lmcache, wish, progress)
    except ServerError as error:
        found.trouble = str(error)
    return found


def _examine(
    found: Examination,
    vllm: Http,
    lmcache: Http | None,
    wish: Wish,
    progress: Callable[[str], None],
) -> None:
    progress("reading what the servers say")
    facts = found.vllm = read_vllm(vllm, wish.model)
    if lmcache is not None:
        found.lmcache = read_lmcache(lmcache)
    found.chunk = (
        wish.chunk or (found.lmcache.chunk_size if found.lmcache else None) or _DEFAULT_CHUNK
    )
    _look_at_names(found)
    size = measure(vllm, facts.model, found.chunk, facts.max_model_len)
    found.reports_cached = size.reports_cached
    _read_again(
        found, vllm, lmcache
    )  # a connector shows its series with the first prompt at the latest
    bench = _bench(found, vllm, lmcache, wish, size)
    for number in range(1, wish.rounds + wish.more_rounds + 1):
        progress(f"round {number}: sending random prompts, to be stored and to be skipped")
        found.trials += tuple(_round(bench))
        found.connector = _asked_connector(found, facts.page, vllm)
        found.findings = tuple(judge(arm, found.trials, connector=found.connector) for arm in _KEYS)
        outcomes = {finding.outcome for finding in found.findings}
        if outcomes <= _CERTAIN or (number >= wish.rounds and "inconclusive" not in outcomes):
            break
    found.reports_cached |= any(trial.cached_tokens is not None for trial in found.trials)
    _read_again(found, vllm, lmcache)


def _bench(found: Examination, vllm: Http, lmcache: Http | None, wish: Wish, size: Size) -> Bench:
    assert found.vllm is not None
    in_process = found.mode == "in_process"
    plan = Plan(
        model=found.vllm.model,
        chunk=found.chunk,
        words=size.words,
        mode=found.mode if in_process or lmcache is not None else "unknown",
        settle=wish.settle,
        refresh=wish.refresh
        if wish.refresh is not None
        else _IN_PROCESS_REFRESH
        if in_process
        else 0.0,
    )
    return Bench(vllm, (vllm if in_process or lmcache is None else lmcache).page, plan)


def _round(bench: Bench) -> list[Trial]:
    """One trial of each hint, in changing order, and one idle window; the one to be stored first, since it tells how long that takes."""
    trials = [bench.trial(STORE)]
    others = [arm for arm in ARMS if arm != STORE]
    random.shuffle(others)
    trials += [bench.trial(arm) for arm in others]
    idle = bench.control(trials[0].chunks)
    if trials[
        0
    ].attributed:  # where not even what was to be stored is seen, there is nothing to ask after
        trials = [bench.again(trial) for trial in trials]
    return [*trials, idle]


def _asked_connector(found: Examination, before: Page | None, vllm: Http) -> bool | None:
    """Whether vLLM asked a connector since the examination began: it counts each token it asks about."""
    asked = series.EXTERNAL_QUERIES
    if any((trial.attributed or 0) > 0 and trial.told is not None for trial in found.trials):
        return True
    if before is None or not before.has(asked):
        return None
    after = vllm.page()
    prompts = series.PROMPT_TOKENS
    if after is None or after.total(prompts) <= before.total(prompts):
        return None
    return after.total(asked) > before.total(asked)


def _read_again(found: Examination, vllm: Http, lmcache: Http | None) -> None:
    """Reads the pages again: a series that is counted for the first time appears only now."""
    assert found.vllm is not None
    found.vllm = replace(found.vllm, page=vllm.page())
    if found.lmcache is not None and lmcache is not None:
        found.lmcache = replace(found.lmcache, page=lmcache.page())
    _look_at_names(found)


def _look_at_names(found: Examination) -> None:
    page = found.vllm.page if found.vllm else None
    other = found.lmcache.page if found.lmcache else None
    found.mode = mode_of(page, found.lmcache)
    found.missing = tuple(missing_series(page, other, found.mode))
    found.release = release_of(other)

"""The whole examination: what the servers say, the trials, the findings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx2

from ... import series, settings
from ...hints.lmcache import LMCACHE
from ...hints.targets import Origin
from ..http import Http, ServerError
from ..metrics_page import Page
from .dialect import Spoken, dialect_of
from .environment import Check
from .findings import Finding, Outcome, conclude
from .probe import ARMS, STORE, Plan, Probe, PromptSize, Trial, measure
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

EXIT_CODES: Final[dict[Outcome, int]] = {
    "honoured": 0,
    "ignored": 1,
    "refused": 1,
    "no_connector": 1,
    "inconclusive": 3,
}

_DEFAULT_CHUNK: Final = 256
_IN_PROCESS_REFRESH: Final = 10.0
_HINTS: Final = tuple(arm for arm in ARMS if arm != STORE)
_FINAL: Final[frozenset[Outcome]] = frozenset({"refused", "no_connector"})
"""Outcomes that no further round can change."""


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        model: the model to ask; None for the first one served.
        chunk: tokens of a chunk; None for what the server says.
        rounds: trials of each hint.
        more_rounds: further trials while the findings are inconclusive.
        settle: seconds to wait until a store shows.
        refresh: seconds between two updates of the counters; None for what is usual in the mode.
    """

    model: str | None = None
    chunk: int | None = None
    rounds: int = 3
    more_rounds: int = 3
    settle: float = 1.0
    refresh: float | None = None


@dataclass
class Examination:
    """What was found so far.

    Attributes:
        checks: results of the process side.
        trouble: what ended the examination early, in one line; None if nothing did.
        trouble_code: the kind of trouble, for scripts.
        vllm: what vLLM says.
        lmcache: what LMCache's multi-process server says.
        mode: how vLLM reaches LMCache.
        chunk: tokens of a chunk.
        connector: whether vLLM asked a KV connector about the prompts; None if unknown.
        reports_cached: whether ``usage`` reports cached tokens; None if no call was answered.
        trials: all trials.
        findings: one for each hint.
        missing: names of series that the dashboards need and the servers do not have.
        release: release of LMCache that the metric names belong to.
        configured_dialect: the dialect that the settings name for the server.
    """

    checks: list[Check]
    trouble: str | None = None
    trouble_code: str | None = None
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
    configured_dialect: str = LMCACHE.name

    @property
    def dialect(self) -> Spoken | None:
        """The dialect that the server speaks; None if nothing was learned about the server."""
        if self.vllm is None:
            return None
        return dialect_of(self.configured_dialect, self.vllm, self.lmcache, self.findings)

    @property
    def outcome(self) -> Outcome:
        """What becomes of the hint that the current settings send.

        Inconclusive if the examination ended early, or if the settings send a key that the trials
        do not cover, unless the server refuses the field or has no connector.
        """
        keys = settings.current().hint_keys
        sent = next((finding for finding in self.findings if finding.arm == keys), None)
        if self.trouble or sent is None:
            return "inconclusive"
        covered = self.configured_dialect == LMCACHE.name or sent.outcome in _FINAL
        return sent.outcome if covered else "inconclusive"

    @property
    def exit_code(self) -> int:
        """The exit code of the command: see :data:`EXIT_CODES`."""
        return EXIT_CODES[self.outcome]

    def as_json(self) -> dict[str, Any]:
        """Return the examination for scripts."""
        vllm, lmcache = self.vllm, self.lmcache
        return {
            "outcome": self.outcome,
            "hint_keys": settings.current().hint_keys,
            "exit_code": self.exit_code,
            "trouble": self.trouble,
            "trouble_code": self.trouble_code,
            "mode": self.mode,
            "connector": self.connector,
            "dialect": self.dialect and self.dialect.as_json(),
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
                    "evidence": [evidence.as_json() for evidence in finding.evidence],
                }
                for finding in self.findings
            },
            "trials": [trial.as_json() for trial in self.trials],
            "checks": [check._asdict() for check in self.checks],
        }


def examine(
    vllm: Http,
    lmcache: Http | None,
    options: Options,
    checks: list[Check],
    progress: Callable[[str], None],
) -> Examination:
    """Examine the servers. If they fail, the examination ends early and says why.

    Args:
        vllm: the OpenAI-compatible server.
        lmcache: LMCache's multi-process server, if its address is known.
        options: what the user asked for.
        checks: results of the process side, to be reported, too.
        progress: called with what is being done.
    """
    origin = Origin.of(httpx2.URL(vllm.name))
    exam = Examination(checks, configured_dialect=settings.current().dialect.of(origin).name)
    try:
        _examine(exam, vllm, lmcache, options, progress)
    except ServerError as error:
        exam.trouble, exam.trouble_code = str(error), error.code
    return exam


def _examine(
    exam: Examination,
    vllm: Http,
    lmcache: Http | None,
    options: Options,
    progress: Callable[[str], None],
) -> None:
    progress("reading what the servers say")
    facts = exam.vllm = read_vllm(vllm, options.model)
    if lmcache is not None:
        exam.lmcache = read_lmcache(lmcache)
    reported_chunk = exam.lmcache.chunk_size if exam.lmcache else None
    exam.chunk = options.chunk or reported_chunk or _DEFAULT_CHUNK
    _look_at_names(exam)
    size = measure(vllm, facts.model, exam.chunk, facts.max_model_len)
    exam.reports_cached = size.reports_cached
    # A connector's series appear with the first prompt at the latest.
    _read_pages_again(exam, vllm, lmcache)
    probe = _probe(exam, vllm, lmcache, options, size)
    for number in range(1, options.rounds + options.more_rounds + 1):
        progress(f"round {number}: sending random prompts, to be stored and to be skipped")
        exam.trials += tuple(_round(probe))
        exam.connector = _asked_connector(exam, facts.page, vllm)
        exam.findings = tuple(
            conclude(arm, exam.trials, connector=exam.connector) for arm in _HINTS
        )
        outcomes = {finding.outcome for finding in exam.findings}
        if outcomes <= _FINAL or (number >= options.rounds and "inconclusive" not in outcomes):
            break
    exam.reports_cached |= any(trial.cached_tokens is not None for trial in exam.trials)
    _read_pages_again(exam, vllm, lmcache)


def _probe(
    exam: Examination, vllm: Http, lmcache: Http | None, options: Options, size: PromptSize
) -> Probe:
    assert exam.vllm is not None
    in_process = exam.mode == "in_process"
    usual_refresh = _IN_PROCESS_REFRESH if in_process else 0.0
    plan = Plan(
        model=exam.vllm.model,
        chunk=exam.chunk,
        words=size.words,
        mode=exam.mode if in_process or lmcache is not None else "unknown",
        settle=options.settle,
        refresh=usual_refresh if options.refresh is None else options.refresh,
    )
    return Probe(vllm, (vllm if in_process or lmcache is None else lmcache).page, plan)


def _round(probe: Probe) -> list[Trial]:
    """Run one trial of each hint, in random order, and one idle window.

    The prompt that is to be stored comes first because it shows how long a store takes.
    """
    trials = [probe.run(STORE)]
    hints = list(_HINTS)
    random.shuffle(hints)
    trials += [probe.run(arm) for arm in hints]
    idle = probe.control(trials[0].chunks)
    if trials[0].held_chunks:
        # Only if LMCache shows a prompt that was to be stored can it show the others.
        trials = [probe.ask_again(trial) for trial in trials]
    return [*trials, idle]


def _asked_connector(exam: Examination, before: Page | None, vllm: Http) -> bool | None:
    """Return whether vLLM asked a KV connector since the examination began; None if unknown.

    vLLM counts each token it asks about.
    """
    queries, prompts = series.EXTERNAL_QUERIES, series.PROMPT_TOKENS
    if any(trial.reported_chunks for trial in exam.trials):
        return True
    if before is None or not before.has(queries):
        return None
    after = vllm.page()
    if after is None or after.total(prompts) <= before.total(prompts):
        return None
    return after.total(queries) > before.total(queries)


def _read_pages_again(exam: Examination, vllm: Http, lmcache: Http | None) -> None:
    """Read the metrics pages again: some series appear only once they have counted something."""
    assert exam.vllm is not None
    exam.vllm = replace(exam.vllm, page=vllm.page())
    if exam.lmcache is not None and lmcache is not None:
        exam.lmcache = replace(exam.lmcache, page=lmcache.page())
    _look_at_names(exam)


def _look_at_names(exam: Examination) -> None:
    vllm = exam.vllm.page if exam.vllm else None
    lmcache = exam.lmcache.page if exam.lmcache else None
    exam.mode = mode_of(vllm, exam.lmcache)
    exam.missing = tuple(missing_series(vllm, lmcache, exam.mode))
    exam.release = release_of(lmcache)

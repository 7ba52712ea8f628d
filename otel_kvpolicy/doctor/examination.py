"""The whole examination: what the servers say, the trials, the findings, and what to do about them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .. import settings
from .http import Http, ServerError
from .judge import Finding, judge, other_traffic, stores_when_asked
from .process import Check
from .servers import CONNECTOR_MARK, LMCacheFacts, Mode, VLLMFacts, missing_series, mode_of, read_lmcache, read_vllm, release_of
from .trial import ARMS, STORE, Bench, Plan, Trial

__all__ = ["HONOURED", "IGNORED", "INCONCLUSIVE", "Examination", "Wish", "examine"]

HONOURED: Final = 0
IGNORED: Final = 1
INCONCLUSIVE: Final = 3

_DEFAULT_CHUNK: Final = 256
_IN_PROCESS_REFRESH: Final = 10.0
_KEYS: Final = ("skip_save", "max_offload_tokens", "both")


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
        notes: what else is worth a line.
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
    notes: tuple[str, ...] = ()

    @property
    def sent(self) -> Finding | None:
        """The finding on the hint that this package sends with the present settings."""
        return next((finding for finding in self.findings if finding.arm == settings.current().hint_keys), None)

    @property
    def exit_code(self) -> int:
        """0 honoured, 1 not, 3 not known."""
        outcome = self.sent.outcome if self.sent else "inconclusive"
        return {"honoured": HONOURED, "inconclusive": INCONCLUSIVE}.get(outcome, IGNORED)

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        vllm, lmcache = self.vllm, self.lmcache
        return {
            "outcome": self.sent.outcome if self.sent else "inconclusive",
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
                finding.arm: {"outcome": finding.outcome, "evidence": [dict(vars(one)) for one in finding.evidence]}
                for finding in self.findings
            },
            "trials": [dict(vars(trial)) for trial in self.trials],
            "checks": [check._asdict() for check in self.checks],
            "notes": list(self.notes),
        }


def examine(vllm: Http, lmcache: Http | None, wish: Wish, checks: list[Check], progress: Callable[[str], None]) -> Examination:
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
    found.notes = tuple(_notes(found))
    return found


def _examine(found: Examination, vllm: Http, lmcache: Http | None, wish: Wish, progress: Callable[[str], None]) -> None:
    progress("reading what the servers say")
    found.vllm = read_vllm(vllm, wish.model)
    if lmcache is not None:
        found.lmcache = read_lmcache(lmcache)
    found.mode = mode_of(found.vllm.page, found.lmcache)
    found.chunk = wish.chunk or (found.lmcache.chunk_size if found.lmcache else None) or _DEFAULT_CHUNK
    refresh = wish.refresh if wish.refresh is not None else _IN_PROCESS_REFRESH if found.mode == "in_process" else 0.0
    plan = Plan(
        model=found.vllm.model,
        chunk=found.chunk,
        limit=found.vllm.max_model_len,
        mode=found.mode if found.mode == "in_process" or lmcache is not None else "unknown",
        settle=wish.settle,
        refresh=refresh,
    )
    counters = vllm if found.mode == "in_process" or lmcache is None else lmcache
    bench = Bench(vllm, counters.page, plan)
    try:
        bench.calibrate()
        found.reports_cached = bench.reports_cached
        for number in range(1, wish.rounds + wish.more_rounds + 1):
            progress(f"round {number}: sending random prompts, to be stored and to be skipped")
            found.trials += tuple(_round(bench))
            _conclude(found, vllm)
            if number >= wish.rounds and all(finding.outcome != "inconclusive" for finding in found.findings):
                break
    finally:
        _reread(found, vllm, lmcache)


def _round(bench: Bench) -> list[Trial]:
    """One trial of each hint, in changing order, and one idle window; the one to be stored first, since it tells how long that takes."""
    trials = [bench.trial(STORE)]
    others = [arm for arm in ARMS if arm != STORE]
    random.shuffle(others)
    trials += [bench.trial(arm) for arm in others]
    return [*trials, bench.control(trials[0].chunks)]


def _conclude(found: Examination, vllm: Http) -> None:
    found.connector = _asked_connector(found, vllm)
    found.findings = tuple(judge(arm, found.trials, connector=found.connector) for arm in _KEYS)


def _asked_connector(found: Examination, vllm: Http) -> bool | None:
    """Whether vLLM asked a connector since the examination began: it counts each token it asks about."""
    asked = "vllm:external_prefix_cache_queries_total"
    before = found.vllm.page if found.vllm else None
    if any((trial.attributed or 0) > 0 and trial.told is not None for trial in found.trials):
        return True
    if before is None or not before.has(asked):
        return None
    after = vllm.page()
    if after is None or after.total("vllm:prompt_tokens_total") <= before.total("vllm:prompt_tokens_total"):
        return None
    return after.total(asked) > before.total(asked)


def _reread(found: Examination, vllm: Http, lmcache: Http | None) -> None:
    """Reads the pages again: a series that is counted for the first time appears only now."""
    page = vllm.page()
    other = lmcache.page() if lmcache is not None else None
    found.missing = tuple(missing_series(page, other, found.mode))
    found.release = release_of(other)


# --- what to do about it -----------------------------------------------------------------------------------------------------------


def _notes(found: Examination) -> list[str]:
    if found.trouble is not None or found.vllm is None:
        return []
    outcomes = {finding.arm: finding.outcome for finding in found.findings}
    notes = [*_advice(found, outcomes), *_on_metrics(found)]
    if not found.reports_cached:
        notes.append("vLLM does not say how many tokens came from a cache: start it with --enable-prompt-tokens-details.")
    if other_traffic(found.trials):
        notes.append("Other traffic was stored while this ran; it was told apart as the evidence says.")
    return notes


def _advice(found: Examination, outcomes: Mapping[str, str]) -> list[str]:
    keys = settings.current().hint_keys
    outcome = outcomes.get(keys, "inconclusive")
    if outcome == "honoured":
        by = [key for key in ("skip_save", "max_offload_tokens") if outcomes.get(key) == "honoured"]
        return [f"Working: what is sent (KV_CACHE_HINT_KEYS={keys}) keeps a prompt from being stored, by {' and '.join(by) or keys}."]
    if outcome == "ignored":
        return [_why_ignored(found, outcomes, keys)]
    if outcome == "inconclusive":
        return [_NOTHING_STORED if stores_when_asked(found.trials) is False else _NOT_PROVEN]
    return [_NO_CONNECTOR if outcome == "no_connector" else _REFUSED]


_NO_CONNECTOR: Final = (
    "vLLM runs without a KV connector: it keeps prompts in its own cache only, whatever the hint, and each hint costs a warning line in "
    "its log. Start it with --kv-transfer-config, or set KV_CACHE_MODE=observe or KV_CACHE_TARGETS so that none is sent."
)
_REFUSED: Final = (
    "The server takes no kv_transfer_params. The instrumentor repeats a refused call without it; KV_CACHE_TARGETS spares the try."
)
_NOTHING_STORED: Final = (
    "Nothing was stored even when asked to, so that skipping cannot be told from it. Look for kv_role=kv_consumer, "
    "LMCACHE_FORCE_SKIP_SAVE, a full L1, or a chunk larger than the prompt (--chunk-tokens)."
)
_NOT_PROVEN: Final = (
    "Not proven either way. Try --rounds 10 or a quieter hour, --lmcache-url for its counters, and vLLM's --enable-prompt-tokens-details."
)
_OWN_COPY: Final = (
    "The connector inside vLLM drops the hint: it is vLLM's own copy, or an LMCache older than 0.5.6. Install lmcache>=0.5.6 in vLLM's "
    "environment, unset LMCACHE_USE_UPSTREAM_MP, and look for 'Using external LMCacheMPConnector' in vLLM's log."
)


def _why_ignored(found: Examination, outcomes: Mapping[str, str], keys: str) -> str:
    other = next((key for key in ("both", "max_offload_tokens", "skip_save") if key != keys and outcomes.get(key) == "honoured"), None)
    if other is not None:
        return f"KV_CACHE_HINT_KEYS={keys} sends a key this server does not read. It honours {other}: set KV_CACHE_HINT_KEYS={other}."
    if found.mode == "in_process":
        return "LMCache's in-process connector reads skip_save from 0.3.6 on: upgrade LMCache."
    if found.lmcache is not None and found.lmcache.honours_caps is False:
        return f"LMCache {found.lmcache.version} has no control of single requests: its multi-process mode has it from 0.5.6 on. Upgrade."
    if found.vllm is not None and found.vllm.page is not None and not found.vllm.page.has(CONNECTOR_MARK):
        return _OWN_COPY
    return "The server stores what it was asked to skip. Check the version of LMCache in vLLM's environment: 0.5.6 or later is needed."


def _on_metrics(found: Examination) -> list[str]:
    notes = []
    assert found.vllm is not None
    if found.vllm.page is None:
        notes.append("vLLM serves no /metrics here: the dashboards' vLLM panels stay empty.")
    if found.lmcache is not None and found.lmcache.page is None:
        notes.append("LMCache serves no /metrics here: with --otlp-endpoint or --disable-metrics the page has none of its series.")
    if found.missing:
        notes.append(f"Series that the dashboards need and that are not there: {', '.join(found.missing)}.")
    if found.release == "before 0.4.7":
        notes.append("LMCache's metric names are those of before 0.4.7, which the dashboards do not read.")
    return notes

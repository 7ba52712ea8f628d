"""What to do about the result of an examination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ... import series, settings
from ...hints.vllm_offload import VLLM_OFFLOAD
from ..spans.source import Note
from .dialect import Spoken
from .examination import Examination
from .findings import other_traffic, stores_when_asked
from .probe import STORE
from .server_facts import OLDEST_RELEASE

_NO_CONNECTOR: Final = Note(
    "no_connector",
    "vLLM runs without a KV connector: no hint has an effect, and vLLM logs a warning for each. "
    "Start vLLM with --kv-transfer-config, or set KV_CACHE_MODE=observe or KV_CACHE_TARGETS to "
    "stop sending hints.",
)
_REFUSED: Final = Note(
    "hint_refused",
    "The server refuses requests with kv_transfer_params. The instrumentor repeats a refused call "
    "without the hint; set KV_CACHE_TARGETS to exclude this server and save the first attempt.",
)
_NOTHING_STORED: Final = Note(
    "nothing_stored",
    "LMCache stored nothing, not even prompts sent to be stored, so the trials cannot show whether "
    "it skips. Look for kv_role=kv_consumer, LMCACHE_FORCE_SKIP_SAVE, a full L1, a chunk larger "
    "than the prompt (--chunk-tokens), or an LMCache that serves another vLLM (--lmcache-url).",
)
_NOT_PROVEN: Final = Note(
    "not_proven",
    "The trials do not tell. Try --rounds 10, a time with less traffic, --lmcache-url for "
    "LMCache's counters, and vLLM's --enable-prompt-tokens-details.",
)
_NOT_TRIED: Final = Note(
    "dialect_not_tried",
    "Your settings send vllm-offload's key, and the trials send LMCache's keys, so they do not "
    "prove whether the server obeys. Compare vLLM's counter of offloaded bytes for calls that are "
    "stored and skipped.",
)
_NOT_VLLM: Final = Note(
    "not_vllm",
    "This does not look like vLLM: its /version and /metrics are missing or not vLLM's. Only vLLM "
    "with LMCache reads the hint. If a proxy hides these pages, pass vLLM's own address.",
)
_VENDORED: Final = Note(
    "vendored_connector",
    "The connector inside vLLM drops the hint: it is vLLM's own copy, or from an LMCache older "
    "than 0.5.6. Install lmcache>=0.5.6 in vLLM's environment, unset LMCACHE_USE_UPSTREAM_MP, and "
    "check that vLLM's log says 'Using external LMCacheMPConnector'.",
)
_UPGRADE_IN_PROCESS: Final = Note(
    "upgrade_in_process",
    "Upgrade LMCache: its in-process connector reads skip_save since 0.3.6.",
)
_STILL_STORES: Final = Note(
    "still_stores",
    "The server stores what it is asked to skip. Check the version of LMCache in vLLM's "
    "environment: it must be 0.5.6 or later.",
)
_OTHER_LMCACHE: Final = Note(
    "other_lmcache",
    "Prompts were stored, but the counters at --lmcache-url did not rise: that LMCache serves "
    "another vLLM. The findings do not rest on its counters.",
)
_LMCACHE_NOT_USED: Final = Note(
    "lmcache_not_used",
    "The server at --lmcache-url is not used: this vLLM runs LMCache in its own process.",
)
_NO_CACHED_TOKENS: Final = Note(
    "cached_tokens_not_reported",
    "vLLM does not report cached tokens: start it with --enable-prompt-tokens-details.",
)
_OTHER_TRAFFIC: Final = Note(
    "other_traffic", "Other traffic was stored during the run; the evidence accounts for it."
)
_NO_VLLM_METRICS: Final = Note(
    "no_vllm_metrics",
    "vLLM has no /metrics page here, so the dashboards' vLLM panels stay empty.",
)
_NO_LMCACHE_METRICS: Final = Note(
    "no_lmcache_metrics",
    "LMCache has no /metrics page here, so the dashboards' LMCache panels stay empty. Start it "
    "without --disable-metrics and --otlp-endpoint.",
)
_OLD_NAMES: Final = Note(
    "old_metric_names",
    f"LMCache's metric names are those of releases {OLDEST_RELEASE}, which the dashboards do not "
    "query. Upgrade LMCache.",
)


def advice(exam: Examination) -> list[Note]:
    """Return what to do, most important first. Empty if the examination ended early."""
    if exam.trouble is not None or exam.vllm is None:
        return []
    outcomes: dict[str, str] = {finding.arm: finding.outcome for finding in exam.findings}
    return [
        _on_hint(exam, outcomes),
        *_on_process(exam),
        *_on_servers(exam),
        *_on_metrics(exam),
    ]


def _failed_checks(exam: Examination) -> list[str]:
    return [check.name for check in exam.checks if check.state == "fail"]


def _on_hint(exam: Examination, outcomes: Mapping[str, str]) -> Note:
    keys = settings.current().hint_keys
    if exam.dialect is not None and exam.dialect.mismatch:
        return _wrong_dialect(exam.dialect)
    if exam.outcome == "honoured":
        return _works(exam, outcomes, keys)
    if exam.outcome == "ignored":
        return _why_ignored(exam, outcomes, keys)
    if exam.outcome == "inconclusive":
        return _why_inconclusive(exam)
    return _NO_CONNECTOR if exam.outcome == "no_connector" else _REFUSED


def _why_inconclusive(exam: Examination) -> Note:
    if exam.vllm is not None and not exam.vllm.is_vllm:
        return _NOT_VLLM
    if exam.configured_dialect == VLLM_OFFLOAD.name:
        return _NOT_TRIED
    return _NOTHING_STORED if stores_when_asked(exam.trials) is False else _NOT_PROVEN


def _wrong_dialect(dialect: Spoken) -> Note:
    text = (
        f"This server speaks {dialect.speaks}, but your settings send it {dialect.configured}. "
        f"Set KV_CACHE_DIALECT={dialect.speaks}, or {dialect.speaks}@HOST:PORT for this server "
        "alone."
    )
    return Note("wrong_dialect", text, {"use": dialect.speaks, "configured": dialect.configured})


def _works(exam: Examination, outcomes: Mapping[str, str], keys: str) -> Note:
    working = [
        key for key in ("skip_save", "max_offload_tokens") if outcomes.get(key) == "honoured"
    ]
    start = "The hint works on this server" if _failed_checks(exam) else "Nothing: it works"
    text = (
        f"{start}. LMCache reads {' and '.join(working) or keys}, so it does not store prompts "
        f"that are sent with KV_CACHE_HINT_KEYS={keys}."
    )
    return Note("hint_works", text, {"hint_keys": keys, "working_keys": working})


def _why_ignored(exam: Examination, outcomes: Mapping[str, str], keys: str) -> Note:
    candidates = ("both", "max_offload_tokens", "skip_save")
    better = next(
        (key for key in candidates if key != keys and outcomes.get(key) == "honoured"), None
    )
    if better is not None:
        text = (
            f"This server does not read the key that KV_CACHE_HINT_KEYS={keys} sends. "
            f"Set KV_CACHE_HINT_KEYS={better}."
        )
        return Note("wrong_keys", text, {"hint_keys": keys, "use": better})
    if exam.mode == "in_process":
        return _UPGRADE_IN_PROCESS
    if exam.lmcache is not None and exam.lmcache.reads_caps is False:
        version = exam.lmcache.version
        text = (
            f"Upgrade LMCache to 0.5.6 or later: the multi-process server of {version} cannot skip "
            "single requests."
        )
        return Note("upgrade_lmcache", text, {"version": version})
    page = exam.vllm.page if exam.vllm else None
    return _VENDORED if page is not None and not page.has(series.LOOKUP_TIME) else _STILL_STORES


def _on_process(exam: Examination) -> Iterator[Note]:
    names = _failed_checks(exam)
    if names:
        text = f"Fix what failed in this process: {', '.join(names)} (see above)."
        yield Note("check_process", text, {"checks": names})


def _on_servers(exam: Examination) -> Iterator[Note]:
    stored = [trial for trial in exam.trials if trial.arm == STORE]
    if exam.lmcache is not None and exam.mode == "in_process":
        yield _LMCACHE_NOT_USED
    elif any(trial.reported_chunks for trial in stored) and all(
        trial.counted_chunks is not None and trial.counted_chunks < trial.chunks for trial in stored
    ):
        yield _OTHER_LMCACHE
    if not exam.reports_cached:
        yield _NO_CACHED_TOKENS
    if other_traffic(exam.trials):
        yield _OTHER_TRAFFIC


def _on_metrics(exam: Examination) -> Iterator[Note]:
    if exam.vllm is not None and exam.vllm.page is None:
        yield _NO_VLLM_METRICS
    if exam.lmcache is not None and exam.lmcache.page is None:
        yield _NO_LMCACHE_METRICS
    if exam.missing:
        text = f"The dashboards need series that are missing: {', '.join(exam.missing)}."
        yield Note("missing_series", text, {"series": list(exam.missing)})
    if exam.release == OLDEST_RELEASE:
        yield _OLD_NAMES

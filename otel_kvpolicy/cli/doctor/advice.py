"""From an examination to what to do about it, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ... import series, settings
from .examination import Examination
from .findings import other_traffic, stores_when_asked
from .trial import STORE

_NO_CONNECTOR: Final = (
    "vLLM runs without a KV connector: it keeps prompts in its own cache only, whatever the hint, and each hint costs a warning line in "
    "vLLM's log. Start it with --kv-transfer-config, or set KV_CACHE_MODE=observe or KV_CACHE_TARGETS so that no hint is sent."
)
_REFUSED: Final = "The server takes no kv_transfer_params. The instrumentor repeats a refused call without it; KV_CACHE_TARGETS spares the try."
_NOTHING_STORED: Final = (
    "Nothing was stored even when asked to, so that skipping cannot be told from it. Look for kv_role=kv_consumer, "
    "LMCACHE_FORCE_SKIP_SAVE, a full L1, a chunk larger than the prompt (--chunk-tokens), or an LMCache of another vLLM (--lmcache-url)."
)
_NOT_PROVEN: Final = "Not proven either way. Try --rounds 10 or a quieter hour, --lmcache-url for its counters, and vLLM's --enable-prompt-tokens-details."
_NOT_VLLM: Final = (
    "This does not look like vLLM: neither /version nor /metrics is vLLM's. The hint has an effect on vLLM with LMCache alone, "
    "or the way there hides its pages: give vLLM's own address."
)
_OWN_COPY: Final = (
    "The connector inside vLLM drops the hint: it is vLLM's own copy, or an LMCache older than 0.5.6. Install lmcache>=0.5.6 in vLLM's "
    "environment, unset LMCACHE_USE_UPSTREAM_MP, and look for 'Using external LMCacheMPConnector' in vLLM's log."
)
_OTHERS_LMCACHE: Final = "Prompts were stored, but the counters at --lmcache-url did not move: it is another vLLM's, and the findings do not rest on it."
_NOT_USED: Final = (
    "The server at --lmcache-url is not used: this vLLM has LMCache inside its own process."
)


def advice(found: Examination) -> list[str]:
    """What to do, the most important first."""
    if found.trouble is not None or found.vllm is None:
        return []
    outcomes: dict[str, str] = {finding.arm: finding.outcome for finding in found.findings}
    process = (
        [f"Look at this process: {', '.join(_failing(found))} (above)."] if _failing(found) else []
    )
    return [_main(found, outcomes), *process, *_on_servers(found), *_on_metrics(found)]


def _failing(found: Examination) -> list[str]:
    return [check.name for check in found.checks if check.state == "fail"]


def _main(found: Examination, outcomes: Mapping[str, str]) -> str:
    keys = settings.current().hint_keys
    if found.outcome == "honoured":
        by = [key for key in ("skip_save", "max_offload_tokens") if outcomes.get(key) == "honoured"]
        works = "It works there" if _failing(found) else "Nothing: it works"
        return f"{works}. What is sent (KV_CACHE_HINT_KEYS={keys}) keeps a prompt from being stored, by {' and '.join(by) or keys}."
    if found.outcome == "ignored":
        return _why_ignored(found, outcomes, keys)
    if found.outcome == "inconclusive":
        if found.vllm is not None and not found.vllm.is_vllm:
            return _NOT_VLLM
        return _NOTHING_STORED if stores_when_asked(found.trials) is False else _NOT_PROVEN
    return _NO_CONNECTOR if found.outcome == "no_connector" else _REFUSED


def _why_ignored(found: Examination, outcomes: Mapping[str, str], keys: str) -> str:
    other = next(
        (
            key
            for key in ("both", "max_offload_tokens", "skip_save")
            if key != keys and outcomes.get(key) == "honoured"
        ),
        None,
    )
    if other is not None:
        return f"KV_CACHE_HINT_KEYS={keys} sends a key this server does not read. It honours {other}: set KV_CACHE_HINT_KEYS={other}."
    if found.mode == "in_process":
        return "LMCache's in-process connector reads skip_save from 0.3.6 on: upgrade LMCache."
    if found.lmcache is not None and found.lmcache.honours_caps is False:
        return f"LMCache {found.lmcache.version} has no control of single requests: its multi-process mode has it from 0.5.6 on. Upgrade."
    if (
        found.vllm is not None
        and found.vllm.page is not None
        and not found.vllm.page.has(series.LOOKUP_TIME)
    ):
        return _OWN_COPY
    return "The server stores what it was asked to skip. Check the version of LMCache in vLLM's environment: 0.5.6 or later is needed."


def _on_servers(found: Examination) -> Iterator[str]:
    stored = [trial for trial in found.trials if trial.arm == STORE]
    if found.lmcache is not None and found.mode == "in_process":
        yield _NOT_USED
    elif any(trial.told for trial in stored) and all(
        trial.counted is not None and trial.counted < trial.chunks for trial in stored
    ):
        yield _OTHERS_LMCACHE
    if not found.reports_cached:
        yield "vLLM does not say how many tokens came from a cache: start it with --enable-prompt-tokens-details."
    if other_traffic(found.trials):
        yield "Other traffic was stored while this ran; it was told apart as the evidence says."


def _on_metrics(found: Examination) -> Iterator[str]:
    if found.vllm is not None and found.vllm.page is None:
        yield "vLLM serves no /metrics here: the dashboards' vLLM panels stay empty."
    if found.lmcache is not None and found.lmcache.page is None:
        yield "LMCache serves no /metrics here: with --otlp-endpoint or --disable-metrics the page has none of its series."
    if found.missing:
        yield f"Series that the dashboards need and that are not there: {', '.join(found.missing)}."
    if found.release == "before 0.4.7":
        yield "LMCache's metric names are those of before 0.4.7, which the dashboards do not read."

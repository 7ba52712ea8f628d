"""Dashboard "KV policy x LMCache tiers (GB10)": decisions beside the cache's own hit rates."""

from __future__ import annotations

from typing import Final

from otel_kvpolicy import series
from otel_kvpolicy.series import Series
from otel_kvpolicy.telemetry import names

from . import limits
from .common import (
    AGENT,
    ALERTS,
    CHUNK,
    HOST,
    MODEL,
    NO_CALLS,
    NO_SPANS,
    RANGE,
    SERVICE,
    TO_SKIPPED,
    UID_TIERS,
)
from .layout import dashboard
from .model import JSON, Panel, Query, Row, Threshold
from .panels import stat, text, timeseries, trace_metrics, xychart
from .queries import NAMES_STATES, SELECTED, label, legend, quotient
from .rules import CORRELATIONS, SAMPLES, SKIP_SENT_TOKENS_LONG, STORED_OF_MISSED, STORED_WINDOW

NO_LOOKUPS: Final = "no lookups, or no LMCache metrics"
NO_SERVER: Final = "no metrics of an LMCache server"
NO_TIERS: Final = (
    "no lookups, or an LMCache that does not report its tiers separately (see LMCache metrics)"
)
NO_VLLM: Final = "no requests, or no vLLM metrics"
NO_SPANS_OF_VLLM: Final = "no spans of vLLM, no Tempo, or no TraceQL metrics in Tempo"
_DECISION: Final = label(names.DECISION)
_BY_DECISION: Final = legend(names.DECISION)


def build() -> JSON:
    """Return the dashboard."""
    return dashboard(
        UID_TIERS,
        "KV policy x LMCache tiers (GB10)",
        "The applications' skip ratio beside the hit rates of the LMCache and vLLM that they call."
        " Service, model and agent select calls. Host selects servers.",
        [
            Row("Does skipping pay off?", _summary()),
            Row("Skip ratio and hit rates", _together()),
            Row("Cache activity", _cache()),
            Row("Did stored calls come back?", _reuse()),
            Row(
                "In-process connector (requires lmcache:* metrics on vLLM's page)",
                _in_process(),
                collapsed=True,
            ),
        ],
        [SERVICE, MODEL, AGENT, HOST, CHUNK],
        tempo=True,
        annotations=ALERTS,
    )


def _summary() -> list[Panel]:
    dropped = SELECTED.select(series.EVENTS_DROPPED)
    return [
        stat(
            "LMCache metrics",
            "Which metric names each LMCache server exposes, and so which of these panels have"
            " data. Version 0.5.5 introduced hits by tier, and 0.5.6 the hint that the server"
            " honors. A server started with --otlp-endpoint sends its metrics there, and its page"
            " is empty.",
            "none",
            [Query(SELECTED.lmcache_names(), "{{instance}}")],
            NO_SERVER,
            states=NAMES_STATES,
            width=8,
            background=True,
        ),
        stat(
            "Dropped events",
            "Events that LMCache dropped in the time range. If there are any, all of LMCache's"
            " counters are too low, hit rates included.",
            "short",
            [Query(f"sum(increase({dropped}[{RANGE}]))", "dropped events")],
            NO_SERVER,
            base="green",
            thresholds=[Threshold(limits.ANY, "red")],
            states={0: ("Complete: no events dropped", "green")},
            decimals=0,
            width=5,
            background=True,
        ),
        stat(
            "Skip hints sent",
            "Share of prompt tokens whose server received a skip hint, now.",
            "percentunit",
            [Query(SELECTED.skip_ratio_sent(), "skip sent, tokens")],
            NO_CALLS,
            low=0,
            high=1,
            base="orange",
            width=3,
        ),
        stat(
            "Hit rate, L1 + L2",
            "Share of looked-up tokens that LMCache found, now. Lookups start at the first token,"
            " so this includes tokens that vLLM's own cache already held.",
            "percentunit",
            [Query(SELECTED.hit_rate(), "L1 + L2 hit rate")],
            NO_LOOKUPS,
            low=0,
            high=1,
            base="green",
            width=4,
        ),
        stat(
            "Correlation samples",
            "Samples in the last hour for which there were both calls and lookups. Below"
            f" {limits.CORRELATION_MIN_SAMPLES} the correlation has no meaning. Adjacent samples"
            " share most of their 5-minute windows, so an hour holds 12 independent ones. This is a"
            " recorded series over all services and hosts.",
            "short",
            [Query(SAMPLES, "samples")],
            "no calls and lookups at the same time, or the rules are not loaded",
            base="orange",
            thresholds=[Threshold(limits.CORRELATION_MIN_SAMPLES, "green")],
            decimals=0,
            width=4,
        ),
        text(
            "How to read",
            "If skipping pays off, hit rates hold or rise while evictions and writes fall. A"
            " correlation does not prove a cause: a change of traffic moves both lines.",
        ),
    ]


def _together() -> list[Panel]:
    skip = Query(SELECTED.skip_ratio_sent(), "skip sent, tokens", exemplar=True)
    l1 = Query(SELECTED.tier_hit_rate(series.LOOKUP_HIT_L1), "L1 hit rate")
    l2 = Query(SELECTED.tier_hit_rate(series.LOOKUP_HIT_L2), "L2 hit rate")
    both = Query(SELECTED.hit_rate(), "L1 + L2 hit rate")
    missed = f"clamp_min({SELECTED.lookup_tokens()} - {SELECTED.hit_tokens()}, 0)"
    return [
        timeseries(
            "Skip ratio and hit rates",
            "Share of prompt tokens whose server received a skip hint, and share of looked-up"
            " tokens that LMCache found in memory (L1), in its backend (L2), and in either.",
            "percentunit",
            [skip, l1, l2, both],
            NO_TIERS,
            width=16,
            height=10,
            high=1,
            links=[TO_SKIPPED],
        ),
        xychart(
            "Hit rate over skip ratio",
            "Each point is one moment of the time range. If the points fall to the right, more"
            " skipping went with fewer hits.",
            "percentunit",
            [skip, l1, l2],
            NO_TIERS,
            width=8,
            height=10,
        ),
        timeseries(
            "Correlation of skip ratio and hit rate",
            "Pearson correlation over the last hour, from recorded series over all services and"
            " hosts. Below zero, more skipping went with fewer hits. Shown from"
            f" {limits.CORRELATION_MIN_SAMPLES} samples on, and only while both ratios vary.",
            "none",
            [
                Query(f"{name} and {samples} >= {limits.CORRELATION_MIN_SAMPLES}", tier)
                for tier, name, samples in CORRELATIONS
            ],
            "too few samples, a ratio that does not vary, or the rules are not loaded",
            low=-1,
            high=1,
        ),
        timeseries(
            "Looked-up tokens: L1, L2, miss",
            "Tokens per second by where LMCache found them. LMCache looks up whole chunks only, so"
            " the end of a prompt after its last full chunk is not counted.",
            "short",
            [
                Query(SELECTED.rate(series.LOOKUP_HIT_L1), "L1"),
                Query(SELECTED.rate(series.LOOKUP_HIT_L2), "L2"),
                Query(missed, "miss"),
            ],
            NO_LOOKUPS,
            stack=True,
        ),
    ]


def _cache() -> list[Panel]:
    return [
        timeseries(
            "Chunks: stored, avoided, evicted",
            "Chunks per second. Stored: writes to L1 by requests, without loads from L2. Avoided is"
            " an ESTIMATE and an upper bound: the tokens of calls with a skip hint, divided by the"
            " chunk size selected above. It includes prompts that were cached already or that are"
            " shorter than a chunk. A hybrid model stores several objects per chunk.",
            "short",
            [
                Query(f"sum({SELECTED.stored_chunks()})", "stored"),
                Query(SELECTED.avoided_chunks("$chunk"), "avoided (estimate)"),
                Query(f"sum({SELECTED.per_server(series.L1_EVICTED)})", "evicted from L1"),
                Query(f"sum({SELECTED.per_server(series.L2_EVICTED)})", "evicted from L2"),
            ],
            NO_SERVER,
            colors={"stored": "blue", "avoided (estimate)": "orange"},
        ),
        timeseries(
            "Does LMCache honor the hint?",
            f"Tokens stored over tokens missed, in {STORED_WINDOW}. If LMCache honors the hint, the"
            " line stays near or below the share that was not skipped. If LMCache ignores it, the"
            " line stays near 1. Stores by clients without this package count, too. From recorded"
            " series over all services and hosts.",
            "percentunit",
            [
                Query(STORED_OF_MISSED, "stored / missed"),
                Query(f"1 - {SKIP_SENT_TOKENS_LONG}", "not skipped"),
            ],
            "too few lookups, an LMCache before 0.5.6, or the rules are not loaded",
            colors={"stored / missed": "blue", "not skipped": "orange"},
        ),
        timeseries(
            "L1 usage",
            "Share of L1 in use. On a GB10 the GPU uses the same memory. LMCache evicts when L1 is"
            " full.",
            "percentunit",
            [Query(f"max by (instance) ({SELECTED.select(series.L1_RATIO)})", "{{instance}}")],
            NO_SERVER,
            width=8,
            high=1,
            thresholds=[Threshold(limits.L1_FULL_RATIO, "orange")],
        ),
        timeseries(
            "L1 headroom",
            "Bytes free in L1. LMCache does not expose the size of L1, so it is computed from usage"
            " and usage ratio.",
            "bytes",
            [Query(SELECTED.l1_free(), "{{instance}}")],
            f"{NO_SERVER}, or an empty L1",
            width=8,
        ),
        timeseries(
            "L2 usage",
            "Bytes in each L2 backend, as LMCache counts them. Two backends of the same type share"
            " one name.",
            "bytes",
            [
                Query(
                    f"sum by (instance, l2_name) ({SELECTED.select(series.L2_BYTES)})",
                    "{{instance}} {{l2_name}}",
                )
            ],
            f"{NO_SERVER}, or no L2",
            width=8,
        ),
        timeseries(
            "Stores dropped, L1 full",
            "Chunks per second that were not stored because L1 had no room.",
            "short",
            [Query(SELECTED.per_server(series.L1_ALLOCATION_FAILURES), "{{instance}}")],
            NO_SERVER,
            width=8,
        ),
        timeseries(
            "vLLM's prefix cache",
            "Share of prompt tokens that vLLM found in GPU memory, and share of the others that"
            " LMCache supplied. Skipping does not affect the first.",
            "percentunit",
            [
                _share_of(series.PREFIX_HITS, series.PREFIX_QUERIES, "vLLM prefix cache"),
                _share_of(series.EXTERNAL_HITS, series.EXTERNAL_QUERIES, "external (LMCache)"),
            ],
            NO_VLLM,
            width=8,
            high=1,
            colors={"vLLM prefix cache": "blue", "external (LMCache)": "green"},
        ),
        timeseries(
            "Prompt tokens by source",
            "Where vLLM got the prompt tokens: computed (local_compute), its own cache"
            " (local_cache_hit), or LMCache (external_kv_transfer).",
            "short",
            [Query(SELECTED.rate(series.PROMPT_TOKENS_BY_SOURCE, by=("source",)), "{{source}}")],
            NO_VLLM,
            width=8,
            stack=True,
            colors={
                "local_compute": "#808080",
                "local_cache_hit": "blue",
                "external_kv_transfer": "green",
            },
        ),
    ]


def _share_of(part: Series, whole: Series, name: str) -> Query:
    return Query(quotient(SELECTED.rate(part), SELECTED.rate(whole)), name)


def _reuse() -> list[Panel]:
    return [
        timeseries(
            "Cached share of prompt tokens, by decision",
            "Share of prompt tokens that the server read from a cache (vLLM's and LMCache's"
            " together), for calls whose server reported usage. A large share for skipped calls"
            " means that their prompts came back after all.",
            "percentunit",
            [Query(SELECTED.cached_share(), _BY_DECISION)],
            "no calls, or a server without --enable-prompt-tokens-details",
            width=8,
            high=1,
            links=[TO_SKIPPED],
        ),
        timeseries(
            "Duration of calls, by decision",
            "Median and 95th percentile of the chat span's duration, from the Collector's span"
            " metrics over all calls. This is the time to the whole answer. The two panels that"
            " require Tempo have the time to first token and the prefill time by decision.",
            "s",
            [_duration(0.5, "p50"), _duration(0.95, "p95")],
            NO_SPANS,
            width=8,
        ),
        timeseries(
            "Time to first token and prefill, all calls",
            "From vLLM's histograms, which have no decision. Prefill time is shown as a mean: its"
            " buckets start at 0.3 s, so quantiles below that would be guesses.",
            "s",
            [
                Query(SELECTED.quantile(0.5, series.FIRST_TOKEN), "first token p50"),
                Query(SELECTED.quantile(0.95, series.FIRST_TOKEN), "first token p95"),
                Query(SELECTED.mean(series.PREFILL_TIME), "prefill mean"),
            ],
            NO_VLLM,
            width=8,
        ),
        trace_metrics(
            "Time to first token, by decision (requires Tempo)",
            "Median, from vLLM's llm_request spans below the client's spans (vLLM with"
            " --otlp-traces-endpoint). Tempo holds all skipped calls and an unbiased sample of the"
            " others.",
            "s",
            _by_decision("span.gen_ai.latency.time_to_first_token"),
            NO_SPANS_OF_VLLM,
        ),
        trace_metrics(
            "Prefill time, by decision (requires Tempo)",
            "Median time in prefill, from the same spans.",
            "s",
            _by_decision("span.gen_ai.latency.time_in_model_prefill"),
            NO_SPANS_OF_VLLM,
        ),
    ]


def _duration(q: float, name: str) -> Query:
    decided = f'{_DECISION}!=""'
    expr = SELECTED.quantile(q, series.SPAN_DURATION, decided, by=(_DECISION,))
    return Query(expr, f"{name} {_BY_DECISION}", exemplar=True)


def _by_decision(attribute: str) -> list[tuple[str, str]]:
    """Return TraceQL for the median of a vLLM span's attribute, once for each decision."""

    def median(decision: str) -> str:
        condition = f'span.{names.DECISION} = "{decision}"'
        client = f'{{ {condition} && span.{names.REQUEST_MODEL} =~ "$model" }}'
        return f"{client} >> {{ {attribute} > 0 }} | quantile_over_time({attribute}, .5)"

    return [(median(decision), decision) for decision in (names.STORE, names.SKIP)]


def _in_process() -> list[Panel]:
    no_data = "no in-process LMCache"
    local, remote = SELECTED.select(series.IN_LOCAL_BYTES), SELECTED.select(series.IN_REMOTE_BYTES)
    return [
        timeseries(
            "Tokens looked up, found, stored",
            "Tokens per second. The in-process connector counts tokens instead of chunks and does"
            " not report its tiers separately.",
            "short",
            [
                Query(SELECTED.rate(series.IN_LOOKUP_TOKENS), "looked up"),
                Query(SELECTED.rate(series.IN_LOOKUP_HITS), "found"),
                Query(SELECTED.rate(series.IN_STORED_TOKENS), "stored"),
            ],
            no_data,
            width=8,
        ),
        timeseries(
            "Memory and backend usage",
            "Bytes held in memory and in the remote backend.",
            "bytes",
            [
                Query(f"sum by (instance) ({local})", "{{instance}} memory"),
                Query(f"sum by (instance) ({remote})", "{{instance}} remote"),
            ],
            no_data,
            width=8,
        ),
        timeseries(
            "Evictions from memory",
            "Chunks evicted per second.",
            "short",
            [Query(SELECTED.rate(series.IN_EVICTED_KEYS, by=("instance",)), "{{instance}}")],
            no_data,
            width=8,
        ),
    ]

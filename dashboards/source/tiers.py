"""Dashboard "KV policy x LMCache": does skipping pay? Decisions beside the cache's own hit rates."""

from __future__ import annotations

from typing import Final

from otel_kvpolicy import series as servers
from otel_kvpolicy.telemetry import names

from . import limits
from .common import AGENT, ALERTS, CHUNK, HOST, MODEL, SERVICE, TO_SKIPPED, UID_TIERS
from .panels import (
    JSON,
    Panel,
    Query,
    Row,
    Threshold,
    dashboard,
    stat,
    text,
    timeseries,
    trace_metrics,
    xychart,
)
from .queries import DASHBOARD as ALL
from .queries import NAMES_STATES, label
from .rules import CORRELATIONS, SAMPLES, SKIP_SENT_TOKENS_LONG, STORED_OF_MISSED, STORED_WINDOW

NO_LOOKUPS: Final = "nothing looked up, or no LMCache to read"
NO_SERVER: Final = "no LMCache server to read"
NO_TIERS: Final = (
    "no lookups, or an LMCache that does not tell the tiers apart (see: LMCache speaks)"
)
NO_VLLM: Final = "no vLLM to read, or no requests"
NO_SPANS: Final = "no span metrics (the Collector of collector/app.yaml makes them) or no calls"
_DECISION: Final = label(names.DECISION)
_BY_DECISION: Final = f"{{{{{_DECISION}}}}}"


def build() -> JSON:
    """The dashboard."""
    return dashboard(
        UID_TIERS,
        "KV policy x LMCache tiers (GB10)",
        "The skip ratio of the applications beside the hit rates of the LMCache and vLLM they call. Service, model and agent select calls; "
        "host selects servers.",
        [
            Row("Does it pay?", _summary()),
            Row("Skip ratio and hit rates", _together()),
            Row("What the cache does", _cache()),
            Row("Did it come back?", _back()),
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
    return [
        stat(
            "LMCache speaks",
            "Which names each LMCache server exposes, so which of these panels can have data. 0.5.5 brought the split by tier, "
            "0.5.6 the hint "
            "that the server honours. A server started with --otlp-endpoint has an empty page and sends its metrics there instead.",
            "none",
            [Query(ALL.lmcache_names(), "{{instance}}")],
            NO_SERVER,
            states=NAMES_STATES,
            width=8,
            background=True,
        ),
        stat(
            "Counters can be trusted",
            "Events LMCache dropped in the time range: with any, all its counters undercount, hit rates included.",
            "short",
            [
                Query(
                    f"sum(increase({ALL.select(servers.EVENTS_DROPPED)}[$__range]))",
                    "dropped events",
                )
            ],
            NO_SERVER,
            base="green",
            thresholds=[Threshold(1, "red")],
            states={0: ("Complete: no event dropped", "green")},
            decimals=0,
            width=5,
            background=True,
        ),
        stat(
            "Told to skip",
            "Share of prompt tokens for which the server was told to skip, now.",
            "percentunit",
            [Query(ALL.skip_ratio_sent(), "skip sent, tokens")],
            "no calls",
            low=0,
            high=1,
            base="orange",
            width=3,
        ),
        stat(
            "Hit rate, L1 + L2",
            "Share of the looked-up tokens found, now. Counted from token 0, so it includes what vLLM's own cache held already.",
            "percentunit",
            [Query(ALL.hit_rate(), "L1 + L2 hit rate")],
            NO_LOOKUPS,
            low=0,
            high=1,
            base="green",
            width=4,
        ),
        stat(
            "Correlation samples",
            f"Points in the last hour in which calls and lookups both took place. Below {limits.CORRELATION_MIN_SAMPLES} the "
            f"correlation says "
            "nothing; neighbouring points share most of their 5 minute windows, so an hour holds 12 independent ones. Over all "
            "services and "
            "hosts: it is a recorded series.",
            "short",
            [Query(SAMPLES, "samples")],
            "rules not loaded, or nothing to pair",
            base="orange",
            thresholds=[Threshold(limits.CORRELATION_MIN_SAMPLES, "green")],
            decimals=0,
            width=4,
        ),
        text(
            "How to read",
            "If skipping pays, hit rates hold or rise while evictions and writes fall. Correlation is no cause: traffic that "
            "changes moves both lines.",
        ),
    ]


def _together() -> list[Panel]:
    skip = Query(ALL.skip_ratio_sent(), "skip sent, tokens", exemplar=True)
    l1 = Query(ALL.tier_hit_rate(servers.LOOKUP_HIT_L1), "L1 hit rate")
    l2 = Query(ALL.tier_hit_rate(servers.LOOKUP_HIT_L2), "L2 hit rate")
    both = Query(ALL.hit_rate(), "L1 + L2 hit rate")
    return [
        timeseries(
            "Skip ratio and hit rates",
            "Share of prompt tokens the server was told not to store, and share of looked-up tokens that LMCache found in memory "
            "(L1), in its "
            "backend (L2), and in either.",
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
            "Each point is one moment of the time range. Points that fall to the right say that more skipping went with fewer hits.",
            "percentunit",
            [skip, l1, l2],
            NO_TIERS,
            width=8,
            height=10,
        ),
        timeseries(
            "Correlation of skip ratio and hit rate",
            "Pearson correlation over the last hour, from recorded series (fleet-wide: service and host do not select). Below zero: more "
            f"skipping went with fewer hits. Shown from {limits.CORRELATION_MIN_SAMPLES} samples on, and only while both ratios vary.",
            "none",
            [
                Query(f"{name} and {samples} >= {limits.CORRELATION_MIN_SAMPLES}", legend)
                for legend, name, samples in CORRELATIONS
            ],
            "too few samples, a ratio that does not vary, or rules not loaded",
            low=-1,
            high=1,
        ),
        timeseries(
            "Looked-up tokens: L1, L2, miss",
            "Tokens per second by where they were found. Whole chunks only; the part of a prompt beyond its last full chunk is not "
            "looked up.",
            "short",
            [
                Query(ALL.rate(servers.LOOKUP_HIT_L1), "L1"),
                Query(ALL.rate(servers.LOOKUP_HIT_L2), "L2"),
                Query(f"clamp_min({ALL.looked_up()} - {ALL.found()}, 0)", "miss"),
            ],
            NO_LOOKUPS,
            stack=True,
        ),
    ]


def _cache() -> list[Panel]:
    return [
        timeseries(
            "Chunks: stored, avoided, evicted",
            "Chunks per second. Stored: writes to L1 by requests (loads from L2 taken off). Avoided by skipping is an ESTIMATE and "
            "an upper "
            "bound: tokens of the calls told to skip over the chunk size chosen above; it does not know which of them were cached already "
            "or shorter than a chunk. A hybrid model stores several objects per chunk.",
            "short",
            [
                Query(f"sum({ALL.stored_chunks()})", "stored"),
                Query(ALL.avoided_chunks("$chunk"), "avoided (estimate)"),
                Query(f"sum({ALL.per_server(servers.L1_EVICTED)})", "evicted from L1"),
                Query(f"sum({ALL.per_server(servers.L2_EVICTED)})", "evicted from L2"),
            ],
            NO_SERVER,
            colours={"stored": "blue", "avoided (estimate)": "orange"},
        ),
        timeseries(
            "Do LMCache's stores react?",
            f"Tokens stored over tokens missed in {STORED_WINDOW}. LMCache that honours the hint stays near or below the line of what was "
            "not skipped; one that ignores it stays near 1, whatever is skipped. Stores of clients without this package count too. From "
            "recorded series (fleet-wide).",
            "percentunit",
            [
                Query(STORED_OF_MISSED, "stored of missed"),
                Query(f"1 - {SKIP_SENT_TOKENS_LONG}", "not skipped"),
            ],
            "too few lookups, an LMCache before 0.5.6, or rules not loaded",
            colours={"stored of missed": "blue", "not skipped": "orange"},
        ),
        timeseries(
            "L1 usage",
            "Share of L1 in use. On a GB10 this memory is the GPU's too. LMCache evicts when it is full.",
            "percentunit",
            [Query(f"max by (instance) ({ALL.select(servers.L1_RATIO)})", "{{instance}}")],
            NO_SERVER,
            width=8,
            high=1,
            thresholds=[Threshold(limits.L1_FULL_RATIO, "orange")],
        ),
        timeseries(
            "L1 headroom",
            "Bytes left in L1. LMCache does not expose its size: usage over usage ratio gives it, so an empty L1 has no data.",
            "bytes",
            [Query(ALL.l1_free(), "{{instance}}")],
            f"{NO_SERVER}, or an empty L1",
            width=8,
        ),
        timeseries(
            "L2 usage",
            "Bytes in each L2 backend, as LMCache accounts them. Two backends of one type share a name.",
            "bytes",
            [
                Query(
                    f"sum by (instance, l2_name) ({ALL.select(servers.L2_BYTES)})",
                    "{{instance}} {{l2_name}}",
                )
            ],
            f"{NO_SERVER}, or no L2",
            width=8,
        ),
        timeseries(
            "Stores lost for want of L1 memory",
            "Chunks per second that found no room in L1.",
            "short",
            [Query(ALL.per_server(servers.L1_ALLOCATION_FAILURES), "{{instance}}")],
            NO_SERVER,
            width=8,
        ),
        timeseries(
            "vLLM's own prefix cache",
            "Share of the prompt tokens that vLLM found in GPU memory, and share of the rest that LMCache supplied. Skipping does "
            "not affect the "
            "first.",
            "percentunit",
            [
                Query(
                    f"{ALL.rate(servers.PREFIX_HITS)} / ({ALL.rate(servers.PREFIX_QUERIES)} > 0)",
                    "vLLM prefix cache",
                ),
                Query(
                    f"{ALL.rate(servers.EXTERNAL_HITS)} / ({ALL.rate(servers.EXTERNAL_QUERIES)} > 0)",
                    "external (LMCache)",
                ),
            ],
            NO_VLLM,
            width=8,
            high=1,
            colours={"vLLM prefix cache": "blue", "external (LMCache)": "green"},
        ),
        timeseries(
            "Prompt tokens by source",
            "Where vLLM got the prompt tokens from: computed, its own cache, LMCache (external_kv_transfer).",
            "short",
            [Query(ALL.rate(servers.PROMPT_TOKENS_BY_SOURCE, by=("source",)), "{{source}}")],
            NO_VLLM,
            width=8,
            stack=True,
            colours={
                "local_compute": "#808080",
                "local_cache_hit": "blue",
                "external_kv_transfer": "green",
            },
        ),
    ]


def _back() -> list[Panel]:
    parent = f'{{ span.{names.DECISION} = "%s" && span.{names.REQUEST_MODEL} =~ "$model" }}'
    first_token = "span.gen_ai.latency.time_to_first_token"
    prefill = "span.gen_ai.latency.time_in_model_prefill"

    def server_span(decision: str, attribute: str) -> str:
        return f"{parent % decision} >> {{ {attribute} > 0 }} | quantile_over_time({attribute}, .5)"

    return [
        timeseries(
            "Cached share of prompt tokens, by decision",
            "Did stored calls come back? Share of the prompt tokens that the server says came from a cache (vLLM's and LMCache's "
            "together), of "
            "calls whose usage it reported. Skipped calls with a large share were asked for again after all.",
            "percentunit",
            [Query(ALL.cached_share(), _BY_DECISION)],
            "no calls, or a server without --enable-prompt-tokens-details",
            width=8,
            high=1,
            links=[TO_SKIPPED],
        ),
        timeseries(
            "Duration of calls, by decision",
            "Median and 95th percentile of the chat span, from the Collector's span metrics over all calls: the whole answer, not "
            "its first "
            "token. Time to first token by decision is in the two panels on traces.",
            "s",
            [
                Query(
                    ALL.quantile(0.5, servers.SPAN_DURATION, f'{_DECISION}!=""', by=(_DECISION,)),
                    f"p50 {_BY_DECISION}",
                    exemplar=True,
                ),
                Query(
                    ALL.quantile(0.95, servers.SPAN_DURATION, f'{_DECISION}!=""', by=(_DECISION,)),
                    f"p95 {_BY_DECISION}",
                    exemplar=True,
                ),
            ],
            NO_SPANS,
            width=8,
        ),
        timeseries(
            "Time to first token and prefill, all calls",
            "vLLM's own histograms, which do not know the decision. Of prefill the mean: its buckets start at 0.3 s, so quantiles "
            "below are guesses.",
            "s",
            [
                Query(ALL.quantile(0.5, servers.FIRST_TOKEN), "first token p50"),
                Query(ALL.quantile(0.95, servers.FIRST_TOKEN), "first token p95"),
                Query(
                    f"{ALL.rate(servers.PREFILL_TIME, suffix='_sum')} / ({ALL.rate(servers.PREFILL_TIME, suffix='_count')} > 0)",
                    "prefill mean",
                ),
            ],
            NO_VLLM,
            width=8,
        ),
        trace_metrics(
            "Time to first token, by decision (requires Tempo)",
            "Median, from vLLM's llm_request spans below the client's (vLLM with --otlp-traces-endpoint). Of sampled traces: all skipped "
            "calls, and an unbiased share of the others.",
            "s",
            [
                (server_span(names.STORE, first_token), names.STORE),
                (server_span(names.SKIP, first_token), names.SKIP),
            ],
            "no Tempo, no TraceQL metrics there, or no spans of vLLM",
        ),
        trace_metrics(
            "Prefill time, by decision (requires Tempo)",
            "Median time in prefill, from the same spans.",
            "s",
            [
                (server_span(names.STORE, prefill), names.STORE),
                (server_span(names.SKIP, prefill), names.SKIP),
            ],
            "no Tempo, no TraceQL metrics there, or no spans of vLLM",
        ),
    ]


def _in_process() -> list[Panel]:
    nothing = "no in-process LMCache"
    return [
        timeseries(
            "Tokens looked up, found, stored",
            "Tokens per second. The in-process connector counts tokens, not chunks, and does not tell its tiers apart.",
            "short",
            [
                Query(ALL.rate(servers.IN_LOOKUP_TOKENS), "looked up"),
                Query(ALL.rate(servers.IN_LOOKUP_HITS), "found"),
                Query(ALL.rate(servers.IN_STORED_TOKENS), "stored"),
            ],
            nothing,
            width=8,
        ),
        timeseries(
            "Memory and backend usage",
            "Bytes held in memory and in the remote backend.",
            "bytes",
            [
                Query(
                    f"sum by (instance) ({ALL.select(servers.IN_LOCAL_BYTES)})",
                    "{{instance}} memory",
                ),
                Query(
                    f"sum by (instance) ({ALL.select(servers.IN_REMOTE_BYTES)})",
                    "{{instance}} remote",
                ),
            ],
            nothing,
            width=8,
        ),
        timeseries(
            "Evictions from memory",
            "Chunks per second.",
            "short",
            [Query(ALL.rate(servers.IN_EVICTED_KEYS, by=("instance",)), "{{instance}}")],
            nothing,
            width=8,
        ),
    ]

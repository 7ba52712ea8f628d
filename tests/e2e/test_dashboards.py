"""The dashboards against a real vLLM with LMCache under traffic: data in panels, and its values.

See conftest.py for how the tests find or start the pair.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from dashboards.source.queries import NAMES_STATES

from ..dashboards.built import DASHBOARDS, fill, panel_expr, panel_queries
from ..dashboards.live import App, Prometheus, target, until
from .pairs import Pair

pytestmark = pytest.mark.e2e

# Panels that are empty for a real pair on a CPU: it loses and evicts nothing, and neither host
# exporters nor a Collector run.
WITHOUT = (
    *(
        "GPU",
        "Available memory",
        "Unified memory",
        "Pressure",
        "Disk",
        "Free disk space",
        "Network",
        "Duration of calls",
        "All reasons",
        "Errors",
        "Memory and backend",
    ),
    *(
        "Evictions from",
        "Tokens looked up, found, stored",
        "Does LMCache honor the hint?",
        "Correlation",
    ),
)


def test_panels_of_a_real_pair(real_pair: Pair, tmp_path: Path) -> None:
    ports = [int(url.rsplit(":", 1)[1]) for url in (real_pair.url, real_pair.lmcache_url)]
    # The model is tiny and its context short, so prompts and the threshold are smaller.
    with App(
        model=real_pair.model, scale=0.3, KV_CACHE_MIN_PREFIX_TOKENS="400", KV_CACHE_SHADOW="true"
    ) as app:
        targets = [
            target("app", "app:1", app.port),
            target("vllm", "gb10:8000", ports[0]),
            target("lmcache", "gb10:8080", ports[1]),
        ]
        with Prometheus(tmp_path, targets) as prometheus:
            seen = app.calls(
                real_pair.base_url, *("store", "skip", "store", "store", "caller", "store")
            )
            until(lambda: prometheus.number("count(up == 1)") == 3, "all are scraped")
            for _ in range(4):
                real_pair.empty_vllm()
                seen += app.calls(real_pair.base_url, "store", "skip", "store", "store", "caller")
            calls = fill(panel_expr("Calls"))
            until(lambda: prometheus.number(calls) == len(seen), "all calls are counted")
            skipped = sum(call["kind"] != "store" for call in seen) / len(seen)
            assert prometheus.number(fill(panel_expr("Skipped calls"))) == pytest.approx(skipped)
            (state,) = prometheus.vector(fill(panel_expr("LMCache metrics")))
            assert NAMES_STATES[int(state[1])][0] == NAMES_STATES[1][0]
            hits = prometheus.number(
                fill(panel_expr("Skip ratio and hit rates", "L1 + L2 hit rate"))
            )
            assert hits is not None
            assert 0 < hits < 1

            silent = []
            for asked in itertools.chain.from_iterable(map(panel_queries, DASHBOARDS.values())):
                found = prometheus.vector(fill(asked.expr))
                assert all(math.isfinite(value) for _, value in found), str(asked)
                if not found and not asked.name.startswith(WITHOUT):
                    silent.append(str(asked))
            assert not silent

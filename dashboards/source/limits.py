"""The numbers that carry a judgement. Panels colour by them and alerts fire by them, so they are the same everywhere."""

from __future__ import annotations

from typing import Final

MEMORY_LOW_BYTES: Final = 8 * 2**30
"""Unified memory left, below which a GB10 is close to freezing."""

L1_FULL_RATIO: Final = 0.9
"""L1 usage from which evictions are to be expected."""

SKIP_JUMP: Final = 0.3
"""Change of the skip ratio against the hour before that somebody should look at."""

SKIP_ROSE: Final = 0.15
HIT_FELL: Final = 0.15
"""Skip ratio up and hit rate down by this much at once: the policy may be skipping what comes back."""

IGNORED_MIN_SKIP: Final = 0.2
"""Share of tokens under an applied skip hint from which LMCache's stores must show it."""

IGNORED_EFFECT: Final = 0.5
"""Part of the expected reduction of stores that must be seen."""

THRASH_EVICTED: Final = 0.8
THRASH_RELOADED: Final = 0.3
"""Evictions, and loads back from L2, as shares of the writes to L1: above both, L1 loses what is still wanted."""

MIN_CALLS_PER_SECOND: Final = 0.02
"""Traffic below which a ratio is noise (about one call in 50 seconds)."""

CORRELATION_MIN_SAMPLES: Final = 30
"""Samples below which a correlation says nothing."""

GPU_HOT_CELSIUS: Final = 85
QUEUE_LONG: Final = 10
KV_FULL_RATIO: Final = 0.95
PRESSURE_HIGH: Final = 0.1
"""Share of time in which some task waited for memory."""

"""The numbers that separate good from bad. Panels color by them and alerts fire on them."""

from __future__ import annotations

from typing import Final

MEMORY_LOW_BYTES: Final = 8 * 2**30
"""Available unified memory below which a GB10 is close to freezing."""

L1_FULL_RATIO: Final = 0.9
"""L1 usage from which LMCache can be expected to evict."""

SKIP_JUMP: Final = 0.3
"""Change of the skip ratio against the hour before that an operator should look at."""

SKIP_ROSE: Final = 0.15
HIT_FELL: Final = 0.15
"""If the skip ratio rises and the hit rate falls by this much, the policy may be skipping prompts
that come back."""

IGNORED_MIN_SKIP: Final = 0.2
"""Share of tokens with a skip hint from which LMCache's stores must show an effect."""

IGNORED_EFFECT: Final = 0.5
"""Part of the expected reduction of stores that must be seen."""

THRASH_EVICTED: Final = 0.8
THRASH_RELOADED: Final = 0.3
"""Evictions and loads from L2, as shares of the writes to L1. Above both, L1 loses chunks that are
still in use."""

MIN_CALLS_PER_SECOND: Final = 0.02
"""Traffic below which a ratio is noise: about one call in 50 seconds."""

CORRELATION_MIN_SAMPLES: Final = 30
"""Samples below which a correlation has no meaning."""

OBSERVED_SHARE: Final = 0.001
"""Share of calls in observe mode from which the mode is shown as observe."""

GPU_HOT_CELSIUS: Final = 85
QUEUE_LONG: Final = 10
KV_FULL_RATIO: Final = 0.95
PRESSURE_HIGH: Final = 0.1
"""Share of time in which at least one task waited for memory."""

ANY: Final = 1
"""One event is one too many: rejected hints, errors, dropped events, failing scrapes."""

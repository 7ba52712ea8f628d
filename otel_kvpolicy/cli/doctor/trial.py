"""One trial: a fresh random prompt sent with a hint, then asked after. What LMCache holds of it is known in three ways.

* Told: LMCache's connectors say on request how many tokens of a prompt they found (multi-process: ``cached_token_stats``, from 0.4.7;
  in-process: with ``enable_cache_usage_details_in_response``). Sent a second time, nobody else's traffic can confuse that.
* Salted: the second sending under another ``cache_salt`` misses vLLM's own cache but not LMCache's in-process connector, which knows no
  salt: then ``cached_tokens`` is LMCache's share.
* Counted: what the server's own counters of stored chunks moved while the trial ran, with other traffic in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...hints.lmcache import LMCACHE, MAX_OFFLOAD_KEY
from ...policy.decision import SKIP_SAVE_KEY

STORE: Final = "store"
CONTROL: Final = "control"
ARMS: Final[dict[str, dict[str, Any]]] = {
    STORE: LMCACHE.params(skip=False),
    "skip_save": {SKIP_SAVE_KEY: True},
    "max_offload_tokens": {MAX_OFFLOAD_KEY: 0},
    "both": LMCACHE.params(skip=True),
}
"""Name -> ``kv_transfer_params`` of the first sending."""


@dataclass(frozen=True)
class Trial:
    """What one trial, or one idle window of control, showed.

    Attributes:
        arm: its hint.
        chunks: whole chunks of its prompt; for a control, of the trial before it.
        counted: chunks that the server's counter of stored chunks moved by, others' included; None without a counter.
        told: chunks that LMCache said it held, at the second sending; None where it does not say.
        salted: chunks that came from a cache at the second sending under another salt; None where usage does not say.
        cached_tokens: ``usage.prompt_tokens_details.cached_tokens`` of the second sending, vLLM's own hits included.
        refused: what the server said when it refused the hint.
        text: the prompt, to be asked after again.
    """

    arm: str
    chunks: int
    counted: float | None = None
    told: int | None = None
    salted: int | None = None
    cached_tokens: int | None = None
    refused: str | None = None
    text: str = field(default="", repr=False)

    @property
    def attributed(self) -> int | None:
        """Chunks of this very prompt that LMCache held afterwards, where that can be known."""
        return self.told if self.told is not None else self.salted

    def as_json(self) -> dict[str, Any]:
        """All but the prompt, which is noise."""
        return {name: value for name, value in vars(self).items() if name != "text"}

"""One trial: a fresh random prompt sent with a hint, then asked after. What LMCache holds of it is known in three ways.

* Told: LMCache's connectors say on request how many tokens of a prompt they found (multi-process: ``cached_token_stats``, from 0.4.7;
  in-process: with ``enable_cache_usage_details_in_response``). Sent a second time, nobody else's traffic can confuse that.
* Salted: the second sending under another ``cache_salt`` misses vLLM's own cache but not LMCache's in-process connector, which knows no
  salt: then ``cached_tokens`` is LMCache's share.
* Counted: what the server's own counters of stored chunks moved while the trial ran, with other traffic in it.
"""

from __future__ import annotations

import random
import secrets
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..hint import FIELD, MAX_OFFLOAD_KEY, hint_params
from ..policy.decision import SKIP_SAVE_KEY
from ..requests import read_answer
from .http import Http, RefusedError, ServerError
from .pages import Page
from .servers import Mode

__all__ = ["ARMS", "CONTROL", "STORE", "Bench", "Plan", "Trial"]

STORE: Final = "store"
CONTROL: Final = "control"
ARMS: Final[dict[str, dict[str, Any]]] = {
    STORE: hint_params(skip=False),
    "skip_save": {SKIP_SAVE_KEY: True},
    "max_offload_tokens": {MAX_OFFLOAD_KEY: 0},
    "both": hint_params(skip=True),
}
"""Name -> ``kv_transfer_params`` of the first sending."""

_ASK: Final = {**hint_params(skip=True), "cached_token_stats": True}
_CHUNKS: Final = 3
_CALIBRATION_WORDS: Final = 60
_RESERVED_TOKENS: Final = 64
_POLL_SECONDS: Final = 0.05
_STORE_SECONDS: Final = 3.0
_STORE_TRIES: Final = 3


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
    """

    arm: str
    chunks: int
    counted: float | None = None
    told: int | None = None
    salted: int | None = None
    cached_tokens: int | None = None
    refused: str | None = None

    @property
    def attributed(self) -> int | None:
        """Chunks of this very prompt that LMCache held afterwards, where that can be known."""
        return self.told if self.told is not None else self.salted


@dataclass(frozen=True)
class Plan:
    """How trials are run.

    Attributes:
        model: the model to ask.
        chunk: tokens of a chunk.
        limit: tokens of the longest prompt, where known.
        mode: whose counters say what is stored.
        settle: seconds to wait for a store to show.
        refresh: seconds between two updates of the server's counters; LMCache's in-process connector takes ten.
    """

    model: str
    chunk: int
    limit: int | None
    mode: Mode
    settle: float
    refresh: float


class Bench:
    """Runs trials against one server.

    Args:
        vllm: the server that is asked.
        counters: reads the page on which stored chunks are counted.
        plan: how.
    """

    def __init__(self, vllm: Http, counters: Callable[[], Page | None], plan: Plan) -> None:
        self._vllm = vllm
        self._counters = counters
        self._plan = plan
        self._counts = plan.mode != "unknown"
        self._words = 0
        self._lag = 0.0
        self.reports_cached = False

    def calibrate(self) -> None:
        """Finds out with one short prompt, without a hint, how long a text fills the wanted chunks.

        Raises:
            ServerError: the server cannot be asked, or no prompt it takes fills a chunk.
        """
        try:
            answer = self._send(_text(_CALIBRATION_WORDS), None)
        except RefusedError as refused:
            raise ServerError(f"the server refuses a plain chat call: {refused}") from None
        usage = read_answer(answer)
        self.reports_cached = usage.cached_tokens is not None
        per_word = max(1.0, (usage.input_tokens or _CALIBRATION_WORDS) / _CALIBRATION_WORDS)
        wanted = int((_CHUNKS + 0.5) * self._plan.chunk)
        if self._plan.limit is not None:
            wanted = min(wanted, self._plan.limit - _RESERVED_TOKENS)
        if wanted < 1.2 * self._plan.chunk:
            raise ServerError(
                f"the longest prompt this model takes ({self._plan.limit} tokens) does not fill a chunk of {self._plan.chunk} tokens"
            )
        self._words = int(wanted / per_word)

    def trial(self, arm: str) -> Trial:
        """Sends a fresh prompt with the hint of ``arm``, waits, and asks what became of it."""
        text = _text(self._words)
        before = self.stored_chunks()
        try:
            answer = self._send(text, ARMS[arm])
        except RefusedError as refused:
            return Trial(arm, 0, refused=str(refused))
        chunks = (read_answer(answer).input_tokens or 0) // self._plan.chunk
        counted = self._wait(before, chunks, early=arm == STORE)
        told, cached = self._ask(text)
        for _ in range(_STORE_TRIES if arm == STORE and told == 0 else 0):
            self._wait(None, 1, early=False)
            told, cached = self._ask(text)
            if told:
                break
        salted = self._ask_salted(text) if told is None else None
        if arm == STORE and (told or salted) and self._plan.refresh:
            self._counts = False  # this very prompt can be told, so there is no need to wait for slow counters
        return Trial(arm, chunks, counted, told, salted, cached)

    def control(self, chunks: int) -> Trial:
        """Sends nothing for as long as a trial takes, to see what other traffic stores."""
        return Trial(CONTROL, chunks, self._wait(self.stored_chunks(), chunks, early=False))

    def stored_chunks(self) -> float | None:
        """Chunks that requests have stored so far, as the server counts them."""
        if not self._counts:
            return None
        page = self._counters()
        if page is None:
            return None
        if self._plan.mode == "in_process":
            return page.total("lmcache:num_stored_tokens_total") / self._plan.chunk
        written = page.total("lmcache_mp_l1_write_chunks_total")
        return written - page.total("lmcache_mp_l2_prefetch_load_completed_chunks_total")  # chunks that came back from L2 count as written

    def _wait(self, before: float | None, chunks: int, *, early: bool) -> float | None:
        """Waits for a store to show and returns by how much the counter moved.

        A trial that is to store ends once it has, which tells how long that takes here; the others wait well longer than that.
        """
        start = time.monotonic()
        settle = self._plan.settle if before is None else max(self._plan.settle, 3 * self._lag, 1.2 * self._plan.refresh)
        end = start + (max(10 * settle, _STORE_SECONDS) if early and before is not None else settle)
        while True:
            left = max(0.0, end - time.monotonic())
            time.sleep(min(_POLL_SECONDS, left) if early else left)
            now = self.stored_chunks()
            moved = None if before is None or now is None else now - before
            if early and moved is not None and moved >= chunks:
                self._lag = max(self._lag, time.monotonic() - start)
                return moved
            if time.monotonic() >= end:
                return moved

    def _send(self, text: str, params: Mapping[str, Any] | None, **fields: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._plan.model, "messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}
        if params is not None:
            body[FIELD] = dict(params)
        return self._vllm.chat(body)

    def _ask(self, text: str) -> tuple[int | None, int | None]:
        """Sends the prompt again, not to be stored, and returns the chunks LMCache says it has, and the cached tokens."""
        answer = self._send(text, _ASK)
        params = answer.get(FIELD)
        params = params if isinstance(params, Mapping) else {}
        stats = params.get("cached_token_stats")
        told = (stats if isinstance(stats, Mapping) else params).get("num_lmcache_cached_tokens")
        return (told // self._plan.chunk if isinstance(told, int) else None), read_answer(answer).cached_tokens

    def _ask_salted(self, text: str) -> int | None:
        cached = read_answer(self._send(text, _ASK, cache_salt=secrets.token_hex(8))).cached_tokens
        return None if cached is None else -(-cached // self._plan.chunk)  # the last chunk counts less the token vLLM always computes


def _text(words: int) -> str:
    """Words that nobody has sent before, from the first on."""
    source = random.SystemRandom()
    return " ".join("".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(words))

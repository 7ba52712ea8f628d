"""Trials: send a random prompt with a hint, then find out how much of it LMCache stored.

There are three ways to find out:

* LMCache's report. Its connectors report on request how many tokens of a prompt they had: the
  multi-process one with ``cached_token_stats`` (since 0.4.7), the in-process one if it runs with
  ``enable_cache_usage_details_in_response``. Other traffic cannot disturb this.
* Cached tokens. The prompt is sent again under a new ``cache_salt``. It then misses vLLM's own
  cache but not LMCache's in-process connector, which ignores the salt. So the cached tokens that
  ``usage`` reports are LMCache's.
* The store counter: how many chunks the server stored during the trial, other traffic included.
"""

from __future__ import annotations

import random
import secrets
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ... import series
from ...hints.kv_transfer_params import FIELD
from ...hints.lmcache import LMCACHE, MAX_OFFLOAD_KEY, STATS_KEY
from ...policy.decision import SKIP_SAVE_KEY
from ...requests import read_answer
from ..http import Http, RefusedError, ServerError
from ..metrics_page import Page
from .server_facts import Mode

STORE: Final = "store"
CONTROL: Final = "control"
ARMS: Final[dict[str, dict[str, Any]]] = {
    STORE: LMCACHE.params(skip=False),
    "skip_save": {SKIP_SAVE_KEY: True},
    "max_offload_tokens": {MAX_OFFLOAD_KEY: 0},
    "both": LMCACHE.params(skip=True),
}
"""Name of each hint -> ``kv_transfer_params`` that a trial sends with its prompt."""

_ASK_PARAMS: Final = LMCACHE.params(skip=True, stats=True)
_CHUNKS: Final = 3
_SAMPLE_WORDS: Final = 60
_RESERVED_TOKENS: Final = 64
_POLL_SECONDS: Final = 0.05
_STORE_WAITS: Final = 10
_STORE_TRIES: Final = 3


@dataclass(frozen=True)
class Trial:
    """The result of one trial, or of one idle window (the control).

    Attributes:
        arm: name of the hint, or ``control``.
        chunks: whole chunks of the prompt; for a control, of a prompt of the same round.
        counted_chunks: how much the server's store counter rose, other traffic included; None if
            there is no counter.
        reported_chunks: chunks that LMCache reports it had when asked; None if it reports nothing.
        cached_chunks: chunks that came from a cache when asked under a new salt; None if ``usage``
            does not say.
        cached_tokens: ``usage.prompt_tokens_details.cached_tokens`` when asked, vLLM's own hits
            included.
        refused: what the server answered if it refused the hint.
        text: the prompt, to be able to ask again.
    """

    arm: str
    chunks: int
    counted_chunks: float | None = None
    reported_chunks: int | None = None
    cached_chunks: int | None = None
    cached_tokens: int | None = None
    refused: str | None = None
    text: str = field(default="", repr=False)

    @property
    def held_chunks(self) -> int | None:
        """Chunks of this prompt that LMCache had afterwards; None if that cannot be known."""
        return self.cached_chunks if self.reported_chunks is None else self.reported_chunks

    def as_json(self) -> dict[str, Any]:
        """Return the result for scripts, without the random prompt."""
        return {
            "arm": self.arm,
            "chunks": self.chunks,
            "counted": self.counted_chunks,
            "told": self.reported_chunks,
            "salted": self.cached_chunks,
            "cached_tokens": self.cached_tokens,
            "refused": self.refused,
        }


class PromptSize(NamedTuple):
    """How long the prompts of the trials are.

    Attributes:
        words: random words that fill the wanted number of chunks.
        reports_cached: whether ``usage`` reported cached tokens.
    """

    words: int
    reports_cached: bool


def measure(vllm: Http, model: str, chunk: int, limit: int | None) -> PromptSize:
    """Find out how many words fill the wanted chunks, with one short prompt and no hint.

    Args:
        vllm: the server to ask.
        model: the model to ask.
        chunk: tokens of a chunk.
        limit: tokens of the longest prompt, if known.

    Raises:
        ServerError: the server cannot be asked, or its longest prompt does not fill a chunk.
    """
    try:
        usage = read_answer(vllm.chat(_body(model, _random_text(_SAMPLE_WORDS))))
    except RefusedError as refused:
        text = f"the server refuses a plain chat call: {refused}"
        raise ServerError(text, "plain_call_refused") from None
    tokens_per_word = max(1.0, (usage.input_tokens or _SAMPLE_WORDS) / _SAMPLE_WORDS)
    wanted = int((_CHUNKS + 0.5) * chunk)
    if limit is not None:
        wanted = min(wanted, limit - _RESERVED_TOKENS)
    if wanted < 1.2 * chunk:
        text = (
            f"the longest prompt of this model ({limit} tokens) does not fill a chunk of {chunk} "
            "tokens, so LMCache stores nothing"
        )
        raise ServerError(text, "prompt_below_chunk")
    return PromptSize(int(wanted / tokens_per_word), usage.cached_tokens is not None)


@dataclass(frozen=True)
class Plan:
    """How trials are run.

    Attributes:
        model: the model to ask.
        chunk: tokens of a chunk.
        words: words of a prompt.
        mode: how vLLM reaches LMCache, which says what the store counter is called.
        settle: seconds to wait until a store shows.
        refresh: seconds between two updates of the server's counters; LMCache's in-process
            connector takes ten.
    """

    model: str
    chunk: int
    words: int
    mode: Mode
    settle: float
    refresh: float


class _Holding(NamedTuple):
    """What the second sending of a prompt showed; the fields are those of :class:`Trial`."""

    reported_chunks: int | None = None
    cached_chunks: int | None = None
    cached_tokens: int | None = None

    @property
    def has_chunks(self) -> bool:
        """Whether LMCache had any chunk of the prompt."""
        return bool(self.reported_chunks or self.cached_chunks)


class Probe:
    """Runs trials against one server.

    Args:
        vllm: the server to ask.
        read_counters: returns the metrics page that has the store counter.
        plan: how trials are run.
    """

    def __init__(self, vllm: Http, read_counters: Callable[[], Page | None], plan: Plan) -> None:
        self._vllm = vllm
        self._read_counters = read_counters
        self._plan = plan
        self._uses_counters = plan.mode != "unknown"
        self._store_seconds = 0.0
        self._reports_cached = False

    def run(self, arm: str) -> Trial:
        """Send a new prompt with the hint of ``arm``, wait, and find out what was stored.

        Raises:
            ServerError: the server cannot be asked, or refuses the prompt without the hint, too.
        """
        text = _random_text(self._plan.words)
        before = self.stored_chunks()
        try:
            answer = self._vllm.chat(_body(self._plan.model, text, ARMS[arm]))
        except RefusedError as refused:
            self._send_plain(text)
            return Trial(arm, 0, refused=str(refused))
        chunks = (read_answer(answer).input_tokens or 0) // self._plan.chunk
        if arm == STORE:
            counted, holding = self._wait_for_store(text, before, chunks)
        else:
            counted, holding = self._counted_after_wait(before), self._ask(text)
        return Trial(arm, chunks, counted, *holding, text=text)

    def ask_again(self, trial: Trial) -> Trial:
        """Return the trial with the result of asking once more, in case its store came late.

        Asking stores nothing if the server follows the hint. So if LMCache has any of the prompt
        now, it was stored in spite of the trial's hint.
        """
        if trial.arm == STORE or trial.held_chunks != 0:
            return trial
        holding = self._ask(trial.text)
        if not holding.has_chunks:
            return trial
        return replace(
            trial,
            reported_chunks=holding.reported_chunks,
            cached_chunks=holding.cached_chunks,
        )

    def control(self, chunks: int) -> Trial:
        """Send nothing for as long as a trial takes, to see what other traffic stores."""
        return Trial(CONTROL, chunks, self._counted_after_wait(self.stored_chunks()))

    def stored_chunks(self) -> float | None:
        """Return how many chunks the server has counted as stored; None without a counter."""
        page = self._read_counters() if self._uses_counters else None
        if page is None:
            return None
        if self._plan.mode == "in_process":
            return page.total(series.IN_STORED_TOKENS) / self._plan.chunk
        # LMCache counts chunks that came back from L2 as written to L1.
        return page.total(series.L1_WRITE) - page.total(series.L2_LOADED)

    def _counted_after_wait(self, before: float | None) -> float | None:
        """Wait well longer than a store was seen to take; return the rise of the counter."""
        patience = max(self._plan.settle, 3 * self._store_seconds)
        time.sleep(patience if before is None else patience + 1.2 * self._plan.refresh)
        return self._counted_since(before)

    def _counted_since(self, before: float | None) -> float | None:
        now = None if before is None else self.stored_chunks()
        return None if before is None or now is None else now - before

    def _wait_for_store(
        self, text: str, before: float | None, chunks: int
    ) -> tuple[float | None, _Holding]:
        """Wait until a prompt that is to be stored is, and learn how long that takes here."""
        counted, holding, started = None, _Holding(), time.monotonic()
        if before is None or self._plan.refresh:
            # Asking is quicker than a counter that is seldom updated.
            time.sleep(self._plan.settle)
            started = time.monotonic()
            holding = self._ask(text)
            self._uses_counters = self._uses_counters and not holding.has_chunks
        seen = started
        if before is not None and self._uses_counters:
            counted = self._wait_for_count(before, chunks)
            seen = time.monotonic()
            holding = holding if holding.has_chunks else self._ask(text)
        for _ in range(_STORE_TRIES if self._may_be_late(holding) else 0):
            time.sleep(self._plan.settle)
            seen = time.monotonic()
            holding = self._ask(text)
            if holding.has_chunks:
                break
        if holding.has_chunks or (counted or 0) >= chunks:
            took = seen - started - self._plan.refresh
            self._store_seconds = max(self._store_seconds, took)
        return counted, holding

    def _may_be_late(self, holding: _Holding) -> bool:
        """Return whether a prompt that LMCache did not have could still show up.

        Cached tokens say so only for the in-process connector, the one that ignores the salt.
        """
        return holding.reported_chunks == 0 or (
            holding.reported_chunks is None
            and holding.cached_chunks == 0
            and self._plan.mode == "in_process"
        )

    def _wait_for_count(self, before: float, chunks: int) -> float | None:
        patience = _STORE_WAITS * self._plan.settle + 2 * self._plan.refresh
        end = time.monotonic() + patience
        counted = self._counted_since(before)
        while counted is not None and counted < chunks and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            counted = self._counted_since(before)
        return counted

    def _send_plain(self, text: str) -> None:
        """Make sure that it was the hint that the server refused, not the prompt."""
        try:
            self._vllm.chat(_body(self._plan.model, text))
        except RefusedError as refused:
            message = (
                f"the server refuses a prompt of {_CHUNKS} chunks of {self._plan.chunk} tokens "
                f"without a hint: {refused}"
            )
            raise ServerError(message, "prompt_refused") from None

    def _ask(self, text: str) -> _Holding:
        """Send the prompt again, not to be stored, and return what LMCache had of it.

        If LMCache reports nothing, sends it a second time under a new salt.
        """
        try:
            answer = self._vllm.chat(_body(self._plan.model, text, _ASK_PARAMS))
        except RefusedError:
            return _Holding()
        params = answer.get(FIELD)
        params = params if isinstance(params, Mapping) else {}
        stats = params.get(STATS_KEY)
        report = stats if isinstance(stats, Mapping) else params
        tokens = report.get("num_lmcache_cached_tokens")
        cached = self._cached_tokens(answer)
        if isinstance(tokens, int):
            return _Holding(tokens // self._plan.chunk, None, cached)
        return _Holding(None, self._ask_with_salt(text), cached)

    def _ask_with_salt(self, text: str) -> int | None:
        body = _body(self._plan.model, text, _ASK_PARAMS, cache_salt=secrets.token_hex(8))
        try:
            cached = self._cached_tokens(self._vllm.chat(body))
        except RefusedError:
            return None
        # Round up: vLLM always computes the last token, so it is missing from the last chunk.
        return None if cached is None else -(-cached // self._plan.chunk)

    def _cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        """Return the cached tokens that ``usage`` reports; None if the server never reports any.

        A vLLM that reports cached tokens may leave the field out if there are none.
        """
        cached = read_answer(answer).cached_tokens
        self._reports_cached |= cached is not None
        return 0 if cached is None and self._reports_cached else cached


def _body(
    model: str, text: str, params: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        **fields,
    }
    if params is not None:
        body[FIELD] = dict(params)
    return body


def _random_text(words: int) -> str:
    """Return random words, so that no cache has any part of the prompt."""
    source = random.SystemRandom()
    return " ".join("".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(words))

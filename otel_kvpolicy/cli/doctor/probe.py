"""The bench that runs trials against one server, and what it needs to know of it before."""

from __future__ import annotations

import random
import secrets
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ... import series
from ...hints.lmcache import FIELD, LMCACHE, STATS_KEY
from ...requests import read_answer
from ..http import Http, RefusedError, ServerError
from ..metrics_page import Page
from .server_facts import Mode
from .trial import ARMS, CONTROL, STORE, Trial

_ASK: Final = LMCACHE.params(skip=True, stats=True)
_CHUNKS: Final = 3
_MEASURED_WORDS: Final = 60
_RESERVED_TOKENS: Final = 64
_POLL_SECONDS: Final = 0.05
_STORE_SETTLES: Final = 10
_STORE_TRIES: Final = 3


class Size(NamedTuple):
    """How long a prompt is to be.

    Attributes:
        words: of random text that fill the wanted chunks.
        reports_cached: whether usage said how many tokens came from a cache.
    """

    words: int
    reports_cached: bool


def measure(vllm: Http, model: str, chunk: int, limit: int | None) -> Size:
    """Finds out with one short prompt, without a hint, how long a text fills the wanted chunks.

    Args:
        vllm: the server that is asked.
        model: the model to ask.
        chunk: tokens of a chunk.
        limit: tokens of the longest prompt, where known.

    Raises:
        ServerError: the server cannot be asked, or no prompt it takes fills a chunk.
    """
    try:
        usage = read_answer(vllm.chat(_body(model, _text(_MEASURED_WORDS))))
    except RefusedError as refused:
        raise ServerError(f"the server refuses a plain chat call: {refused}") from None
    per_word = max(1.0, (usage.input_tokens or _MEASURED_WORDS) / _MEASURED_WORDS)
    wanted = int((_CHUNKS + 0.5) * chunk)
    if limit is not None:
        wanted = min(wanted, limit - _RESERVED_TOKENS)
    if wanted < 1.2 * chunk:
        raise ServerError(
            f"the longest prompt this model takes ({limit} tokens) does not fill a chunk of {chunk} tokens"
        )
    return Size(int(wanted / per_word), usage.cached_tokens is not None)


@dataclass(frozen=True)
class Plan:
    """How trials are run.

    Attributes:
        model: the model to ask.
        chunk: tokens of a chunk.
        words: of a prompt.
        mode: whose counters say what is stored.
        settle: seconds to wait for a store to show.
        refresh: seconds between two updates of the server's counters; LMCache's in-process connector takes ten.
    """

    model: str
    chunk: int
    words: int
    mode: Mode
    settle: float
    refresh: float


class _Held(NamedTuple):
    """What a second sending of a prompt showed; see :class:`Trial`."""

    told: int | None
    salted: int | None
    cached_tokens: int | None

    @property
    def found(self) -> bool:
        """Whether LMCache held any of it."""
        return bool(self.told or self.salted)


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
        self._lag = 0.0
        self._reports_cached = False

    def trial(self, arm: str) -> Trial:
        """Sends a fresh prompt with the hint of ``arm``, waits, and asks what became of it.

        Raises:
            ServerError: the server cannot be asked, or refuses the prompt without the hint as well.
        """
        text = _text(self._plan.words)
        before = self.stored_chunks()
        try:
            answer = self._vllm.chat(_body(self._plan.model, text, ARMS[arm]))
        except RefusedError as refused:
            self._send_plain(text)
            return Trial(arm, 0, refused=str(refused))
        chunks = (read_answer(answer).input_tokens or 0) // self._plan.chunk
        if arm == STORE:
            counted, held = self._until_stored(text, before, chunks)
        else:
            counted, held = self._moved_after(before), self._ask(text)
        return Trial(arm, chunks, counted, *held, text=text)

    def again(self, trial: Trial) -> Trial:
        """Asks once more after a prompt that LMCache did not hold: its store may have been late.

        Asking stores nothing where the hint is honoured, so whatever is there now was stored against it.
        """
        if trial.arm == STORE or trial.attributed != 0:
            return trial
        told, salted, _ = self._ask(trial.text)
        return replace(trial, told=told, salted=salted) if told or salted else trial

    def control(self, chunks: int) -> Trial:
        """Sends nothing for as long as a trial takes, to see what other traffic stores."""
        return Trial(CONTROL, chunks, self._moved_after(self.stored_chunks()))

    def stored_chunks(self) -> float | None:
        """Chunks that requests have stored so far, as the server counts them."""
        if not self._counts:
            return None
        page = self._counters()
        if page is None:
            return None
        if self._plan.mode == "in_process":
            return page.total(series.IN_STORED_TOKENS) / self._plan.chunk
        # LMCache counts chunks that came back from L2 as written to L1.
        return page.total(series.L1_WRITE) - page.total(series.L2_LOADED)

    def _moved_after(self, before: float | None) -> float | None:
        """Waits well longer than a store was seen to take, and returns by how much the counter moved."""
        patience = max(self._plan.settle, 3 * self._lag)
        time.sleep(patience if before is None else patience + 1.2 * self._plan.refresh)
        return self._moved(before)

    def _moved(self, before: float | None) -> float | None:
        now = None if before is None else self.stored_chunks()
        return None if before is None or now is None else now - before

    def _until_stored(
        self, text: str, before: float | None, chunks: int
    ) -> tuple[float | None, _Held]:
        """Waits until a prompt that is to be stored is, which tells how long that takes here."""
        counted, held, since = None, _Held(None, None, None), time.monotonic()
        if (
            before is None or self._plan.refresh
        ):  # LMCache's own word is quicker than counters that are seldom updated
            time.sleep(self._plan.settle)
            since = time.monotonic()
            held = self._ask(text)
            self._counts = self._counts and not held.found
        shown = since
        if before is not None and self._counts:
            counted = self._until_counted(before, chunks)
            shown = time.monotonic()
            held = held if held.found else self._ask(text)
        for _ in range(_STORE_TRIES if self._may_be_late(held) else 0):
            time.sleep(self._plan.settle)
            shown = time.monotonic()
            held = self._ask(text)
            if held.found:
                break
        if held.found or (counted or 0) >= chunks:
            self._lag = max(self._lag, shown - since - self._plan.refresh)
        return counted, held

    def _may_be_late(self, held: _Held) -> bool:
        """Whether a prompt that was not held would be seen; only LMCache's in-process connector knows no salt."""
        return held.told == 0 or (
            held.told is None and held.salted == 0 and self._plan.mode == "in_process"
        )

    def _until_counted(self, before: float, chunks: int) -> float | None:
        end = time.monotonic() + _STORE_SETTLES * self._plan.settle + 2 * self._plan.refresh
        moved = self._moved(before)
        while moved is not None and moved < chunks and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            moved = self._moved(before)
        return moved

    def _send_plain(self, text: str) -> None:
        try:
            self._vllm.chat(_body(self._plan.model, text))
        except RefusedError as refused:
            raise ServerError(
                f"the server refuses a prompt of {_CHUNKS} chunks of {self._plan.chunk} tokens: {refused}"
            ) from None

    def _ask(self, text: str) -> _Held:
        """Sends the prompt again, not to be stored, and returns what LMCache says it has; under another salt where it does not say."""
        try:
            answer = self._vllm.chat(_body(self._plan.model, text, _ASK))
        except RefusedError:
            return _Held(None, None, None)
        params = answer.get(FIELD)
        params = params if isinstance(params, Mapping) else {}
        stats = params.get(STATS_KEY)
        told = (stats if isinstance(stats, Mapping) else params).get("num_lmcache_cached_tokens")
        cached = self._cached_tokens(answer)
        if isinstance(told, int):
            return _Held(told // self._plan.chunk, None, cached)
        return _Held(None, self._ask_salted(text), cached)

    def _ask_salted(self, text: str) -> int | None:
        try:
            answer = self._vllm.chat(
                _body(self._plan.model, text, _ASK, cache_salt=secrets.token_hex(8))
            )
        except RefusedError:
            return None
        cached = self._cached_tokens(answer)
        return (
            None if cached is None else -(-cached // self._plan.chunk)
        )  # the last chunk counts less the token vLLM always computes

    def _cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        """What usage says of it; a vLLM that reports cached tokens may say nothing where there are none."""
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


def _text(words: int) -> str:
    """Words that nobody has sent before, from the first on."""
    source = random.SystemRandom()
    return " ".join("".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(words))

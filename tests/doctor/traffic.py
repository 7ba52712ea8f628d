"""Other users' traffic: new prompts, one after another, while a test runs."""

from __future__ import annotations

import secrets
import threading
from types import TracebackType

import httpx2

PATIENCE_SECONDS = 60


class Traffic:
    """Traffic from a thread, for the duration of a ``with`` block.

    Attributes:
        sent: number of calls answered so far.
    """

    def __init__(self, base_url: str, model: str, *, words: int = 240) -> None:
        self.sent = 0
        self._url, self._model, self._words = base_url, model, words
        self._over, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._send, name="traffic")

    def _send(self) -> None:
        with httpx2.Client(trust_env=False, timeout=PATIENCE_SECONDS) as client:
            while not self._over.is_set():
                text = " ".join(secrets.token_hex(4) for _ in range(self._words))
                body = {
                    "model": self._model,
                    "messages": [{"role": "user", "content": text}],
                    "max_tokens": 1,
                }
                client.post(f"{self._url}/chat/completions", json=body).raise_for_status()
                self.sent += 1
                self._begun.set()

    def __enter__(self) -> Traffic:
        self._thread.start()
        assert self._begun.wait(PATIENCE_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

"""Characters per token, learned from the token counts that servers report.

How many characters make a token depends on the model's tokenizer and on the kind of text: in one
model English has 4.2, JSON 2.0, Chinese 1.6 and base64 1.4. So a ratio is learned for each kind of
text (:func:`script_of`) of each cache. It is the median of the latest observations, which a
minority of wrong ones cannot move far.

Pure: no I/O and no clock. Only numbers are kept, no text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

TEXT: Final = "text"
DATA: Final = "data"
ENCODED: Final = "encoded"
ACCENTED: Final = "accented"
ALPHABETIC: Final = "alphabetic"
WIDE: Final = "wide"
TOOLS: Final = "tools"

SCRIPTS: Final[dict[str, str]] = {
    TEXT: "English, and source code",
    DATA: "JSON, numbers, and other text full of digits and punctuation",
    ENCODED: "base64, hexadecimal: neither spaces nor quotes",
    ACCENTED: "Latin letters with accents, or a mix with another script",
    ALPHABETIC: "Cyrillic, Greek, Arabic, Hebrew: two bytes a character in UTF-8",
    WIDE: "Chinese, Japanese, Korean, Indic scripts: three bytes a character in UTF-8",
    TOOLS: "tool definitions make up more than half of the prompt",
}
"""The kinds of text that have separate ratios."""

WITH_RESULTS: Final = {script: f"{script}+results" for script in SCRIPTS if script != TOOLS}
"""The kind of a conversation that has results of tools. They are often JSON even if its longest
message is not, so such conversations have their own ratio."""

_STARTS: Final = {
    TEXT: 4.0,
    DATA: 2.3,
    ENCODED: 1.4,
    ACCENTED: 3.0,
    ALPHABETIC: 2.5,
    WIDE: 1.4,
    TOOLS: 4.0,
}
STARTING_RATIOS: Final[dict[str, float]] = {
    **_STARTS,
    **{name: _STARTS[script] for script, name in WITH_RESULTS.items()},
}
"""Characters per token of each kind until the server's counts have taught better. They lie between
those of Qwen 3.5, DeepSeek V4, cl100k and Mistral 7B."""

WINDOW: Final = 32
"""Observations that a ratio is the median of."""

MIN_OBSERVATIONS: Final = 3
"""The starting ratio is used until there are this many observations."""

MIN_CHARS: Final = 256
"""Shorter prompts teach nothing: their chat template outweighs their text."""

LEAST: Final = 0.25
MOST: Final = 16.0
"""Observations outside this range are ignored. No tokenizer reaches it, so a part of the prompt was
not counted, or the server counts something else."""

_MAX_RATIOS: Final = 1024

_DENSE: Final = 0.25
"""Share of digits and punctuation from which ASCII text is data. English has 0.05, code 0.12, JSON
at least 0.3."""

_SOLID_CHARS: Final = 64
"""A sample this long without a space or a quote is encoded data."""

_ACCENTED: Final = 1.02
_ALPHABETIC: Final = 1.6
_WIDE: Final = 2.1
"""Bytes per character in UTF-8 from which text is of each script."""

_LETTERS_AND_SPACE: Final = bytes(
    code for code in range(128) if chr(code).isalpha() or chr(code).isspace()
)


class Auto(float):
    """The value of ``KV_CACHE_CHARS_PER_TOKEN=auto``.

    As a number it is the ratio to use if the server and the text of a call are not known.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "auto"

    __str__ = __repr__


AUTO: Final = Auto(STARTING_RATIOS[TEXT])


def script_of(sample: str) -> str:
    """Return the kind of a text, a key of :data:`SCRIPTS`. Takes less than a microsecond.

    Args:
        sample: some hundred characters of the text.
    """
    chars = len(sample)
    encoded = sample.encode("utf-8", "surrogatepass")
    if len(encoded) > _ACCENTED * chars:
        width = len(encoded) / chars
        return WIDE if width >= _WIDE else ALPHABETIC if width >= _ALPHABETIC else ACCENTED
    if " " not in sample and '"' not in sample and chars >= _SOLID_CHARS:
        return ENCODED
    return DATA if len(encoded.translate(None, _LETTERS_AND_SPACE)) > _DENSE * chars else TEXT


class _Ratio:
    """The ratio of one script of one cache.

    Attributes:
        value: characters per token, as far as is known.
    """

    __slots__ = ("_observed", "value")

    def __init__(self, start: float) -> None:
        self.value = start
        self._observed: deque[float] = deque(maxlen=WINDOW)

    def observe(self, observed: float) -> None:
        self._observed.append(observed)
        if len(self._observed) >= MIN_OBSERVATIONS:
            # One of the observations, not the mean of two: equal ones are then reached, not passed.
            self.value = sorted(self._observed)[len(self._observed) // 2]


class Calibrated(NamedTuple):
    """The ratio that a call is decided with, and where to report the server's count.

    Attributes:
        cache: the cache that the call goes to.
        script: kind of its text, a key of :data:`STARTING_RATIOS`.
        ratio: characters per token.
        chars: characters of the prompt; 0 if the call teaches nothing.
    """

    cache: Hashable
    script: str
    ratio: float
    chars: int


class Calibration:
    """The ratios of all caches that a process talks to.

    Memory: ``max_ratios`` ratios of 32 numbers each, about 1.5 MiB at most with the default. The
    ratio that has not changed for the longest time is forgotten first. Safe to use from threads:
    reading takes no lock, and learning holds one for microseconds.

    Args:
        max_ratios: ratios to keep, one for each script of each cache.
    """

    def __init__(self, max_ratios: int = _MAX_RATIOS) -> None:
        self.lock = threading.RLock()  # a signal handler may interrupt it, and end another call
        self._max_ratios = max_ratios
        self._ratios: dict[tuple[Hashable, str], _Ratio] = {}

    def __len__(self) -> int:
        return len(self._ratios)

    def ratio(self, cache: Hashable, script: str) -> float:
        """Return the characters per token of a script in a cache.

        Args:
            cache: what tells caches apart, such as the server's origin and the model.
            script: a key of :data:`STARTING_RATIOS`.
        """
        ratio = self._ratios.get((cache, script))
        return STARTING_RATIOS[script] if ratio is None else ratio.value

    def learn(self, call: Calibrated, tokens: int) -> float | None:
        """Learn from the prompt tokens that the server counted.

        Args:
            call: the call, as it was decided.
            tokens: prompt tokens of the call.

        Returns:
            The ratio now; None if the call teaches nothing.
        """
        if call.chars < MIN_CHARS or not LEAST * tokens <= call.chars <= MOST * tokens:
            return None
        key = call.cache, call.script
        with self.lock:
            ratio = self._ratios.pop(key, None)
            if ratio is None:
                ratio = _Ratio(STARTING_RATIOS[call.script])
                if len(self._ratios) >= self._max_ratios:
                    del self._ratios[next(iter(self._ratios))]
            self._ratios[key] = ratio  # at the end: the first one is the one to forget
            ratio.observe(call.chars / tokens)
            return ratio.value

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

PROSE: Final = "prose"
CODE: Final = "code"
DATA: Final = "data"
ENCODED: Final = "encoded"
ACCENTED: Final = "accented"
ALPHABETIC: Final = "alphabetic"
WIDE: Final = "wide"
TOOLS: Final = "tools"

SCRIPTS: Final[dict[str, str]] = {
    PROSE: "English",
    CODE: "source code, and text with many numbers and punctuation marks",
    DATA: "JSON and numbers: more than a quarter of it is digits and punctuation",
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
    PROSE: 4.0,
    CODE: 4.0,
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

_CODE: Final = 0.08
_DATA: Final = 0.25
"""Share of digits and punctuation from which ASCII text is of each kind. English has 0.05, code
0.12, JSON at least 0.3."""

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


AUTO: Final = Auto(STARTING_RATIOS[PROSE])


def script_of(sample: str) -> str:
    """Return the kind of a text, a key of :data:`SCRIPTS`. Takes less than a microsecond.

    Args:
        sample: some hundred characters of the text.
    """
    chars = len(sample)
    if sample.isascii():
        encoded = sample.encode()
    else:
        encoded = sample.encode("utf-8", "surrogatepass")
        width = len(encoded) / chars
        if width > _ACCENTED:
            return WIDE if width >= _WIDE else ALPHABETIC if width >= _ALPHABETIC else ACCENTED
    if " " not in sample and '"' not in sample and chars >= _SOLID_CHARS:
        return ENCODED
    dense = len(encoded.translate(None, _LETTERS_AND_SPACE))
    if dense > _DATA * chars:
        return DATA
    return CODE if dense > _CODE * chars or "\n " in sample else PROSE  # an indented line is code


class Ratio(NamedTuple):
    """The characters per token of one script of one cache, as far as they are known.

    Attributes:
        cache: what tells caches apart, such as the server's origin and the model.
        script: kind of text, a key of :data:`STARTING_RATIOS`.
        value: characters per token.
        observed: the latest observations, which only :class:`Calibration` touches.
    """

    cache: Hashable
    script: str
    value: float
    observed: deque[float]


class Calibration:
    """The ratios of all caches that a process talks to.

    Memory: ``max_ratios`` ratios of 32 numbers each, about 1.5 MiB at most with the default. The
    ratio that has not changed for the longest time is forgotten first. Safe to use from threads:
    reading takes no lock, and learning holds one for microseconds.

    Args:
        max_ratios: ratios to keep, one for each script of each cache.
    """

    def __init__(self, max_ratios: int = _MAX_RATIOS) -> None:
        self._lock = threading.RLock()  # a signal handler may interrupt it, and end another call
        self._max_ratios = max_ratios
        self._ratios: dict[tuple[Hashable, str], Ratio] = {}

    def __len__(self) -> int:
        return len(self._ratios)

    def ratio(self, cache: Hashable, script: str) -> Ratio:
        """Return the ratio to decide a call with.

        Args:
            cache: what tells caches apart, such as the server's origin and the model.
            script: kind of text, a key of :data:`STARTING_RATIOS`.
        """
        ratio = self._ratios.get((cache, script))
        if ratio is None:
            return Ratio(cache, script, STARTING_RATIOS[script], deque(maxlen=WINDOW))
        return ratio

    def learn(self, used: Ratio, chars: int, tokens: int) -> float | None:
        """Learn from the prompt tokens that the server counted.

        Args:
            used: the ratio that the call was decided with.
            chars: characters of its prompt; 0 if the call teaches nothing.
            tokens: tokens of its prompt.

        Returns:
            The characters per token now; None if the call teaches nothing.
        """
        if chars < MIN_CHARS or not LEAST * tokens <= chars <= MOST * tokens:
            return None
        key = used.cache, used.script
        with self._lock:
            ratio = self._ratios.pop(key, None)
            if ratio is None:
                ratio = used._replace(
                    value=STARTING_RATIOS[used.script], observed=deque(maxlen=WINDOW)
                )
                if len(self._ratios) >= self._max_ratios:
                    del self._ratios[next(iter(self._ratios))]
            ratio.observed.append(chars / tokens)
            if len(ratio.observed) >= MIN_OBSERVATIONS:
                # One of the observations, not the mean of two: equal ones are reached, not passed.
                median = sorted(ratio.observed)[len(ratio.observed) // 2]
                ratio = ratio._replace(value=round(median, 3))
            self._ratios[key] = ratio  # at the end: the first one is the one to forget
            return ratio.value

"""Characters per token: learned from counts, robust to outliers, bounded."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_kvpolicy.policy.calibration import (
    ACCENTED,
    ALPHABETIC,
    AUTO,
    CODE,
    DATA,
    ENCODED,
    LEAST,
    MIN_CHARS,
    MIN_OBSERVATIONS,
    MOST,
    PROSE,
    SCRIPTS,
    STARTING_RATIOS,
    WIDE,
    WINDOW,
    WITH_RESULTS,
    Calibration,
    script_of,
)

CACHE = ("http://gb10:8000", "model")
CHARS = 100_000


def ratio(calibration: Calibration, script: str = PROSE, cache: object = CACHE) -> float:
    return calibration.ratio(cache, script).value


def learn(
    calibration: Calibration, observed: float, script: str = PROSE, chars: int = CHARS
) -> None:
    calibration.learn(calibration.ratio(CACHE, script), chars, max(1, round(chars / observed)))


@pytest.mark.parametrize(
    ("sample", "script"),
    [
        ("", PROSE),
        ("The quick brown fox jumps over the lazy dog, and then it rests. " * 3, PROSE),
        ("def first(values):\n    return values\n" + "# a comment in plain words " * 6, CODE),
        ("def first(values: list[str]) -> str:\n    return values[0] if values else ''\n", CODE),
        ('{"id": 17, "name": "A-17", "price": 12.50, "tags": ["x", "y"]}, ' * 3, DATA),
        ('{"id":17,"name":"A-17","price":12.50,"tags":["x","y"]},' * 3, DATA),
        ("1024 2048 4096 81.92 16384 " * 5, DATA),
        ("aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0" * 4, ENCODED),
        ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b" * 4, ENCODED),
        ("L'été dernier, les élèves ont déjà appris à compter. " * 3, ACCENTED),
        ("Быстрая бурая лиса прыгает через ленивую собаку. " * 3, ALPHABETIC),
        ("今天的天气很好，我们去公园散步。" * 8, WIDE),
        ("오늘은 날씨가 좋아서 공원에 갔습니다. " * 8, WIDE),
        ("\ud800" * 100, WIDE),  # a lone surrogate cannot be encoded strictly
    ],
)
def test_kinds_of_text_are_told_apart(sample: str, script: str) -> None:
    assert script_of(sample) == script


@given(st.text())
def test_every_text_is_of_some_kind(sample: str) -> None:
    assert script_of(sample) in SCRIPTS


def test_every_kind_has_a_starting_ratio() -> None:
    assert STARTING_RATIOS.keys() == SCRIPTS.keys() | set(WITH_RESULTS.values())
    assert ratio(Calibration()) == float(AUTO) == 4.0


def test_a_ratio_is_learned_for_each_kind_of_each_cache() -> None:
    calibration = Calibration()
    for _ in range(MIN_OBSERVATIONS):
        learn(calibration, 1.5, WIDE)
    assert ratio(calibration, WIDE) == pytest.approx(1.5, abs=0.01)
    assert ratio(calibration, PROSE) == STARTING_RATIOS[PROSE]
    assert ratio(calibration, WIDE, ("http://gb10:8000", "other")) == STARTING_RATIOS[WIDE]


def test_few_observations_change_nothing() -> None:
    calibration = Calibration()
    for _ in range(MIN_OBSERVATIONS - 1):
        learn(calibration, 2.0)
    assert ratio(calibration) == STARTING_RATIOS[PROSE]


@pytest.mark.parametrize(
    ("chars", "tokens"),
    [
        (0, 100),  # a call with media
        (MIN_CHARS - 1, 100),
        (CHARS, round(CHARS / LEAST) + 1),
        (CHARS, round(CHARS / MOST) - 1),
        (CHARS, 0),
    ],
)
def test_calls_that_say_nothing_about_the_ratio_teach_nothing(chars: int, tokens: int) -> None:
    calibration = Calibration()
    assert calibration.learn(calibration.ratio(CACHE, PROSE), chars, tokens) is None
    assert len(calibration) == 0


observations = st.floats(min_value=LEAST, max_value=MOST)


@given(st.lists(observations, max_size=100))
def test_a_ratio_stays_between_the_observations(observed: list[float]) -> None:
    calibration = Calibration()
    for value in observed:
        learn(calibration, value)
    if len(observed) < MIN_OBSERVATIONS:
        assert ratio(calibration) == STARTING_RATIOS[PROSE]
    else:
        latest = observed[-WINDOW:]
        assert min(latest) * 0.99 <= ratio(calibration) <= max(latest) * 1.01


@given(st.lists(observations, min_size=MIN_OBSERVATIONS, max_size=60), observations)
def test_equal_evidence_moves_a_ratio_steadily_toward_it(
    earlier: list[float], evidence: float
) -> None:
    calibration = Calibration()
    for value in earlier:
        learn(calibration, value)
    distances = []
    for _ in range(WINDOW):
        distances.append(abs(ratio(calibration) - evidence))
        learn(calibration, evidence)
    distances.append(abs(ratio(calibration) - evidence))
    rounding = 0.003 + evidence**2 / CHARS
    assert all(later <= sooner + rounding for sooner, later in pairwise(distances))
    assert distances[-1] <= rounding


@given(
    st.floats(min_value=1, max_value=6),
    st.lists(st.booleans(), min_size=50, max_size=200),
    st.randoms(use_true_random=False),
)
def test_one_outlier_in_ten_does_not_matter(
    truth: float, low: list[bool], chance: random.Random
) -> None:
    calibration = Calibration()
    for call, is_low in enumerate(low):
        if call % 10 == 9:
            learn(calibration, LEAST if is_low else MOST)
        else:
            learn(calibration, truth * chance.uniform(0.95, 1.05))
    assert ratio(calibration) == pytest.approx(truth, rel=0.06)


def test_another_tokenizer_behind_the_same_name_is_noticed() -> None:
    calibration = Calibration()
    for _ in range(1000):
        learn(calibration, 4.0)
    for _ in range(WINDOW // 2 + 1):
        learn(calibration, 2.0)
    assert ratio(calibration) == pytest.approx(2.0, abs=0.01)


def test_the_ratio_that_learned_least_recently_is_forgotten_first() -> None:
    calibration = Calibration(max_ratios=2)

    def observe(cache: str) -> None:
        for _ in range(MIN_OBSERVATIONS):
            calibration.learn(calibration.ratio(cache, PROSE), CHARS, CHARS // 2)

    observe("a")
    observe("b")
    observe("a")
    observe("c")
    assert len(calibration) == 2
    assert ratio(calibration, PROSE, "a") == ratio(calibration, PROSE, "c") == 2.0
    assert ratio(calibration, PROSE, "b") == STARTING_RATIOS[PROSE]


def test_threads_may_learn_at_once() -> None:
    calibration = Calibration(max_ratios=8)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(2000):
            used = calibration.ratio(chance.randrange(20), PROSE)
            calibration.learn(used, CHARS, CHARS // 2)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calibration) == 8

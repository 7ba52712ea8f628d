"""Whatever is read of requests, answers, refusals and targets, under atheris: nothing may raise, and what is counted must be a count.

``make fuzz``; ``KVPOLICY_FUZZ_RUNS=1000000 make fuzz`` for more. A crash is written to ``.cache/fuzz`` and ends the run with an error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import atheris

from tests.fuzz.bodies import FIELDS, body_of, parse

READ = [
    "otel_kvpolicy.policy",
    "otel_kvpolicy.requests",
    "otel_kvpolicy.hints.rejection",
    "otel_kvpolicy.hints.targets",
]

with atheris.instrument_imports(include=READ):
    from otel_kvpolicy.hints.rejection import names_the_hint
    from otel_kvpolicy.hints.targets import Targets
    from otel_kvpolicy.policy import CallText, KVCacheLayeringPolicy
    from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
    from otel_kvpolicy.requests import read_answer, read_chat, read_chunk, read_responses
    from otel_kvpolicy.requests.decide_arguments import parts_of

RUNS = os.environ.get("KVPOLICY_FUZZ_RUNS", "200000")
CACHE = Path(".cache/fuzz")
SEEDS = Path(__file__).with_name("seeds")
POLICY = KVCacheLayeringPolicy()


def read_once(data: bytes) -> None:
    """One input: every reader reads it."""
    try:
        value = parse(data)
    except RecursionError:
        return
    except ValueError:
        value = body_of(atheris.FuzzedDataProvider(data))
    read_all(value)
    text = data.decode(errors="replace")
    assert names_the_hint(_Refused(text)) in {True, False}
    with suppress(ValueError):
        assert Targets(text).text


def read_all(value: Any) -> None:
    """A body is a mapping, as the instrumentation checks before it reads; an answer may be anything."""
    if isinstance(value, Mapping):
        for reader in (read_chat, read_responses):
            text = reader(value)
            _check_counts(text)
            decision = POLICY.judge(text)
            assert decision.skip_save is not decision.cache_worthy
        assert POLICY.decide(**parts_of(value)).reasons
        _check_chain(value)
    for read in (read_answer, read_chunk):
        answer = read(value)
        if answer is not None:
            assert all(count is None or (type(count) is int and count >= 0) for count in answer[:3])
            assert answer.then(answer) == answer


def _check_counts(text: CallText) -> None:
    assert all(type(count) is int and count >= 0 for count in text), text


def _check_chain(body: Mapping[Any, Any]) -> None:
    chain = boundaries_of(body, 7)
    hashes = list(chain.backwards())
    chars = [chain.chars_before(-1 - at) for at in range(len(hashes))]
    assert len(hashes) <= 6
    assert chars == sorted(chars, reverse=True)
    assert chain.parent is None or 1 < -chain.parent <= len(hashes)
    assert list(boundaries_of(body, 7).backwards()) == hashes


class _Refused(Exception):
    """A refusal as the openai client raises it."""

    status_code = 400

    def __init__(self, text: str) -> None:
        self.response = SimpleNamespace(text=text)


def _dictionary() -> Path:
    """The fields as words that libFuzzer puts together."""
    path = CACHE / "fields.dict"
    path.write_text("".join(f"{json.dumps(json.dumps(name))}\n" for name in FIELDS))
    return path


def main() -> None:
    """Reads ``KVPOLICY_FUZZ_RUNS`` inputs, from the seeds and what earlier runs found on; further options are libFuzzer's."""
    corpus = CACHE / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    options = [
        f"-runs={RUNS}",
        "-seed=7",
        "-max_len=4096",
        "-timeout=10",
        f"-artifact_prefix={CACHE}/",
        f"-dict={_dictionary()}",
    ]
    atheris.Setup([sys.argv[0], *options, *sys.argv[1:], str(corpus), str(SEEDS)], read_once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

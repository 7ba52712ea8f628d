"""Fuzz the readers of requests, answers, rejections, and targets with atheris.

None of them may raise, and what they count must be a count. Run ``make fuzz``, or
``KVPOLICY_FUZZ_RUNS=1000000 make fuzz`` for more inputs. A crash is written to ``.cache/fuzz`` and
ends the run with an error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
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
    from otel_kvpolicy.hints.kv_transfer_params import FIELD
    from otel_kvpolicy.hints.rejection import rejects
    from otel_kvpolicy.hints.targets import Targets
    from otel_kvpolicy.layering_policy import KVCacheLayeringPolicy
    from otel_kvpolicy.policy import CallText
    from otel_kvpolicy.policy.adaptive.boundaries import boundaries_of
    from otel_kvpolicy.requests import read_answer, read_chat, read_chunk, read_responses
    from otel_kvpolicy.requests.decide_arguments import decide_arguments

RUNS = os.environ.get("KVPOLICY_FUZZ_RUNS", "200000")
CACHE = Path(".cache/fuzz")
SEEDS = Path(__file__).with_name("seeds")
POLICY = KVCacheLayeringPolicy()


def read_once(data: bytes) -> None:
    """Let every reader read one input."""
    try:
        value = parse(data)
    except RecursionError:
        return
    except ValueError:
        value = body_of(atheris.FuzzedDataProvider(data))
    read_all(value)
    text = data.decode(errors="replace")
    assert rejects(FIELD, 400, text) in {True, False}
    with suppress(ValueError):
        assert Targets(text).text


def read_all(value: Any) -> None:
    """Read a value as a request body, if it is a mapping, and as an answer."""
    if isinstance(value, Mapping):
        for reader in (read_chat, read_responses):
            text = reader(value)
            _check_counts(text)
            decision = POLICY.judge(text)
            assert decision.skip_save is not decision.cache_worthy
        assert POLICY.decide(**decide_arguments(value)).reasons
        _check_boundaries(value)
    for read in (read_answer, read_chunk):
        answer = read(value)
        if answer is not None:
            assert all(count is None or (type(count) is int and count >= 0) for count in answer[:3])
            assert answer.then(answer) == answer


def _check_counts(text: CallText) -> None:
    assert all(type(count) is int and count >= 0 for count in text), text


def _check_boundaries(body: Mapping[Any, Any]) -> None:
    boundaries = boundaries_of(body, 7)
    hashes = list(boundaries.backwards())
    chars = [boundaries.chars_before(-1 - index) for index in range(len(hashes))]
    assert len(hashes) <= 6
    assert chars == sorted(chars, reverse=True)
    assert boundaries.parent is None or 1 < -boundaries.parent <= len(hashes)
    assert list(boundaries_of(body, 7).backwards()) == hashes


def _dictionary() -> Path:
    """Write the dictionary of fields that libFuzzer combines, and return its path."""
    path = CACHE / "fields.dict"
    path.write_text("".join(f"{json.dumps(json.dumps(name))}\n" for name in FIELDS))
    return path


def main() -> None:
    """Read ``KVPOLICY_FUZZ_RUNS`` inputs, starting from the seeds and from earlier runs' findings.

    Further command-line options go to libFuzzer.
    """
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

"""Reading traces: every format, broken lines, gzipped files, directories, unsupported files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import openai
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otel_kvpolicy.cli.replay.trace import Loaded, TraceError, load
from otel_kvpolicy.standin import StandIn
from otel_kvpolicy.telemetry import decision_log

from ..conftest import Telemetry
from .full_traces import AIRLINE, CODING, MOONCAKE, full_trace_path
from .traces import mooncake_line, write_lines

TEXT = "all ships report to the harbour master before they enter the lock; "


def message(role: str, repeats: int, word: str = "") -> dict[str, str]:
    return {"role": role, "content": word + TEXT * repeats}


CONVERSATION = [
    message("system", 100),
    message("user", 1),
    message("assistant", 60),
    message("user", 1),
    message("assistant", 2),
]


def read(path: Path, *documents: Any, **options: Any) -> Loaded:
    return load([write_lines(path, documents)], **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_a_mooncake_trace(path: Path) -> None:
    loaded = read(
        path, mooncake_line([1, 2], 3), mooncake_line([1, 2, 3, 4], 5) | {"input_length": 1600}
    )
    trace = loaded.trace
    assert loaded.formats == ["Mooncake"]
    assert (trace.block_tokens, trace.times, trace.input_tokens, trace.output_tokens) == (
        512,
        [3.0, 5.0],
        [1024, 1600],
        [9, 9],
    )
    # The second request has 1,600 tokens: three full chunks and a partial one, which is dropped.
    assert (trace.block_counts, trace.seen_blocks) == ([2, 3], [0, 2])
    assert [text.history_turns for text in trace.texts] == [0, 1]


def test_a_derived_mooncake_trace_has_turns_prefix_and_class(path: Path) -> None:
    trace = read(
        path, {**mooncake_line([1, 2, 3, 4], turns=7, system_tokens=1000), "class": "planner"}
    ).trace
    assert (trace.roles, trace.texts[0].history_turns, trace.texts[0].prefix_chars) == (
        ["planner"],
        7,
        4000,
    )


@pytest.mark.parametrize("size", [16, 256, 512, 2048])
def test_the_chunk_size_is_derived_from_the_lengths(path: Path, size: int) -> None:
    lengths = [3 * size + 5, 9 * size, 9 * size + size // 2]
    lines = [
        {"timestamp": 0, "input_length": tokens, "hash_ids": [*range(-(-tokens // size))]}
        for tokens in lengths
    ]
    assert read(path, *lines).trace.block_tokens == size


def test_lengths_that_fit_no_chunk_size_need_block_tokens(path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 100, "hash_ids": [1, 2, 3]},
        {"timestamp": 1, "input_length": 9000, "hash_ids": [1]},
    ]
    with pytest.raises(TraceError, match="--block-tokens"):
        read(path, *lines)
    assert read(path, *lines, block_tokens=30).trace.block_counts == [3, 1]


def test_a_qwen_bailian_trace(path: Path) -> None:
    first = {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 0.5,
        "input_length": 40,
        "output_length": 8,
        "type": "text",
        "turn": 1,
    }
    second = first | {
        "chat_id": 2,
        "parent_chat_id": 1,
        "timestamp": 61.0,
        "input_length": 70,
        "turn": 2,
        "type": "search",
    }
    loaded = read(path, first | {"hash_ids": [5, 6, 7]}, second | {"hash_ids": [5, 6, 8, 9, 10]})
    trace = loaded.trace
    assert loaded.formats == ["Qwen-Bailian"]
    assert (trace.block_tokens, trace.times, trace.block_counts, trace.seen_blocks) == (
        16,
        [0.5, 61.0],
        [2, 4],
        [0, 2],
    )
    assert ([text.history_turns for text in trace.texts], trace.roles) == (
        [0, 1],
        ["text", "search"],
    )


def test_a_log_of_lmcache_lookup_hashes(path: Path) -> None:
    line = {
        "timestamp": 1775054425.7,
        "request_id": "chatcmpl-1",
        "model_name": "qwen",
        "chunk_size": 256,
        "seq_len": 700,
    }
    line |= {
        "dtypes": ["bfloat16"],
        "shapes": [[2, 36, 256, 1024]],
        "chunk_hashes": ["0x0a", "0x0b"],
    }
    loaded = read(
        path,
        line,
        line
        | {
            "timestamp": 1775054426.0,
            "seq_len": 1030,
            "chunk_hashes": ["0x0a", "0x0b", "0x0c", "0x0d"],
        },
    )
    trace = loaded.trace
    assert loaded.formats == ["LMCache lookup hashes"]
    assert (trace.block_tokens, trace.input_tokens, trace.block_counts, trace.seen_blocks) == (
        256,
        [700, 1030],
        [2, 4],
        [0, 2],
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda messages: {"messages": messages},
        lambda messages: {"traj": messages},
        lambda messages: {"conversation": messages},
        lambda messages: messages,
        lambda messages: [{"messages": messages}],
    ],
    ids=["messages", "traj", "conversation", "list", "list of objects"],
)
def test_conversations_in_every_form(path: Path, wrap: Callable[[Any], Any]) -> None:
    loaded = read(
        path,
        wrap(CONVERSATION),
        wrap([CONVERSATION[0], message("user", 1, "other "), message("assistant", 1)]),
    )
    trace = loaded.trace
    assert loaded.formats == ["OpenAI messages"]
    assert [text.history_turns for text in trace.texts] == [0, 0, 1]
    before_second = sum(len(f"<{item['role']}>{item['content']}\n") for item in CONVERSATION[:4])
    assert trace.input_tokens[2] == before_second // 4
    system = len(f"<system>{CONVERSATION[0]['content']}\n") // 4 // 256
    # The conversations share the system prompt; the third call continues the first.
    assert trace.seen_blocks == [0, system, trace.block_counts[0]]


def test_messages_without_a_final_reply_are_one_call(path: Path) -> None:
    trace = read(
        path,
        {
            "model": "m",
            "messages": CONVERSATION[:4],
            "tools": [{"type": "function", "function": {"name": "tide"}}],
        },
    ).trace
    assert len(trace) == 1
    assert trace.texts[0].history_turns == 1


def test_prompts_that_differ_in_tool_calls_have_different_chunks(path: Path) -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "tide", "arguments": TEXT * 60}}],
    }
    other = call | {"tool_calls": [{"function": {"name": "wind", "arguments": TEXT * 60}}]}
    ends = [{"role": "tool", "content": "7"}, message("user", 1)]
    trace = read(
        path,
        {"messages": [CONVERSATION[0], call, *ends]},
        {"messages": [CONVERSATION[0], other, *ends]},
    ).trace
    assert (
        trace.block_counts[0]
        > trace.seen_blocks[1]
        == len(f"<system>{CONVERSATION[0]['content']}\n") // 1024
    )


@pytest.fixture
def recorded(
    instrumented: Telemetry, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """Two calls of one conversation, recorded as OTLP JSON and in the decision log."""
    log = tmp_path / "decisions.jsonl"
    monkeypatch.setenv("KV_CACHE_DECISION_LOG", str(log))
    tracer = instrumented.tracer_provider.get_tracer("app")
    with openai.OpenAI(base_url=server.base_url, api_key="x") as client:
        for count in (2, 4):
            with tracer.start_as_current_span("one" if count == 2 else "two"):
                messages: Any = CONVERSATION[:count]
                client.chat.completions.create(model="stand-in", messages=messages)
    assert decision_log.flush(20)
    spans = tmp_path / "spans.jsonl"
    exported = [
        MessageToDict(encode_spans([span])) for span in instrumented.exporter.get_finished_spans()
    ]
    return write_lines(spans, exported), log


def test_recorded_spans_and_the_decision_log_give_the_same_trace(
    recorded: tuple[Path, Path],
) -> None:
    as_spans, as_log = (load([path]) for path in recorded)
    assert (as_spans.formats, as_log.formats) == (
        ["recorded spans (OTLP JSON lines)"],
        ["decision log"],
    )
    for loaded in (as_spans, as_log):
        trace = loaded.trace
        assert [text.history_turns for text in trace.texts] == [0, 1]
        # The calls are in different traces, so they share only the system prompt.
        assert trace.seen_blocks == [0, len(CONVERSATION[0]["content"]) // 4 // 256]
        assert len(loaded.notes) == 1
    assert as_spans.trace.input_tokens == as_log.trace.input_tokens
    assert as_spans.trace.paths == as_log.trace.paths


def test_a_log_without_decisions_is_rejected(path: Path) -> None:
    with pytest.raises(TraceError, match="no calls"):
        read(
            path,
            {
                "timestamp": "2026-01-01T00:00:00Z",
                "trace_id": "1",
                "attributes": {"http.method": "GET"},
            },
        )


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "nonsense",
        '{"hash_ids": "x", "input_length": 5}',
        '{"hash_ids": [1], "input_length": -5}',
        "[" * 5000,
    ],
)
def test_a_broken_line_is_skipped_and_counted(path: Path, broken: str) -> None:
    good = json.dumps(mooncake_line([1, 2]))
    path.write_text(f"{good}\n\n{broken}\n{good}\n")
    loaded = load([path])
    assert (len(loaded.trace), loaded.broken) == (2, 1)
    assert str(loaded.broken_lines[0]).startswith("trace.jsonl:3: ")


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"hash_ids": [1], "timestamp": 0}, "input_length"),
        ({"hash_ids": [1, None], "input_length": 512}, "hashes"),
        ({"hash_ids": [1], "input_length": True}, "input_length"),
        ({"hash_ids": [1], "input_length": 512, "timestamp": []}, "timestamp"),
    ],
)
def test_the_problem_of_a_broken_line_names_the_field(
    path: Path, line: dict[str, Any], field: str
) -> None:
    loaded = read(path, mooncake_line([1, 2]), line)
    assert field in loaded.broken_lines[0].problem


def test_all_broken_lines_are_counted_and_the_first_20_are_kept(path: Path) -> None:
    path.write_text(json.dumps(mooncake_line([1])) + "\n" + "{\n" * 5000)
    loaded = load([path])
    assert (loaded.broken, len(loaded.broken_lines)) == (5000, 20)


@settings(max_examples=150, deadline=None)
@example(lines=[b"0", b'"x"', b"null"])
@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.from_regex(rb'\{"(hash_ids|messages|chunk_hashes|attributes|traj)": .{0,20}\}'),
        ),
        max_size=8,
    )
)
def test_no_line_prevents_reading_the_other_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "t.jsonl"
    path.write_bytes(b"\n".join([json.dumps(mooncake_line([1, 2])).encode(), *lines]))
    assert load([path], block_tokens=512).trace.block_counts[0] == 2


def test_a_directory_of_plain_and_gzipped_files_is_read_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(gzip.compress(json.dumps(mooncake_line([1], 2)).encode()))
    write_lines(tmp_path / "a.ndjson", [mooncake_line([2], 3)])
    write_lines(tmp_path / "c.jsonl.gz", [mooncake_line([3], 1)])
    (tmp_path / "readme.txt").write_text("not read")
    trace = load([tmp_path]).trace
    assert trace.times == [1.0, 2.0, 3.0]


def test_a_truncated_gzip_file_keeps_the_lines_before_the_damage(tmp_path: Path) -> None:
    lines = [f"{json.dumps(mooncake_line([i, i + 1], i))}\n" for i in range(5000)]
    compressed = gzip.compress("".join(lines).encode())
    path = tmp_path / "t.gz"
    path.write_bytes(compressed[: len(compressed) // 2])
    loaded = load([path])
    assert 0 < len(loaded.trace) < 5000
    assert loaded.broken_lines[-1].number > len(loaded.trace)


def test_an_unsupported_file_among_traces_is_skipped_with_a_note(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [mooncake_line([1])])
    write_lines(tmp_path / "b.json", [{"name": "package"}])
    loaded = load([tmp_path])
    assert (loaded.broken, len(loaded.trace)) == (0, 1)
    assert "b.json" in loaded.notes[-1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b'{"name": "package"}\n',
        b"\x00\xff",
        b"PK\x03\x04",
        b"[]\n",
        b"1\n",
        b"null\n",
    ],
)
def test_an_unsupported_file_is_rejected_with_the_list_of_formats(
    path: Path, content: bytes
) -> None:
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"(?s)trace\.jsonl.*Mooncake.*OpenAI messages"):
        load([path])


def test_a_missing_path_and_an_empty_directory_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="missing"):
        load([tmp_path / "missing"])
    with pytest.raises(TraceError, match=tmp_path.name):
        load([tmp_path])


def test_files_with_different_chunk_sizes_are_rejected(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.jsonl", [mooncake_line([1]) | {"block_size": 512}])
    second = write_lines(tmp_path / "b.jsonl", [mooncake_line([1]) | {"block_size": 256}])
    with pytest.raises(TraceError, match="256 and 512"):
        load([first, second])


@pytest.mark.bars
@pytest.mark.parametrize(
    ("name", "requests", "tokens"),
    [(MOONCAKE, 12031, 144_793_823), (CODING, 4059, 525_670_506), (AIRLINE, 2454, None)],
)
def test_the_full_traces_are_read_completely(name: str, requests: int, tokens: int | None) -> None:
    loaded = load([full_trace_path(name)])
    assert (len(loaded.trace), loaded.broken) == (requests, 0)
    assert tokens in {None, sum(loaded.trace.input_tokens)}


def test_a_time_may_be_an_iso_string_or_unix_seconds(path: Path) -> None:
    time = datetime(2026, 1, 1, tzinfo=timezone.utc)
    trace = read(
        path,
        {"messages": CONVERSATION[:2], "timestamp": time.isoformat().replace("+00:00", "Z")},
        {"messages": CONVERSATION[:2], "created": 5},
    ).trace
    assert trace.times == [5.0, time.timestamp()]

"""The stand-in over real sockets, as the openai client and Prometheus see it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from otel_kvpolicy.standin import FAULT_HEADER, StandIn
from otel_kvpolicy.standin.__main__ import main
from otel_kvpolicy.standin.options import StrictStyle
from tests.dashboards.live import until

MODEL = "stand-in"
LONG = [{"role": "user", "content": "again and " * 160}]  # 1,600 characters: one chunk
SKIP = {"kv_transfer_params": {"lmcache.skip_save": True, "lmcache.max_offload_tokens": 0}}
TOOL = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Leaf(BaseModel):
    kind: str
    level: int


class Tree(BaseModel):
    name: str
    leaves: list[Leaf]
    first: Leaf
    note: str | None = None


def client_of(server: StandIn, **options: Any) -> Any:
    """Return an openai client. Typed Any, since tests send dicts and take answers apart."""
    return openai.OpenAI(
        **{
            "base_url": server.base_url,
            "api_key": "any",
            "max_retries": 0,
            "timeout": 30,
            **options,
        }
    )


@pytest.fixture(scope="module")
def module_server() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture
def server(module_server: StandIn) -> StandIn:
    module_server.reset_prefix_cache()
    return module_server


@pytest.fixture
def client(server: StandIn) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


def page(url: str | None) -> dict[str, float]:
    samples = [
        sample
        for family in text_string_to_metric_families(httpx2.get(f"{url}/metrics").text)
        for sample in family.samples
    ]
    totals: dict[str, float] = {}
    for sample in samples:
        totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return totals


# --- answers ---


def test_chat_reports_usage_with_cached_tokens(client: Any, server: StandIn) -> None:
    messages = [{"role": "user", "content": "first of all " * 140}]
    cached = []
    for _ in range(2):
        answer = client.chat.completions.create(model=MODEL, messages=messages)
        server.reset_prefix_cache()
        assert answer.usage is not None
        assert (
            answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        )
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, 256]
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_has_the_same_content_as_the_plain_answer(client: Any) -> None:
    plain = client.chat.completions.create(model=MODEL, messages=LONG)
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=LONG, stream=True, stream_options={"include_usage": True}
        )
    )
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == plain.choices[0].message.content
    )
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_a_stream_has_usage_only_on_request(client: Any) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=LONG, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_token_limit_cuts_off_the_answer(client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=LONG, max_tokens=2)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (2, "length")
    response = client.responses.create(model=MODEL, input="hi", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )


def test_each_of_several_choices_has_its_index(client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=LONG, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_json_fits_the_requested_schema(client: Any) -> None:
    parsed = (
        client.chat.completions.parse(model=MODEL, messages=LONG, response_format=Tree)
        .choices[0]
        .message.parsed
    )
    assert isinstance(parsed, Tree)
    assert isinstance(
        client.responses.parse(model=MODEL, input="hi", text_format=Tree).output_parsed, Tree
    )
    plain = client.chat.completions.create(
        model=MODEL, messages=LONG, response_format={"type": "json_object"}
    )
    assert json.loads(plain.choices[0].message.content) == {}


def test_the_stream_helpers_of_the_client_work(client: Any) -> None:
    with client.chat.completions.stream(model=MODEL, messages=LONG, response_format=Tree) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Tree)
    with client.responses.stream(model=MODEL, input="hi", text_format=Tree) as events:
        kinds = [event.type for event in events]
        assert isinstance(events.get_final_response().output_parsed, Tree)
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str
)
def test_a_demanded_tool_is_called(client: Any, choice: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=LONG,
        tools=[{"type": "function", "function": TOOL}],
        tool_choice=choice,
    )
    call = answer.choices[0].message.tool_calls[0].function
    assert (call.name, set(json.loads(call.arguments)), answer.choices[0].finish_reason) == (
        "weather",
        {"city"},
        "tool_calls",
    )


def test_a_tool_named_in_the_message_is_called_and_its_result_gets_a_text(
    client: Any,
) -> None:
    tools = [{"type": "function", "function": TOOL}]
    messages: list[Any] = [{"role": "user", "content": "Ask weather for me."}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.name == "weather"
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"},
    ]
    after = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    assert after.choices[0].message.content
    assert (
        client.chat.completions.create(
            model=MODEL, messages=messages[:1], tools=tools, tool_choice="none"
        )
        .choices[0]
        .message.content
    )


def test_responses_can_call_tools(client: Any) -> None:
    tools = [{"type": "function", **TOOL}]
    with client.responses.stream(model=MODEL, input="Ask weather.", tools=tools) as events:
        kinds = [event.type for event in events]
        call = events.get_final_response().output[0]
    assert "response.function_call_arguments.done" in kinds
    answer = client.responses.create(
        model=MODEL,
        tools=tools,
        input=[
            {"role": "user", "content": "Ask weather."},
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            },
            {"type": "function_call_output", "call_id": call.call_id, "output": "sun"},
        ],
    )
    assert answer.output_text


def test_a_previous_response_is_part_of_the_prompt_without_its_instructions(
    client: Any,
) -> None:
    first = client.responses.create(
        model=MODEL, input="word " * 800, instructions="Be " + "very " * 100 + "brief."
    )
    second = client.responses.create(model=MODEL, input="Go on.", previous_response_id=first.id)
    assert first.usage.input_tokens - 120 < second.usage.input_tokens < first.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input="Go on.", previous_response_id="resp_unknown")


@pytest.mark.parametrize("stream", [False, True])
def test_responses_always_report_cached_tokens(server: StandIn, client: Any, stream: bool) -> None:
    text = f"{stream:<5} and so on, " * 80
    for cached in (0, 256):
        answer = client.responses.create(model=MODEL, input=text, stream=stream)
        usage = list(answer)[-1].response.usage if stream else answer.usage
        server.reset_prefix_cache()
        assert usage.input_tokens_details.cached_tokens == cached


def test_chat_without_prompt_tokens_details_reports_no_cached_tokens() -> None:
    with StandIn(prompt_tokens_details=False) as server, client_of(server) as client:
        assert (
            client.chat.completions.create(model=MODEL, messages=LONG).usage.prompt_tokens_details
            is None
        )
        assert (
            client.responses.create(
                model=MODEL, input="hi"
            ).usage.input_tokens_details.cached_tokens
            == 0
        )


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
def test_a_hinted_call_stores_nothing(server: StandIn, client: Any, endpoint: str) -> None:
    before, text = server.chunks_stored, f"never stored by {endpoint:<10} " * 50

    def call(**extra: Any) -> None:
        if endpoint == "chat":
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": text}], **extra
            )
        else:
            client.responses.create(model=MODEL, input=text, **extra)

    call(extra_body=SKIP)
    assert server.chunks_stored == before
    call()
    assert server.chunks_stored == before + 1


def test_the_last_requests_are_recorded_as_received() -> None:
    with StandIn(keep_requests=2) as server, client_of(server) as client:
        for text in ("one", "two", "three"):
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": text}],
                extra_body=SKIP,
                extra_headers={"traceparent": "00-1-2-01"},
            )
        assert [request.body["messages"][0]["content"] for request in server.requests] == [
            "two",
            "three",
        ]
        assert server.last.path == "/v1/chat/completions"
        assert json.loads(server.last.raw) == server.last.body
        assert server.last.body["kv_transfer_params"] == SKIP["kv_transfer_params"]
        assert server.last.headers["traceparent"] == "00-1-2-01"


# --- errors ---


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("chat/completions", {"model": MODEL}, 400, "body.messages"),
        ("chat/completions", {"model": MODEL, "messages": "text"}, 400, "body.messages"),
        ("responses", {"model": MODEL}, 400, "body.input"),
        ("chat/completions", {"model": "nope", "messages": LONG}, 404, "`nope` does not exist"),
        (
            "chat/completions",
            {"messages": LONG, "kv_transfer_params": "x"},
            400,
            "body.kv_transfer_params",
        ),
        (
            "chat/completions",
            {"messages": LONG, "kv_transfer_params": [1]},
            400,
            "body.kv_transfer_params",
        ),
        ("chat/completions", [1, 2], 400, "JSON"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x" * 600_000}]},
            400,
            "maximum context length",
        ),
    ],
)
def test_a_request_that_vllm_rejects_is_rejected(
    server: StandIn, path: str, body: Any, status: int, named: str
) -> None:
    answer = httpx2.post(f"{server.base_url}/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    assert named in answer.json()["error"]["message"]


def test_a_body_that_is_not_json_is_rejected_and_recorded(server: StandIn) -> None:
    assert httpx2.post(f"{server.base_url}/chat/completions", content=b"{").status_code == 400
    assert server.last.body is None
    assert server.last.raw == b"{"


def test_unknown_fields_are_accepted_as_in_vllm(client: Any) -> None:
    assert client.chat.completions.create(
        model=MODEL, messages=LONG, extra_body={"bogus": 1}
    ).choices


def test_a_string_cap_stops_the_engine_and_fails_the_health_check() -> None:
    with StandIn() as server, client_of(server) as client:
        assert httpx2.get(f"{server.url}/health").status_code == 200
        for extra in ({"kv_transfer_params": {"lmcache.max_offload_tokens": "0"}}, {}):
            with pytest.raises(openai.InternalServerError):
                client.chat.completions.create(model=MODEL, messages=LONG, extra_body=extra)
        assert httpx2.get(f"{server.url}/health").status_code == 503


REJECTIONS: dict[str, tuple[int, tuple[Any, ...], str]] = {
    "openai": (
        400,
        ("error", "message"),
        "Unrecognized request argument supplied: kv_transfer_params",
    ),
    "openai_responses": (400, ("error", "code"), "unknown_parameter"),
    "azure": (
        400,
        ("error", "message"),
        "Unrecognized request argument supplied: kv_transfer_params",
    ),
    "mistral": (422, ("message", "detail", 0, "type"), "extra_forbidden"),
    "mistral_text": (422, ("detail", 0, "loc", 1), "kv_transfer_params"),
    "nim": (422, ("detail",), "'loc': ('body', 'kv_transfer_params')"),
    "groq": (400, ("error", "message"), "property 'kv_transfer_params' is unsupported"),
    "gemini": (
        400,
        (0, "error", "message"),
        'Unknown name "kv_transfer_params": Cannot find field.',
    ),
    "anthropic": (400, ("error", "message"), "kv_transfer_params: Extra inputs are not permitted"),
    "fireworks": (400, ("error", "message"), "field: 'kv_transfer_params'"),
    "vllm_2024": (400, ("message",), "'loc': ('body', 'kv_transfer_params')"),
}


def test_every_strict_style_is_tested() -> None:
    assert set(REJECTIONS) == set(get_args(StrictStyle))


@pytest.mark.parametrize("style", REJECTIONS)
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_a_strict_vendor_rejects_the_hint_with_its_own_error(style: str, path: str) -> None:
    status, place, words = REJECTIONS[style]
    known = (
        {"model": MODEL, "messages": LONG}
        if path == "chat/completions"
        else {"model": MODEL, "input": "hi", "instructions": "be"}
    )
    with StandIn(strict=style) as server:
        assert (
            httpx2.post(
                f"{server.base_url}/{path}", json=known | {"stream": False, "temperature": 0}
            ).status_code
            == 200
        )
        answer = httpx2.post(f"{server.base_url}/{path}", json=known | SKIP)
    value = answer.json()
    for step in place:
        value = value[step]
    assert answer.status_code == status
    assert words in value
    assert server.chunks_stored == (1 if path == "chat/completions" else 0)


def test_an_api_key_is_required_on_v1_only() -> None:
    with StandIn(api_key="secret") as server:
        with (
            client_of(server, api_key="secret") as right,
            client_of(server, api_key="other") as wrong,
        ):
            assert right.chat.completions.create(model=MODEL, messages=LONG).choices
            with pytest.raises(openai.AuthenticationError):
                wrong.chat.completions.create(model=MODEL, messages=LONG)
        assert httpx2.get(f"{server.url}/metrics").status_code == 200


@pytest.mark.parametrize(
    ("status", "kind"), [(429, openai.RateLimitError), (500, openai.InternalServerError)]
)
def test_the_first_calls_can_fail(status: int, kind: type[Exception]) -> None:
    with StandIn(fail_first=2, fail_status=status) as server, client_of(server) as client:
        for _ in range(2):
            with pytest.raises(kind):
                client.chat.completions.create(model=MODEL, messages=LONG)
        assert client.chat.completions.create(model=MODEL, messages=LONG).choices


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("429", openai.RateLimitError),
        ("503", openai.InternalServerError),
        ("stall", openai.APITimeoutError),
        ("reset", openai.APIConnectionError),
    ],
)
def test_a_request_can_ask_for_a_fault(
    server: StandIn, fault: str, error: type[Exception], stream: bool
) -> None:
    with client_of(server, timeout=0.3) as client, pytest.raises(error):
        list(
            client.chat.completions.create(
                model=MODEL, messages=LONG, stream=stream, extra_headers={FAULT_HEADER: fault}
            )
        )


def test_a_stream_can_break_inside_an_event(client: Any) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=LONG, stream=True, extra_headers={FAULT_HEADER: "broken_sse"}
    )
    assert [next(stream).object for _ in range(2)] == ["chat.completion.chunk"] * 2
    with pytest.raises(json.JSONDecodeError):
        next(stream)


# --- metrics pages ---


def test_the_vllm_metrics_equal_the_usage_in_the_answers() -> None:
    with StandIn() as server, client_of(server) as client:
        first = client.chat.completions.create(model=MODEL, messages=LONG).usage
        own = client.chat.completions.create(model=MODEL, messages=LONG).usage
        server.reset_prefix_cache()
        external = client.chat.completions.create(model=MODEL, messages=LONG).usage
        totals = page(server.url)
    prompt = 3 * first.prompt_tokens
    assert totals["vllm:prompt_tokens_total"] == totals["vllm:prefix_cache_queries_total"] == prompt
    assert totals["vllm:prefix_cache_hits_total"] == own.prompt_tokens_details.cached_tokens
    assert (
        totals["vllm:external_prefix_cache_hits_total"]
        == external.prompt_tokens_details.cached_tokens
        == 256
    )
    assert (
        totals["vllm:external_prefix_cache_queries_total"]
        == prompt - own.prompt_tokens_details.cached_tokens
    )
    assert totals["vllm:prompt_tokens_by_source_total"] == prompt
    assert (
        totals["vllm:prompt_tokens_cached_by_source_total"]
        == totals["vllm:prompt_tokens_cached_total"]
    )
    assert (
        totals["vllm:request_success_total"]
        == totals["vllm:lmcache_mp_lookup_duration_seconds_count"]
        == 3
    )
    assert totals["vllm:num_requests_running"] == 0


def test_a_request_whose_client_leaves_before_the_end_of_the_body_is_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with StandIn() as server:
        with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0)) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            until(
                lambda: page(server.url)["vllm:num_requests_running"] == 1, "the request to begin"
            )
        until(lambda: page(server.url)["vllm:num_requests_running"] == 0, "the request to end")
        assert 'finished_reason="abort"' in httpx2.get(f"{server.url}/metrics").text
    assert not caplog.records


def test_the_lmcache_metrics_are_split_by_tier() -> None:
    with StandIn() as server, client_of(server) as client:
        assert "lmcache_mp_l1_write_chunks_total" not in page(server.lmcache_url)
        client.chat.completions.create(model=MODEL, messages=LONG)
        client.chat.completions.create(model=MODEL, messages=LONG)
        httpx2.post(f"{server.lmcache_url}/cache/clear").raise_for_status()
        client.chat.completions.create(model=MODEL, messages=LONG)
        totals = page(server.lmcache_url)
    assert totals["lmcache_mp_lookup_requested_tokens_total"] == 768
    assert (
        totals["lmcache_mp_lookup_hit_l1_tokens_total"]
        == totals["lmcache_mp_lookup_hit_l2_tokens_total"]
        == 256
    )
    assert totals["lmcache_mp_lookup_hit_tokens_total"] == 512
    assert totals["lmcache_mp_l1_write_chunks_total"] == 2
    assert (
        totals["lmcache_mp_l2_prefetch_load_completed_chunks_total"]
        == totals["lmcache_mp_l2_store_completed_objects_chunks_total"]
        == 1
    )
    assert (
        totals["lmcache_mp_l1_memory_usage_bytes"]
        == totals["lmcache_mp_l2_usage_bytes"]
        == 256 * 131072
    )
    assert "lmcache_mp_l1_evicted_chunks_total" not in totals
    assert not any(name.endswith("_created") for name in totals)


def test_in_process_metrics_are_on_the_vllm_page() -> None:
    with StandIn(mode="in_process") as server, client_of(server) as client:
        assert server.lmcache_url is None
        for _ in range(2):
            client.chat.completions.create(model=MODEL, messages=LONG)
        totals = page(server.url)
    assert (
        totals["lmcache:num_stored_tokens_total"] == totals["lmcache:num_lookup_hits_total"] == 256
    )
    assert totals["lmcache:num_lookup_tokens_total"] == 512
    assert totals["lmcache:lookup_hit_rate"] == 0.5


def test_metrics_can_be_disabled() -> None:
    with StandIn(serve_metrics=False) as server:
        assert [
            httpx2.get(f"{url}/metrics").status_code for url in (server.url, server.lmcache_url)
        ] == [404, 404]


def test_both_servers_report_versions_and_configuration(server: StandIn) -> None:
    models = httpx2.get(f"{server.base_url}/models").json()["data"]
    status = httpx2.get(f"{server.lmcache_url}/status").json()
    config = httpx2.get(f"{server.lmcache_url}/config").json()
    assert models[0]["id"] == MODEL
    assert httpx2.get(f"{server.url}/version").json() == {"version": "0.32.0"}
    assert httpx2.get(f"{server.lmcache_url}/version").json() == "0.5.6"
    assert httpx2.get(f"{server.lmcache_url}/healthcheck").json() == {"status": "healthy"}
    assert httpx2.get(f"{server.lmcache_url}/").json()["status"] == "ok"
    assert status["chunk_size"] == config["mp"]["chunk_size"] == 256
    assert status["storage_manager"]["l1_manager"]["memory_total_bytes"] == server.options.l1_bytes


# --- sockets ---


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_a_host_that_is_not_loopback_is_rejected(host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        StandIn(host=host)


def test_a_port_in_use_is_named_in_the_error(server: StandIn) -> None:
    port = server.url.rpartition(":")[2]
    with pytest.raises(OSError, match="in use"):
        StandIn(port=int(port))
    result = CliRunner().invoke(main, ["--port", port])
    assert result.exit_code == 1
    assert f"in use: '127.0.0.1:{port}'" in result.output


def test_the_command_rejects_other_hosts() -> None:
    result = CliRunner().invoke(main, ["--host", "0.0.0.0"])
    assert (result.exit_code, "0.0.0.0" in result.output) == (1, True)


def test_closing_frees_the_port() -> None:
    with StandIn() as first:
        port = int(first.url.rpartition(":")[2])
    with StandIn(port=port) as second:
        assert httpx2.get(f"{second.url}/health").status_code == 200


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_gets_an_error_with_the_install_command(missing: str) -> None:
    script = (
        f"import runpy, sys; sys.modules[{missing!r}] = None;"
        " runpy.run_module('otel_kvpolicy.standin', run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith(
        f"the stand-in needs {missing}: pip install 'otel-kvpolicy[demo]'"
    )

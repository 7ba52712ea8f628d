"""Every way to make a chat call with the openai client, sync and async: ``call(client, **body)``.

Each one reads its answer to the end and returns nothing. Tests look at what reached the server and
at what was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

USAGE = {"stream_options": {"include_usage": True}}


class Answer(BaseModel):
    """A structured answer for ``parse``."""

    text: str


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "stand-in",
        "messages": body.get("messages") or [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        **body,
    }


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in body.items() if key != "messages"}
    return {
        "model": "stand-in",
        "input": body.get("messages") or "hi",
        "max_output_tokens": 16,
        **given,
    }


def _helpers(client: Any) -> Any:
    """Return the object with ``parse`` and ``stream``, which left beta in openai 1.92."""
    return (
        client.chat.completions
        if hasattr(client.chat.completions, "parse")
        else client.beta.chat.completions
    )


def create(client: Any, **body: Any) -> None:
    assert client.chat.completions.create(**_chat(body)).id


def parse(client: Any, **body: Any) -> None:
    _helpers(client).parse(response_format=Answer, **{**_chat(body), "max_tokens": 400})


def stream(client: Any, **body: Any) -> None:
    assert [chunk for chunk in client.chat.completions.create(stream=True, **USAGE, **_chat(body))]


def stream_helper(client: Any, **body: Any) -> None:
    with _helpers(client).stream(**USAGE, **_chat(body)) as events:
        assert [event for event in events]


def raw(client: Any, **body: Any) -> None:
    assert client.chat.completions.with_raw_response.create(**_chat(body)).parse().id


def raw_stream(client: Any, **body: Any) -> None:
    assert [
        chunk
        for chunk in client.chat.completions.with_raw_response.create(
            stream=True, **USAGE, **_chat(body)
        ).parse()
    ]


def streaming_raw(client: Any, **body: Any) -> None:
    with client.chat.completions.with_streaming_response.create(**_chat(body)) as response:
        assert response.json()


def streaming_raw_parsed(client: Any, **body: Any) -> None:
    with client.chat.completions.with_streaming_response.create(**_chat(body)) as response:
        assert response.parse().id


def streaming_raw_stream(client: Any, **body: Any) -> None:
    with client.chat.completions.with_streaming_response.create(
        stream=True, **USAGE, **_chat(body)
    ) as response:
        assert [chunk for chunk in response.parse()]


def with_options(client: Any, **body: Any) -> None:
    assert client.with_options(max_retries=0).chat.completions.create(**_chat(body)).id


def post(client: Any, **body: Any) -> None:
    assert client.post("/chat/completions", body=_chat(body), cast_to=object)


def responses_create(client: Any, **body: Any) -> None:
    assert client.responses.create(**_responses(body)).id


def responses_stream(client: Any, **body: Any) -> None:
    assert [event for event in client.responses.create(stream=True, **_responses(body))]


def responses_stream_helper(client: Any, **body: Any) -> None:
    with client.responses.stream(**_responses(body)) as events:
        assert [event for event in events]


def responses_raw(client: Any, **body: Any) -> None:
    assert client.responses.with_raw_response.create(**_responses(body)).parse().id


async def a_create(client: Any, **body: Any) -> None:
    assert (await client.chat.completions.create(**_chat(body))).id


async def a_parse(client: Any, **body: Any) -> None:
    await _helpers(client).parse(response_format=Answer, **{**_chat(body), "max_tokens": 400})


async def a_stream(client: Any, **body: Any) -> None:
    assert [
        chunk
        async for chunk in await client.chat.completions.create(stream=True, **USAGE, **_chat(body))
    ]


async def a_stream_helper(client: Any, **body: Any) -> None:
    async with _helpers(client).stream(**USAGE, **_chat(body)) as events:
        assert [event async for event in events]


async def a_raw(client: Any, **body: Any) -> None:
    assert (await client.chat.completions.with_raw_response.create(**_chat(body))).parse().id


async def a_raw_stream(client: Any, **body: Any) -> None:
    response = await client.chat.completions.with_raw_response.create(
        stream=True, **USAGE, **_chat(body)
    )
    assert [chunk async for chunk in response.parse()]


async def a_streaming_raw(client: Any, **body: Any) -> None:
    async with client.chat.completions.with_streaming_response.create(**_chat(body)) as response:
        assert await response.json()


async def a_streaming_raw_stream(client: Any, **body: Any) -> None:
    async with client.chat.completions.with_streaming_response.create(
        stream=True, **USAGE, **_chat(body)
    ) as response:
        assert [chunk async for chunk in await response.parse()]


async def a_with_options(client: Any, **body: Any) -> None:
    assert (await client.with_options(max_retries=0).chat.completions.create(**_chat(body))).id


async def a_responses_create(client: Any, **body: Any) -> None:
    assert (await client.responses.create(**_responses(body))).id


async def a_responses_stream(client: Any, **body: Any) -> None:
    assert [event async for event in await client.responses.create(stream=True, **_responses(body))]


SYNC: list[Callable[..., None]] = [
    create,
    parse,
    stream,
    stream_helper,
    raw,
    raw_stream,
    streaming_raw,
    streaming_raw_parsed,
    streaming_raw_stream,
    with_options,
    post,
    responses_create,
    responses_stream,
    responses_stream_helper,
    responses_raw,
]
ASYNC: list[Callable[..., Any]] = [
    a_create,
    a_parse,
    a_stream,
    a_stream_helper,
    a_raw,
    a_raw_stream,
    a_streaming_raw,
    a_streaming_raw_stream,
    a_with_options,
    a_responses_create,
    a_responses_stream,
]


def run(surface: Callable[..., Any], base_url: str, **body: Any) -> None:
    """Call ``surface`` with a new client for ``base_url``."""
    if surface in SYNC:
        with OpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
            surface(client, **body)
        return

    async def with_client() -> None:
        async with AsyncOpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
            await surface(client, **body)

    asyncio.run(with_client())

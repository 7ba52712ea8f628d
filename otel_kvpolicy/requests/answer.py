"""Reads what the server reports about a call: token usage, id, model, finish reasons."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._fast import field, is_text_chunk


class Answer(NamedTuple):
    """What a response reports; None for what it does not report.

    Attributes:
        input_tokens: prompt tokens.
        output_tokens: generated tokens.
        cached_tokens: prompt tokens that came from a cache, vLLM's own or LMCache.
        response_id: id of the response.
        model: model that answered.
        finish_reasons: why generation ended, one for each choice.
        vllm_tokens: prompt tokens that vLLM's own cache had, if ``cached_token_stats`` was sent.
        lmcache_tokens: leading prompt tokens that LMCache had, if ``cached_token_stats`` was sent.
            The two can overlap.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    response_id: str | None = None
    model: str | None = None
    finish_reasons: tuple[str, ...] = ()
    vllm_tokens: int | None = None
    lmcache_tokens: int | None = None

    def then(self, later: Answer) -> Answer:
        """Return this answer completed by a later chunk of the same stream."""
        return self._replace(
            **{name: value for name, value in later._asdict().items() if value not in {None, ()}}
        )


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_answer(response: Any) -> Answer:
    """Read a chat completion or a Responses API response, which spell usage differently.

    Args:
        response: an object of the client, or plain JSON.
    """
    usage = field(response, "usage")
    details = field(usage, "prompt_tokens_details") or field(usage, "input_tokens_details")
    stats = field(field(response, "kv_transfer_params"), "cached_token_stats")
    prompt, completion = (
        _int(field(usage, "prompt_tokens")),
        _int(field(usage, "completion_tokens")),
    )
    return Answer(
        input_tokens=_int(field(usage, "input_tokens")) if prompt is None else prompt,
        output_tokens=_int(field(usage, "output_tokens")) if completion is None else completion,
        cached_tokens=_int(field(details, "cached_tokens")),
        vllm_tokens=_int(field(stats, "num_vllm_cached_tokens")),
        lmcache_tokens=_int(field(stats, "num_lmcache_cached_tokens")),
        response_id=_str(field(response, "id")),
        model=_str(field(response, "model")),
        finish_reasons=_finish_reasons(response),
    )


def _finish_reasons(response: Any) -> tuple[str, ...]:
    choices = field(response, "choices")
    if isinstance(choices, (list, tuple)):
        return tuple(
            reason
            for choice in choices
            if isinstance(reason := field(choice, "finish_reason"), str)
        )
    status = field(response, "status")
    return (status,) if isinstance(status, str) else ()


def read_chunk(chunk: Any) -> Answer | None:
    """Read one event of a stream; None if it reports nothing, which is true of nearly all."""
    if is_text_chunk(chunk):
        return None
    whole = field(chunk, "response")
    if whole is not None:
        reports = field(whole, "usage") is not None or field(chunk, "type") == "response.created"
        return read_answer(whole) if reports else None
    if field(chunk, "usage") is not None:
        return read_answer(chunk)
    choices = field(chunk, "choices")
    if (
        isinstance(choices, (list, tuple))
        and choices
        and field(choices[0], "finish_reason") is not None
    ):
        return read_answer(chunk)
    return None

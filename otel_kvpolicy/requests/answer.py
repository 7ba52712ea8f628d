"""Responses -> what the server says of the call: token usage, id, model, finish reasons. Parsed objects and plain JSON alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a response says; ``None`` where it does not.

    ``cached_tokens`` counts vLLM's own and LMCache's hits together. Where the request asked for the split (``cached_token_stats``),
    ``vllm_tokens`` is what vLLM had itself and ``lmcache_tokens`` the leading part that LMCache had, which may overlap.
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
        """This answer completed by a later chunk of the same stream."""
        return self._replace(
            **{field: value for field, value in later._asdict().items() if value not in {None, ()}}
        )


def _get(value: Any, name: str) -> Any:
    """A field of a mapping or an object; ``None`` for none. Asked for a field that it lacks, a pydantic model takes 2 us to say so, so that
    it is looked into instead.
    """
    if value is None or type(value) is dict:
        return None if value is None else value.get(name)
    fields = getattr(value, "__dict__", None)
    if type(fields) is dict and name in fields:
        return fields[name]
    extra = getattr(value, "__pydantic_extra__", None)
    if type(extra) is dict:
        return extra.get(name)
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_answer(response: Any) -> Answer:
    """Reads a chat completion or a Responses API response (the two spell usage differently)."""
    usage = _get(response, "usage")
    details = _get(usage, "prompt_tokens_details") or _get(usage, "input_tokens_details")
    stats = _get(_get(response, "kv_transfer_params"), "cached_token_stats")
    prompt, completion = _int(_get(usage, "prompt_tokens")), _int(_get(usage, "completion_tokens"))
    return Answer(
        input_tokens=_int(_get(usage, "input_tokens")) if prompt is None else prompt,
        output_tokens=_int(_get(usage, "output_tokens")) if completion is None else completion,
        cached_tokens=_int(_get(details, "cached_tokens")),
        vllm_tokens=_int(_get(stats, "num_vllm_cached_tokens")),
        lmcache_tokens=_int(_get(stats, "num_lmcache_cached_tokens")),
        response_id=_str(_get(response, "id")),
        model=_str(_get(response, "model")),
        finish_reasons=_finish_reasons(response),
    )


def _finish_reasons(response: Any) -> tuple[str, ...]:
    choices = _get(response, "choices")
    if isinstance(choices, (list, tuple)):
        return tuple(
            reason for choice in choices if isinstance(reason := _get(choice, "finish_reason"), str)
        )
    status = _get(response, "status")
    return (status,) if isinstance(status, str) else ()


def read_chunk(chunk: Any) -> Answer | None:
    """Reads one event of a stream; ``None`` where it says nothing, as nearly all do."""
    if _is_text(chunk):
        return None
    whole = _get(chunk, "response")
    if whole is not None:
        return (
            read_answer(whole)
            if _get(whole, "usage") is not None or _get(chunk, "type") == "response.created"
            else None
        )
    if _get(chunk, "usage") is not None:
        return read_answer(chunk)
    choices = _get(chunk, "choices")
    if (
        isinstance(choices, (list, tuple))
        and choices
        and _get(choices[0], "finish_reason") is not None
    ):
        return read_answer(chunk)
    return None


def _is_text(chunk: Any) -> bool:
    """Whether it is a piece of text and no more, in the shape that the models of openai have: a delta, of a choice or of a response."""
    try:
        fields = vars(chunk)
        return "delta" in fields or (
            fields["usage"] is None and vars(fields["choices"][0])["finish_reason"] is None
        )
    except (TypeError, KeyError, IndexError):
        return False

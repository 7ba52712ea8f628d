"""What servers accept in a chat request, written down from their sources as far as it concerns us.

Their packages need PyTorch to be imported, so the few facts that matter here are restated: which
unknown fields a server accepts, what type it demands of ``kv_transfer_params``, and how it answers
a request that it rejects. ``docs/servers.md`` has the places in their sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

Answer = tuple[int, Any]
"""HTTP status, and the body of the answer; 200 and the accepted fields if the request is valid."""


class _Chat(BaseModel):
    model: str
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    stream: bool | None = False


class VLLMChat(_Chat):
    """vLLM 0.34.0: unknown fields are kept, the field is a mapping or null."""

    model_config = ConfigDict(extra="allow")
    kv_transfer_params: dict[str, Any] | None = None


class SGLangChat(_Chat):
    """SGLang 0.5.23: no such field, and unknown fields are dropped."""

    model_config = ConfigDict(extra="ignore")
    cache_salt: list[str] | str | None = None


class TensorRTChat(_Chat):
    """TensorRT-LLM's ``trtllm-serve``: no such field, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")
    cache_salt: str | None = None


_DYNAMO_FIELDS: Final = frozenset(
    {
        *_Chat.model_fields,
        "nvext",
        "cache_salt",
        "stop_token_ids",
        "detokenize",
        "allowed_token_ids",
        "bad_words_token_ids",
    }
)


def vllm(body: dict[str, Any]) -> Answer:
    try:
        return 200, VLLMChat.model_validate(body).model_dump()
    except ValidationError as error:
        param = ".".join(str(part) for part in error.errors()[0]["loc"])
        return 400, {"error": {"message": str(error), "type": "Bad Request", "param": param}}


def sglang(body: dict[str, Any]) -> Answer:
    return 200, SGLangChat.model_validate(body).model_dump()


def tensorrt_llm(body: dict[str, Any]) -> Answer:
    try:
        return 200, TensorRTChat.model_validate(body).model_dump()
    except ValidationError as error:
        problems = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        text = "\n".join(f"  {one}" for one in problems)
        return 400, {"error": f"{len(problems)} validation error:\n{text}"}


def dynamo(body: dict[str, Any]) -> Answer:
    unknown = [f"`{name}`" for name in body if name not in _DYNAMO_FIELDS]
    if not unknown:
        return 200, body
    message = f"Unsupported parameter(s): {', '.join(unknown)}"
    return 400, {"message": message, "type": "Bad Request", "code": 400}


Server = Literal["vllm", "sglang", "tensorrt-llm", "dynamo"]

SERVERS: Final[dict[Server, Callable[[dict[str, Any]], Answer]]] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "dynamo": dynamo,
}


def offloading_cap(body: dict[str, Any]) -> int | None:
    """Return the cap that vLLM's ``OffloadingConnector`` takes from an accepted request."""
    params = body.get("kv_transfer_params")
    cap = params.get("max_offload_tokens") if params else None
    return cap if type(cap) is int and cap >= 0 else None

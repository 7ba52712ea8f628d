"""Answers of ``/v1/chat/completions``, plain and streamed, in the format of vLLM 0.32.0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .answers import Answer, answer
from .engine import Prefill
from .prompt import render


@dataclass(frozen=True)
class ChatCall:
    """One chat completions request and its reply.

    Attributes:
        body: the request body, after the checks that vLLM makes.
        reply: the content of the answer.
        created: time of the answer, in Unix seconds.
        id: completion id.
    """

    body: Mapping[str, Any]
    reply: Answer
    created: int
    id: str

    @classmethod
    def of(cls, body: Mapping[str, Any], created: int, unique: str) -> ChatCall:
        """Read a request and generate its reply."""
        tools = [
            tool["function"]
            for tool in body.get("tools") or []
            if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)
        ]
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        reply = answer(
            body["messages"],
            tools,
            body.get("tool_choice"),
            _schema(body.get("response_format")),
            limit,
        )
        return cls(body, reply, created, f"chatcmpl-{unique}")

    @property
    def text(self) -> str:
        """The rendered prompt."""
        return render(self.body["messages"], self.body.get("tools"))

    @property
    def finish_reason(self) -> str:
        """``stop``, ``length`` or ``tool_calls``."""
        if self.reply.tool_call:
            return "tool_calls"
        return "stop" if self.reply.complete else "length"

    def usage(self, prefill: Prefill, details: bool) -> dict[str, Any]:
        """Return the ``usage`` of the reply.

        Args:
            prefill: where the tokens of the prompt came from.
            details: vLLM's ``--enable-prompt-tokens-details``.
        """
        completion = self.reply.tokens * self._n
        usage: dict[str, Any] = {
            "prompt_tokens": prefill.prompt_tokens,
            "total_tokens": prefill.prompt_tokens + completion,
            "completion_tokens": completion,
        }
        if details:
            usage["prompt_tokens_details"] = {
                "cached_tokens": prefill.cached_tokens,
                "created_cache_tokens": prefill.new_gpu_tokens,
            }
        return usage

    def plain(
        self, prefill: Prefill, details: bool, kv_transfer_params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the whole answer."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self.reply.text or None,
            "refusal": None,
        }
        if self.reply.tool_call:
            message["tool_calls"] = [self._tool_call()]
        choices = [
            {
                "index": index,
                "message": message,
                "logprobs": None,
                "finish_reason": self.finish_reason,
                "stop_reason": None,
            }
            for index in range(self._n)
        ]
        return {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": self.usage(prefill, details),
            "kv_transfer_params": kv_transfer_params,
        }

    def chunks(self, prefill: Prefill, details: bool) -> Iterator[dict[str, Any]]:
        """Yield the answer in stream chunks, without the final ``[DONE]``."""
        for index in range(self._n):
            yield self._chunk(index, {"role": "assistant", "content": ""})
            if self.reply.tool_call:
                yield self._chunk(index, {"tool_calls": [{"index": 0, **self._tool_call()}]})
            else:
                for piece in self.reply.pieces():
                    yield self._chunk(index, {"content": piece})
            yield self._chunk(index, {}, self.finish_reason)
        options = self.body.get("stream_options")
        if isinstance(options, Mapping) and options.get("include_usage"):
            yield {
                **self._head("chat.completion.chunk"),
                "choices": [],
                "usage": self.usage(prefill, details),
            }

    @property
    def _n(self) -> int:
        return self.body.get("n") or 1

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.body["model"]}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _tool_call(self) -> dict[str, Any]:
        call = self.reply.tool_call
        assert call is not None
        return {
            "id": f"call_{self.id[-16:]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }


def _schema(response_format: Any) -> Mapping[str, Any] | None:
    if not isinstance(response_format, Mapping):
        return None
    if response_format.get("type") == "json_object":
        return {}
    schema = response_format.get("json_schema")
    return (schema.get("schema") or {}) if isinstance(schema, Mapping) else None

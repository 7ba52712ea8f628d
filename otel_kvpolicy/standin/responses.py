"""Answers of ``/v1/responses``, plain and streamed, in the format of vLLM 0.32.0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .answers import Answer, answer
from .engine import Prefill
from .prompt import render


@dataclass(frozen=True)
class ResponsesCall:
    """One Responses request and its reply.

    Attributes:
        body: the request body, after the checks that vLLM makes.
        messages: the conversation as chat messages, including that of ``previous_response_id``.
        reply: the content of the answer.
        created: time of the answer, in Unix seconds.
        unique: the unique part of all ids.
    """

    body: Mapping[str, Any]
    messages: list[dict[str, Any]]
    reply: Answer
    created: int
    unique: str

    @classmethod
    def of(
        cls, body: Mapping[str, Any], earlier: Sequence[dict[str, Any]], created: int, unique: str
    ) -> ResponsesCall:
        """Read a request and generate its reply.

        Args:
            body: the request body.
            earlier: the conversation of ``previous_response_id``.
            created: time of the answer, in Unix seconds.
            unique: the unique part of all ids.
        """
        instructions = body.get("instructions")
        head = [{"role": "system", "content": instructions}] if instructions else []
        messages = [*head, *earlier, *_input_messages(body.get("input"))]
        tools = [
            tool
            for tool in body.get("tools") or []
            if isinstance(tool, Mapping) and tool.get("type") == "function"
        ]
        reply = answer(
            messages,
            tools,
            body.get("tool_choice"),
            _schema(body.get("text")),
            body.get("max_output_tokens"),
        )
        return cls(body, messages, reply, created, unique)

    @property
    def id(self) -> str:
        """Response id."""
        return f"resp_{self.unique}"

    @property
    def text(self) -> str:
        """The rendered prompt."""
        return render(self.messages, self.body.get("tools"))

    @property
    def finish_reason(self) -> str:
        """``stop`` or ``length``, for metrics."""
        return "stop" if self.reply.complete else "length"

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The conversation including the reply, for a later ``previous_response_id``.

        Instructions are not part of it.
        """
        messages = [message for message in self.messages if message["role"] != "system"]
        return [*messages, {"role": "assistant", "content": self.reply.text}]

    def plain(
        self, prefill: Prefill, kv_transfer_params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the whole answer."""
        return self._response(
            "completed" if self.reply.complete else "incomplete",
            [self._item("completed")],
            prefill,
            kv_transfer_params,
        )

    def events(self, prefill: Prefill) -> Iterator[dict[str, Any]]:
        """Yield the answer as numbered stream events."""
        for number, event in enumerate(self._events(prefill)):
            yield {**event, "sequence_number": number}

    def _events(self, prefill: Prefill) -> Iterator[dict[str, Any]]:
        yield {"type": "response.created", "response": self._response("in_progress", [], None)}
        yield {"type": "response.in_progress", "response": self._response("in_progress", [], None)}
        yield {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": self._item("in_progress"),
        }
        yield from self._call_events() if self.reply.tool_call else self._text_events()
        yield {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": self._item("completed"),
        }
        kind = "completed" if self.reply.complete else "incomplete"
        # vLLM 0.32.0 ends with response.completed even if the response's status is incomplete.
        yield {
            "type": "response.completed",
            "response": self._response(kind, [self._item("completed")], prefill),
        }

    def _text_events(self) -> Iterator[dict[str, Any]]:
        place = {"item_id": f"msg_{self.unique}", "output_index": 0, "content_index": 0}
        yield {"type": "response.content_part.added", **place, "part": _text_part("")}
        for piece in self.reply.pieces():
            yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        yield {
            "type": "response.output_text.done",
            **place,
            "text": self.reply.text,
            "logprobs": [],
        }
        yield {"type": "response.content_part.done", **place, "part": _text_part(self.reply.text)}

    def _call_events(self) -> Iterator[dict[str, Any]]:
        call = self.reply.tool_call
        assert call is not None
        place = {"item_id": f"fc_{self.unique}", "output_index": 0}
        yield {"type": "response.function_call_arguments.delta", **place, "delta": call.arguments}
        yield {
            "type": "response.function_call_arguments.done",
            **place,
            "name": call.name,
            "arguments": call.arguments,
        }

    def _item(self, status: str) -> dict[str, Any]:
        done = status == "completed"
        call = self.reply.tool_call
        if call is not None:
            return {
                "id": f"fc_{self.unique}",
                "type": "function_call",
                "call_id": f"call_{self.unique}",
                "name": call.name,
                "arguments": call.arguments if done else "",
                "status": status,
            }
        content = [_text_part(self.reply.text)] if done else []
        return {
            "id": f"msg_{self.unique}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(
        self,
        status: str,
        output: list[dict[str, Any]],
        prefill: Prefill | None,
        kv_transfer_params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "max_output_tokens": body.get("max_output_tokens"),
            "previous_response_id": body.get("previous_response_id"),
            "text": body.get("text"),
            "truncation": "disabled",
            "usage": self._usage(prefill) if prefill else None,
            "kv_transfer_params": kv_transfer_params,
        }

    def _usage(self, prefill: Prefill) -> dict[str, Any]:
        tokens = self.reply.tokens
        return {
            "input_tokens": prefill.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": prefill.cached_tokens,
                "cache_write_tokens": prefill.new_gpu_tokens,
            },
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prefill.prompt_tokens + tokens,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _input_messages(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return [_input_message(item) for item in value or [] if isinstance(item, Mapping)]


def _input_message(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {"function": {"name": item.get("name"), "arguments": item.get("arguments")}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return {"role": item.get("role", "assistant"), "content": item.get("content")}


def _schema(text: Any) -> Mapping[str, Any] | None:
    form = text.get("format") if isinstance(text, Mapping) else None
    if not isinstance(form, Mapping) or form.get("type") not in {"json_schema", "json_object"}:
        return None
    return form.get("schema") or {}

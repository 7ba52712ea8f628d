"""The replies of the stand-in: a fixed sentence, minimal JSON for a schema, or a tool call.

All of them are deterministic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .prompt import BYTES_PER_TOKEN, token_count

_SENTENCE: Final = "This is the stand-in: it counts what the caches do and has nothing else to say."
_MAX_DEPTH: Final = 16


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the request's tools, with minimal arguments for its schema, as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """A reply: a text, or a tool call.

    Attributes:
        text: the text; empty if there is a tool call.
        tool_call: the tool call, if any.
        complete: false if the token limit cut off the text.
    """

    text: str
    tool_call: ToolCall | None = None
    complete: bool = True

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return token_count(self.text + (self.tool_call.arguments if self.tool_call else ""))

    def pieces(self) -> Iterator[str]:
        """Yield the text word by word, as a stream does."""
        words = self.text.split(" ")
        for index, word in enumerate(words):
            yield word if index == len(words) - 1 else f"{word} "


def answer(
    messages: Sequence[Any],
    tools: Sequence[Any],
    tool_choice: Any,
    schema: Mapping[str, Any] | None,
    max_tokens: int | None,
) -> Answer:
    """Return the reply to a conversation.

    The reply is a tool call if ``tool_choice`` demands it (``"required"``, or a tool's name), or if
    the last message is the user's and names the tool. It is JSON if the request has a schema.

    Args:
        messages: chat messages.
        tools: function tools as ``{"name": …, "parameters": …}``.
        tool_choice: as in the request.
        schema: JSON schema of the requested format, ``{}`` for any object, or None for text.
        max_tokens: limit of the reply, or None.
    """
    tool = _chosen_tool(messages, tools, tool_choice)
    if tool is not None:
        arguments = json.dumps(_example(tool.get("parameters") or {}, {}, 0))
        return Answer("", ToolCall(tool["name"], arguments))
    if schema is not None:
        return Answer(json.dumps(_example(schema, schema.get("$defs", {}), 0)))
    limit = len(_SENTENCE) if max_tokens is None else max_tokens * BYTES_PER_TOKEN
    return Answer(_SENTENCE[:limit], complete=limit >= len(_SENTENCE))


def _chosen_tool(
    messages: Sequence[Any], tools: Sequence[Any], tool_choice: Any
) -> Mapping[str, Any] | None:
    if not tools or tool_choice == "none":
        return None
    if tool_choice == "required":
        return _mapping(tools[0])
    if isinstance(tool_choice, Mapping):
        name = tool_choice.get("name") or _mapping(tool_choice.get("function")).get("name")
        return next((tool for tool in tools if tool.get("name") == name), None)
    last = _mapping(messages[-1]) if messages else {}
    text = str(last.get("content")) if last.get("role") == "user" else ""
    return next((tool for tool in tools if tool.get("name") and str(tool["name"]) in text), None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _example(schema: Any, definitions: Mapping[str, Any], depth: int) -> Any:
    """Return a small value that fits a JSON schema as pydantic writes them."""
    schema = _mapping(schema)
    definitions = definitions or _mapping(schema.get("$defs"))
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _example(
            definitions.get(str(schema["$ref"]).rpartition("/")[2]), definitions, depth + 1
        )
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return _example(schema[choice][0], definitions, depth + 1)
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    return _example_of_type(schema, definitions, depth)


def _example_of_type(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = _mapping(schema.get("properties"))
        required = schema.get("required") or []
        return {
            name: _example(properties.get(name, {"type": "string"}), definitions, depth + 1)
            for name in required
        }
    if kind == "array":
        return [
            _example(schema.get("items", {}), definitions, depth + 1)
            for _ in range(schema.get("minItems", 0))
        ]
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    return {"string": "x" * max(schema.get("minLength", 0), 4), "boolean": True}.get(kind)

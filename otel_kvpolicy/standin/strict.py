"""How hosted vendors reject an unknown body field: the status and body of each vendor's answer.

The answers come from public reports. In a strict style, the stand-in accepts the fields that the
openai client's types have; a vendor accepts no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from .options import StrictStyle


class Refusal(NamedTuple):
    """An error answer: its HTTP status and JSON body."""

    status: int
    body: Any


@lru_cache
def _known_fields(path: str) -> frozenset[str]:
    from openai.types.chat import completion_create_params
    from openai.types.responses import response_create_params

    params: Any = (
        completion_create_params if path.endswith("chat/completions") else response_create_params
    )
    return frozenset(
        name
        for kind in vars(params).values()
        if isinstance(kind, type) and kind.__name__ in _PARAMS
        for name in getattr(kind, "__annotations__", ())
    )


_PARAMS: Final = frozenset(
    f"{kind}CreateParams{form}"
    for kind in ("Completion", "Response")
    for form in ("Base", "NonStreaming", "Streaming")
)


def refuse_unknown(style: StrictStyle, path: str, body: Mapping[str, Any]) -> Refusal | None:
    """Return the vendor's answer to a body with an unknown field, or None if it has none.

    Args:
        style: the vendor.
        path: request path, which determines the known fields.
        body: the parsed body.
    """
    for field in body:
        if field not in _known_fields(path):
            return _STYLES[style](field, body[field])
    return None


def _openai(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    return Refusal(
        400,
        {
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "param": param,
                "code": code,
            }
        },
    )


def _extra(field: str, value: Any) -> dict[str, Any]:
    return {
        "type": "extra_forbidden",
        "loc": ["body", field],
        "msg": "Extra inputs are not permitted",
        "input": value,
    }


def _python_extra(field: str, value: Any) -> str:
    """Return the error in the format in which pydantic prints a list of errors."""
    return repr(
        [
            {
                "type": "extra_forbidden",
                "loc": ("body", field),
                "msg": "Extra inputs are not permitted",
                "input": value,
            }
        ]
    )


def _gemini(field: str, value: Any) -> Refusal:
    text = f'Invalid JSON payload received. Unknown name "{field}": Cannot find field.'
    details = [
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"description": text}],
        }
    ]
    return Refusal(
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": text,
                    "status": "INVALID_ARGUMENT",
                    "details": details,
                }
            }
        ],
    )


def _mistral(field: str, value: Any) -> Refusal:
    body = {
        "object": "error",
        "message": {"detail": [_extra(field, value)]},
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    return Refusal(422, body)


def _vllm_2024(field: str, value: Any) -> Refusal:
    body = {
        "object": "error",
        "message": _python_extra(field, value),
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    return Refusal(400, body)


def _anthropic(field: str, value: Any) -> Refusal:
    message = f"{field}: Extra inputs are not permitted"
    return Refusal(
        400, {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    )


def _fireworks(field: str, value: Any) -> Refusal:
    message = f"Extra inputs are not permitted, field: '{field}', value: {value!r}"
    kind = "invalid_request_error"
    return Refusal(
        400, {"error": {"object": "error", "type": kind, "code": kind, "message": message}}
    )


_STYLES: Final[dict[StrictStyle, Callable[[str, Any], Refusal]]] = {
    "openai": lambda field, value: _openai(
        f"Unrecognized request argument supplied: {field}"
    ),  # spring-ai #5197
    "openai_responses": lambda field, value: _openai(
        f"Unknown parameter: '{field}'.", field, "unknown_parameter"
    ),  # semantic-router #1901
    "azure": lambda field, value: _openai(
        f"Unrecognized request argument supplied: {field}"
    ),  # quarkus-langchain4j #285
    "mistral": _mistral,  # mistral-go #3
    "mistral_text": lambda field, value: Refusal(
        422, {"detail": [_extra(field, value)]}
    ),  # openwhispr #844
    "nim": lambda field, value: Refusal(
        422, {"detail": _python_extra(field, value)}
    ),  # garak #748: detail is a string
    "groq": lambda field, value: Refusal(
        400,
        {
            "error": {
                "message": f"property '{field}' is unsupported",
                "type": "invalid_request_error",
            }
        },
    ),  # immersive-translate #3003
    "gemini": _gemini,  # openhanako #394
    "anthropic": _anthropic,  # oli #7
    "fireworks": _fireworks,  # Flowise #2866
    "vllm_2024": _vllm_2024,  # vllm #10463
}

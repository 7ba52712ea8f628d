"""Priority of a call: background work is stored only if others share its prefix."""

from __future__ import annotations

from typing import Any, Final, Literal

Priority = Literal["background", "interactive"]

BACKGROUND: Final = "background"
INTERACTIVE: Final = "interactive"

PRIORITIES: Final = (BACKGROUND, INTERACTIVE)

BACKGROUND_CALL: Final = "background_call"
INTERACTIVE_CALL: Final = "interactive_call"


def vllm_priority(value: Any) -> Priority | None:
    """Return the priority that vLLM's request field ``priority`` expresses; None for the default.

    vLLM handles lower numbers earlier, and 0 is its default (``ChatCompletionRequest.priority``).

    Args:
        value: the field of a request body, of any type.
    """
    if type(value) is not int or not value:
        return None
    return BACKGROUND if value > 0 else INTERACTIVE

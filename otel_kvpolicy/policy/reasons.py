"""The reason codes of this package's rules, and what each says of a call, in the words of ``explain``."""

from __future__ import annotations

from typing import Final

LONG_SHARED_PREFIX: Final = "long_shared_prefix"
MULTI_TURN_CONVERSATION: Final = "multi_turn_conversation"
LARGE_FIXED_CONTEXT: Final = "large_fixed_context"
LARGE_RAG_CONTEXT: Final = "large_rag_context"
REUSE_HEAVY_ROLE: Final = "reuse_heavy_role"
ONE_OFF_SHORT_PROMPT: Final = "one_off_short_prompt"
POLICY_DISABLED: Final = "policy_disabled"
REUSE_EXPECTED: Final = "reuse_expected"
REUSE_UNLIKELY: Final = "reuse_unlikely"
SHARED_PREFIX_LOST: Final = "shared_prefix_lost"

REASONS: Final[dict[str, str]] = {
    LONG_SHARED_PREFIX: "its system prompt and tools are long enough to be shared",
    MULTI_TURN_CONVERSATION: "it continues a conversation",
    LARGE_FIXED_CONTEXT: "the whole prompt is long",
    LARGE_RAG_CONTEXT: "its retrieved context is long",
    REUSE_HEAVY_ROLE: "it comes from a role that asks again and is half long enough",
    ONE_OFF_SHORT_PROMPT: "no signal reached its threshold",
    POLICY_DISABLED: "nothing is decided",
    REUSE_EXPECTED: "calls of its class come back often enough for what a place in the cache is worth",
    REUSE_UNLIKELY: "calls of its class come back too seldom for what a place in the cache is worth",
    SHARED_PREFIX_LOST: "several calls share its prefix, and the cache had lost it",
}

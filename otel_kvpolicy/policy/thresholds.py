"""The fixed rule: store when any one signal passes its threshold, or when a reuse-heavy role makes a borderline call."""

from __future__ import annotations

from typing import Any, Final

from .decision import KVCacheDecision
from .reasons import (
    LARGE_FIXED_CONTEXT,
    LARGE_RAG_CONTEXT,
    LONG_SHARED_PREFIX,
    MULTI_TURN_CONVERSATION,
    ONE_OFF_SHORT_PROMPT,
    POLICY_DISABLED,
    REUSE_HEAVY_ROLE,
)
from .signals import CallText, content_chars, estimate, history_text, json_chars

DEFAULT_MIN_PREFIX_TOKENS: Final = 1024
DEFAULT_MIN_CONTEXT_TOKENS: Final = 2048
DEFAULT_MIN_HISTORY_TURNS: Final = 1
DEFAULT_CHARS_PER_TOKEN: Final = 4.0

REUSE_HEAVY_ROLES: Final = frozenset(
    {"chat", "orchestrator", "planner", "router", "assistant", "conversation"}
)

TOOL_AGENT_ROLE: Final = "tool_agent"
"""The role of an agent with tools that names no other: its next step starts with this call's prompt. As weak a prior as any role."""

_TIPPING_ROLES: Final = REUSE_HEAVY_ROLES | {TOOL_AGENT_ROLE}

_MULTI_TURN_BONUS: Final = 0.25


def _check(name: str, value: float, minimum: float, strict: bool = False) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (value > minimum if strict else value >= minimum)
        or value == float("inf")
    ):
        raise ValueError(
            f"{name} must be a finite number {'above' if strict else 'of at least'} {minimum:g}, not {value!r}"
        )


def _tips(role: Any) -> bool:
    return isinstance(role, str) and role.strip().lower() in _TIPPING_ROLES


class KVCacheLayeringPolicy:
    """Stores a call when any signal says that its prefix will be asked for again.

    Args:
        enabled: false makes every decision inert.
        min_prefix_tokens: estimated tokens of the stable prefix (system prompt and tools) that make it worth storing; also for a RAG block.
        min_context_tokens: estimated tokens of the whole prompt that make it worth storing.
        min_history_turns: earlier model replies that make it worth storing; a call without any reply never counts as multi-turn.
        chars_per_token: characters taken for one token; an estimate, since no tokenizer runs on the caller's path.

    Raises:
        ValueError: a threshold is negative or no finite number, or ``chars_per_token`` is not above zero.
    """

    rule: Final = "thresholds"

    __slots__ = (
        "chars_per_token",
        "enabled",
        "min_context_tokens",
        "min_history_turns",
        "min_prefix_tokens",
    )

    def __init__(
        self,
        *,
        enabled: bool = True,
        min_prefix_tokens: int = DEFAULT_MIN_PREFIX_TOKENS,
        min_context_tokens: int = DEFAULT_MIN_CONTEXT_TOKENS,
        min_history_turns: int = DEFAULT_MIN_HISTORY_TURNS,
        chars_per_token: float = DEFAULT_CHARS_PER_TOKEN,
    ) -> None:
        _check("min_prefix_tokens", min_prefix_tokens, 0)
        _check("min_context_tokens", min_context_tokens, 0)
        _check("min_history_turns", min_history_turns, 0)
        _check("chars_per_token", chars_per_token, 0, strict=True)
        self.enabled = enabled
        self.min_prefix_tokens = min_prefix_tokens
        self.min_context_tokens = min_context_tokens
        self.min_history_turns = min_history_turns
        self.chars_per_token = chars_per_token

    def decide(
        self,
        *,
        system_prompt: Any = None,
        user_prompt: Any = None,
        message_history: Any = None,
        rag_context: Any = None,
        role: str | None = None,
        tools: Any = None,
    ) -> KVCacheDecision:
        """Decides for a call given by its parts. Never raises: what cannot be read counts as nothing.

        Args:
            system_prompt: the stable head of the prompt: a string or several.
            user_prompt: what is new in this call: a string, or a list of content parts.
            message_history: earlier messages: OpenAI mappings, pydantic-ai messages, or objects with ``.parts[].content``.
            rag_context: a retrieved block: a string or several.
            role: what kind of caller this is, such as ``"planner"``; see ``REUSE_HEAVY_ROLES``.
            tools: tool definitions (OpenAI's ``tools``); they count into the prefix.
        """
        if not self.enabled:
            return _DISABLED
        history_chars, turns = history_text(message_history)
        text = CallText(
            prefix_chars=content_chars(system_prompt),
            tool_chars=json_chars(tools) if tools else 0,
            history_chars=history_chars,
            rag_chars=content_chars(rag_context),
            user_chars=content_chars(user_prompt),
            history_turns=turns,
        )
        return self.judge(text, role)

    def judge(self, text: CallText, role: str | None = None) -> KVCacheDecision:
        """Decides for a call whose parts are counted already."""
        if not self.enabled:
            return _DISABLED
        signals = estimate(text, self.chars_per_token)
        prefix, total, turns = (
            signals["prefix_tokens"],
            signals["total_tokens"],
            signals["history_turns"],
        )
        context = self.min_context_tokens
        score = total / context if context else 1.0
        reasons = []
        if prefix >= self.min_prefix_tokens:
            reasons.append(f"{LONG_SHARED_PREFIX}({prefix}>={self.min_prefix_tokens}t)")
        if turns and turns >= self.min_history_turns:
            reasons.append(f"{MULTI_TURN_CONVERSATION}({turns}turns)")
            score += _MULTI_TURN_BONUS
        if total >= context:
            reasons.append(f"{LARGE_FIXED_CONTEXT}({total}>={context}t)")
        if text.rag_chars and signals["rag_tokens"] >= self.min_prefix_tokens:
            reasons.append(
                f"{LARGE_RAG_CONTEXT}({signals['rag_tokens']}>={self.min_prefix_tokens}t)"
            )
        if not reasons and role is not None and _tips(role) and total >= context / 2:
            reasons.append(f"{REUSE_HEAVY_ROLE}({role})")
        return KVCacheDecision.trusted(
            cache_worthy=bool(reasons),
            score=1.0 if score >= 1.0 else round(score, 4),
            reasons=reasons or [ONE_OFF_SHORT_PROMPT],
            signals=signals,
        )

    def __repr__(self) -> str:
        return f"KVCacheLayeringPolicy({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


_DISABLED: Final = KVCacheDecision(
    cache_worthy=False, skip_save=False, reasons=[POLICY_DISABLED], enabled=False
)

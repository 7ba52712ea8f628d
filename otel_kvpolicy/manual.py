"""``decide`` and ``fold_kv_hint``, for callers that build their requests by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from . import settings as live
from .layering_policy import KVCacheLayeringPolicy
from .policy import KVCacheDecision

_LIVE: Final = KVCacheLayeringPolicy()


def decide(
    *,
    system_prompt: Any = None,
    user_prompt: Any = None,
    message_history: Any = None,
    rag_context: Any = None,
    role: str | None = None,
    tools: Any = None,
) -> KVCacheDecision:
    """Decide a call with the settings in force.

    The arguments are those of :meth:`KVCacheLayeringPolicy.decide`.
    """
    return _LIVE.decide(
        system_prompt=system_prompt,
        user_prompt=user_prompt,
        message_history=message_history,
        rag_context=rag_context,
        role=role,
        tools=tools,
    )


def fold_kv_hint(
    settings: Mapping[str, Any] | None,
    *,
    system_prompt: Any = None,
    user_prompt: Any = None,
    message_history: Any = None,
    rag_context: Any = None,
    role: str | None = None,
    tools: Any = None,
) -> dict[str, Any]:
    """Decide a call and merge the hint into its model settings.

    Args:
        settings: model settings as a dict, whose ``extra_body`` the client sends. Never mutated.
        system_prompt: stable head of the prompt.
        user_prompt: what is new in this call.
        message_history: earlier messages.
        rag_context: retrieved block.
        role: kind of caller.
        tools: tool definitions.

    Returns:
        New settings. ``extra_body["kv_transfer_params"]`` holds the hint beside everything the
        caller put there, in the dialect that ``KV_CACHE_DIALECT`` names for all servers. They are
        unchanged if the policy is disabled or only observes, or if the caller has decided already.
    """
    folded = dict(settings or {})
    decision = decide(
        system_prompt=system_prompt,
        user_prompt=user_prompt,
        message_history=message_history,
        rag_context=rag_context,
        role=role,
        tools=tools,
    )
    now = live.current()
    body = folded.get("extra_body")
    if not decision.enabled or now.mode == "observe" or not isinstance(body, (Mapping, type(None))):
        return folded
    dialect = now.dialect.of(None)
    given = (body or {}).get(dialect.field)
    if dialect.is_callers(given):
        return folded
    params = dialect.params(
        skip=decision.skip_save, keys=now.hint_keys, stats=now.cached_token_stats
    )
    if params:
        folded["extra_body"] = {**(body or {}), dialect.field: dialect.merge(given, params)}
    return folded

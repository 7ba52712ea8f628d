"""From a decision to the request: ``kv_transfer_params`` and the ``extra_body`` that carries it.

Facts about LMCache's keys (read and run on 0.3.6 to 0.5.6): the in-process connector reads ``lmcache.skip_save`` by Python truth, the
multi-process server reads ``lmcache.max_offload_tokens`` as an int and floors it to whole chunks; each ignores the other's key. A string
there raises inside vLLM's scheduler, so nothing but bool and int is ever sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from .. import settings as live
from ..policy import KVCacheDecision
from ..policy.decision import SKIP_SAVE_KEY

FIELD: Final = "kv_transfer_params"
"""vLLM's body field, on chat completions since 0.9.2 and on responses since 0.19.0."""

MAX_OFFLOAD_KEY: Final = "lmcache.max_offload_tokens"
"""Tokens of the prompt that may be stored, read by LMCache's multi-process server since 0.5.6."""

STATS_KEY: Final = "cached_token_stats"
"""Asks LMCache's multi-process connector (since 0.4.7) to say in the answer what of the prompt it had, and what vLLM had."""

HintKeys = Literal["both", "skip_save", "max_offload_tokens"]


def hint_params(
    *, skip: bool, keys: HintKeys = "both", keep_tokens: int = 0, stats: bool = False
) -> dict[str, Any]:
    """The keys that say store or skip; storing is the default of both modes, so one key says it.

    Args:
        skip: whether the call's KV is not to be stored.
        keys: which of LMCache's keys may be sent.
        keep_tokens: of a skipped call, the leading tokens to be stored all the same, where the server can.
        stats: whether to ask for the split of the cached tokens.
    """
    params: dict[str, Any] = {}
    if keys != "max_offload_tokens":
        params[SKIP_SAVE_KEY] = skip
    if keys != "skip_save" and skip:
        params[MAX_OFFLOAD_KEY] = keep_tokens
    if stats:
        params[STATS_KEY] = True
    return params


def is_callers(params: Any) -> bool:
    """Whether the caller has decided: set one of LMCache's keys, or something that is no mapping and so cannot be added to."""
    if isinstance(params, Mapping):
        return SKIP_SAVE_KEY in params or MAX_OFFLOAD_KEY in params
    return params is not None


def caller_skips(params: Any) -> bool:
    """Whether the caller's own keys keep the call's KV from being stored, as LMCache reads them."""
    if not isinstance(params, Mapping):
        return False
    cap = params.get(MAX_OFFLOAD_KEY)
    return bool(params.get(SKIP_SAVE_KEY)) or (isinstance(cap, (int, float)) and cap <= 0)


def malformed_cap(params: Any) -> bool:
    """Whether the caller's cap is of a type that raises inside vLLM's scheduler and ends the server (run: ``"0"``)."""
    cap = params.get(MAX_OFFLOAD_KEY) if isinstance(params, Mapping) else None
    return cap is not None and not isinstance(cap, (int, float))


def decide(
    *,
    system_prompt: Any = None,
    user_prompt: Any = None,
    message_history: Any = None,
    rag_context: Any = None,
    role: str | None = None,
    tools: Any = None,
) -> KVCacheDecision:
    """Decides with the settings in force; see :meth:`KVCacheLayeringPolicy.decide` for the arguments."""
    return live.current().policy.decide(
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
    """Decides and merges the hint into model settings, for callers that build their requests by hand.

    Args:
        settings: dict-shaped model settings whose ``extra_body`` the client sends; never mutated.
        system_prompt: the stable head of the prompt.
        user_prompt: what is new in this call.
        message_history: earlier messages.
        rag_context: a retrieved block.
        role: what kind of caller this is.
        tools: tool definitions.

    Returns:
        New settings: ``extra_body["kv_transfer_params"]`` holds the hint beside whatever else the caller put there. Unchanged where the
        policy is disabled, only observes, or the caller has decided already.
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
    knobs = live.current()
    body = folded.get("extra_body")
    if (
        not decision.enabled
        or knobs.mode == "observe"
        or not (body is None or isinstance(body, Mapping))
    ):
        return folded
    params = (body or {}).get(FIELD)
    if is_callers(params):
        return folded
    hint = hint_params(
        skip=decision.skip_save, keys=knobs.hint_keys, stats=knobs.cached_token_stats
    )
    if hint:
        folded["extra_body"] = {**(body or {}), FIELD: {**(params or {}), **hint}}
    return folded

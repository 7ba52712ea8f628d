"""``KVCacheLayeringPolicy``: the thresholds rule, with settings that are read live."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any, Literal

from . import settings
from .policy import CallText, KVCacheDecision, ThresholdsRule
from .policy.calibration import AUTO
from .policy.counting import content_chars, history_text, json_chars
from .policy.thresholds import DISABLED, SETTINGS, check


class KVCacheLayeringPolicy:
    """The thresholds rule: store a call if any signal suggests that its prefix will be reused.

    An argument that is not given, or is None, follows its setting, which is read again for each
    decision. An argument that is given stays fixed. To use your own rule, subclass this class,
    override :meth:`decide` and set ``rule`` to the name of the rule.

    Args:
        enabled: False makes every decision inert (``KV_CACHE_LAYERING``).
        chars_per_token: characters that count as one token (``KV_CACHE_CHARS_PER_TOKEN``). No
            tokenizer runs on the caller's path, so token counts are estimates. A number below 1
            counts as 1. ``"auto"`` learns them for each model and kind of text; :meth:`decide` and
            :meth:`judge`, which do not know the model, then use 4.
        thresholds: ``min_prefix_tokens``, ``min_history_turns``, ``min_context_tokens``,
            ``min_tool_tokens``: tokens or turns at which a signal stores the call
            (``KV_CACHE_MIN_PREFIX_TOKENS`` and so on).

    Raises:
        TypeError: there is no such threshold.
        ValueError: a threshold is negative or not a finite number, or ``chars_per_token`` is
            neither a finite number nor "auto".
    """

    rule = ThresholdsRule.rule

    def __init__(
        self,
        *,
        enabled: bool | None = None,
        chars_per_token: float | Literal["auto"] | None = None,
        **thresholds: int | None,
    ) -> None:
        if chars_per_token == "auto":
            chars_per_token = AUTO
        check(thresholds, chars_per_token)
        self._thresholds = {name: value for name, value in thresholds.items() if value is not None}
        self._explicit = {
            name: value
            for name, value in {"enabled": enabled, "chars_per_token": chars_per_token}.items()
            if value is not None
        }
        self._cached: tuple[settings.Settings, ThresholdsRule] | None = None

    @property
    def in_force(self) -> ThresholdsRule:
        """The rule with the explicit arguments, and with the current settings for the others."""
        now = settings.current()
        if not self._explicit and not self._thresholds:
            return now.policy
        if self._cached is None or self._cached[0] is not now:
            arguments: dict[str, Any] = {
                "enabled": now.layering,
                "chars_per_token": now.chars_per_token,
                **self._explicit,
            }
            rule = ThresholdsRule({**now.thresholds, **self._thresholds}, **arguments)
            self._cached = now, rule
        return self._cached[1]

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
        """Decide a call from its parts. Never raises: unreadable parts count as 0.

        Args:
            system_prompt: stable head of the prompt: a string or several.
            user_prompt: what is new in this call: a string, or a list of content parts.
            message_history: earlier messages: OpenAI mappings, pydantic-ai messages, or objects
                with ``.parts[].content``.
            rag_context: retrieved block: a string or several.
            role: kind of caller, such as ``"planner"``. Reuse-heavy roles tip a borderline call.
            tools: tool definitions (OpenAI's ``tools``), which count toward the prefix.
        """
        rule = self.in_force
        if not rule.enabled:
            return DISABLED
        history_chars, turns = history_text(message_history)
        text = CallText(
            prefix_chars=content_chars(system_prompt),
            tool_chars=json_chars(tools) if tools else 0,
            history_chars=history_chars,
            rag_chars=content_chars(rag_context),
            user_chars=content_chars(user_prompt),
            history_turns=turns,
        )
        return rule.judge(text, role)

    def judge(self, text: CallText, role: str | None = None) -> KVCacheDecision:
        """Decide a call whose parts have been counted.

        Args:
            text: characters and turns of the call.
            role: kind of caller.
        """
        return self.in_force.judge(text, role)

    @property
    def enabled(self) -> bool:
        """False if every decision is inert."""
        return self.in_force.enabled

    @property
    def chars_per_token(self) -> float:
        """Characters that count as one token."""
        return self.in_force.chars_per_token

    def __getattr__(self, name: str) -> int | None:
        """Return a threshold in force, such as ``min_prefix_tokens``; None if it is off."""
        if name not in SETTINGS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.in_force.thresholds[name]

    def __repr__(self) -> str:
        names = sorted(["chars_per_token", "enabled", *SETTINGS])
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"


# Shows the thresholds by name in help() and editors. The table stays the one place that lists them.
KVCacheLayeringPolicy.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None)
        for name in ("enabled", "chars_per_token", *SETTINGS)
    ]
)

"""The basis of a decision of the adaptive rule: numbers, a sentence and attributes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ..decision import RuleAttribute
from .reuse_table import CallClass

RULE: Final = "adaptive"

REUSE_EXPECTED: Final = "reuse_expected"
REUSE_UNLIKELY: Final = "reuse_unlikely"
SHARED_PREFIX_LOST: Final = "shared_prefix_lost"

REASONS: Final[dict[str, str]] = {
    REUSE_EXPECTED: "calls of its class come back often enough for the price of a place in the "
    "cache",
    REUSE_UNLIKELY: "calls of its class come back too rarely for the price of a place in the cache",
    SHARED_PREFIX_LOST: "several calls share its prefix, and the cache had lost it",
}
"""The reason codes of this rule, with what each one means."""

CLASS: Final = "adaptive.class"
REUSE: Final = "adaptive.reuse"
DOUBT: Final = "adaptive.doubt"
THETA: Final = "adaptive.theta"
CALLS: Final = "adaptive.calls"
SURVIVAL: Final = "adaptive.survival"
LIFETIME: Final = "adaptive.lifetime_seconds"

ATTRIBUTES: Final = (
    RuleAttribute(
        CLASS,
        "string",
        "adaptive rule: class of the call: agent or role, turns, length, share seen",
    ),
    RuleAttribute(REUSE, "double", "adaptive rule: P(reuse) of the class, 0 to 1"),
    RuleAttribute(
        DOUBT,
        "double",
        "adaptive rule: benefit of the doubt, added to P(reuse) while data is scarce",
    ),
    RuleAttribute(
        THETA,
        "double",
        "adaptive rule: price of a place in the cache, which is the lowest P(reuse) that is stored",
    ),
    RuleAttribute(
        CALLS,
        "double",
        "adaptive rule: calls of the class that are known to have come back or not; older calls "
        "fade",
    ),
    RuleAttribute(
        SURVIVAL,
        "double",
        "adaptive rule: share of the returning prefixes that the cache still had, if known",
    ),
    RuleAttribute(
        LIFETIME, "double", "adaptive rule: seconds that the cache keeps a prefix, if known"
    ),
)
"""What this rule records beside its decision."""

_SIGNS: Final = {REUSE_UNLIKELY: "<", REUSE_EXPECTED: ">="}


def reason_of(code: str, reuse: float, doubt: float, theta: float) -> str:
    """Return a reason with its numbers: P(reuse) plus doubt, compared with theta."""
    return f"{code}({reuse + doubt:.3f}{_SIGNS.get(code, '|')}{theta:.3f})"


class Why(NamedTuple):
    """The numbers behind a decision.

    Attributes:
        code: reason code.
        group: class of the call.
        reuse: P(reuse) of the class, 0 to 1.
        doubt: added to it because little is known yet.
        theta: price of a place in the cache: the lowest P(reuse) that is stored.
        survival: share of the recently returned prefixes that the cache still had; None if unknown.
        lifetime_seconds: how long the cache keeps a prefix; None if unknown, or if it keeps
            everything.
        calls: calls of the class that are known to have come back or not.
        visible: share of all returns that this process sees; low if many processes share the
            traffic.
    """

    code: str
    group: CallClass
    reuse: float
    doubt: float
    theta: float
    survival: float | None
    lifetime_seconds: float | None
    calls: float
    visible: float

    @property
    def stores(self) -> bool:
        """True if the call is stored."""
        return self.code != REUSE_UNLIKELY

    @property
    def reason(self) -> str:
        """The reason as it appears in a decision, with its numbers."""
        return reason_of(self.code, self.reuse, self.doubt, self.theta)

    @property
    def sentence(self) -> str:
        """The decision in words, with what would change it."""
        return (
            f"{'Stored' if self.stores else 'Skipped'}: calls like this ({self.group}) come back "
            f"with P = {self.reuse:.2f} (from {self.calls:.0f} calls, {self.doubt:.2f} added for "
            f"doubt); a place in the cache costs theta = {self.theta:.2f}; {self._pressure}. "
            f"{self._change}"
        )

    @property
    def attributes(self) -> dict[str, Any]:
        """The numbers by the names in :data:`ATTRIBUTES`; unknown ones are left out."""
        attributes: dict[str, Any] = {
            CLASS: str(self.group),
            REUSE: self.reuse,
            DOUBT: self.doubt,
            THETA: self.theta,
            CALLS: self.calls,
        }
        if self.survival is not None:
            attributes[SURVIVAL] = self.survival
        if self.lifetime_seconds is not None:
            attributes[LIFETIME] = self.lifetime_seconds
        return attributes

    @property
    def _pressure(self) -> str:
        if self.survival is None:
            return "no recent answer reported cached_tokens, so theta is at its floor"
        held = f"the cache still had {self.survival:.0%} of the prefixes that came back"
        if self.lifetime_seconds is None:
            return held
        return f"{held} and keeps a prefix for about {self.lifetime_seconds:.0f} s"

    @property
    def _change(self) -> str:
        if self.code == SHARED_PREFIX_LOST:
            return "Stored anyway: several calls share its prefix, and the cache had lost it."
        if self.code == REUSE_UNLIKELY:
            least = max(self.theta - self.doubt, 0)
            return (
                f"It would be stored if its class came back more often than {least:.2f}, or with a "
                "larger cache."
            )
        return (
            f"It would be skipped if theta rose above {self.reuse + self.doubt:.2f}, which happens "
            "if the cache evicts many more prefixes before they come back."
        )

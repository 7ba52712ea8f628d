"""The simulator: cache tiers, and the rules that decide what they store."""

from .comparison import Result, compare, default_capacities, row_of
from .engine import WHOLE, Outcome, Player, Tiers, play, play_belady
from .players import DEFAULT_RULES, OFF, RULES, Rule, parse_rule
from .sizes import MODELS, SizeError, blocks_of

__all__ = [
    "DEFAULT_RULES",
    "MODELS",
    "OFF",
    "RULES",
    "WHOLE",
    "Outcome",
    "Player",
    "Result",
    "Rule",
    "SizeError",
    "Tiers",
    "blocks_of",
    "compare",
    "default_capacities",
    "parse_rule",
    "play",
    "play_belady",
    "row_of",
]

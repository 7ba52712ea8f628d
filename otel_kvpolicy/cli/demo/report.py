"""What the demo prints: the decisions from the application's log, and what the servers counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...telemetry import names
from .runner import Side, Sizes

_NOTHING: Final = "–"
_MODES: Final = {"mp": "LMCache's multi-process server", "in_process": "LMCache inside vLLM"}


def summary(side: Side) -> dict[str, Any]:
    """Return the numbers of one side, ready for JSON.

    Ratios are between 0 and 1, or None if there was nothing to count.
    """
    calls, caches = side.calls, side.caches
    skipped = [call for call in calls if call.skipped]
    missed_l1 = None if caches.hit_l1 is None else caches.requested - caches.hit_l1
    return {
        "calls": side.sent,
        "decisions_in_spans": len(calls),
        "skipped_calls": len(skipped),
        "skip_ratio_calls": _ratio(len(skipped), len(calls)),
        "skip_ratio_tokens": _ratio(
            sum(call.count(names.USAGE_INPUT_TOKENS) or 0 for call in skipped),
            sum(call.count(names.USAGE_INPUT_TOKENS) or 0 for call in calls),
        ),
        "decisions": [
            {"decision": decision, "reasons": list(reasons), "hint_outcome": outcome, **numbers}
            for (decision, reasons, outcome), numbers in _grouped(side).items()
        ],
        "prompt_tokens": caches.prompt,
        "vllm_cached_tokens": caches.from_gpu,
        "lmcache_cached_tokens": caches.from_lmcache,
        "cached_ratio": _ratio(caches.from_gpu + caches.from_lmcache, caches.prompt),
        "lmcache_hit_ratio": _ratio(caches.hit, caches.requested),
        "l1_hit_ratio": _ratio(caches.hit_l1, caches.requested),
        "l2_hit_ratio": _ratio(caches.hit_l2, caches.requested),
        "l2_hit_ratio_of_l1_misses": _ratio(caches.hit_l2, missed_l1),
        "chunks_written": caches.chunks_written,
        "l1_evicted_chunks": caches.l1_evicted,
        "l2_evicted_chunks": caches.l2_evicted,
        "seconds": round(side.seconds, 1),
    }


def _grouped(side: Side) -> dict[tuple[str, tuple[str, ...], str], dict[str, int]]:
    """Return call and token counts by (decision, reasons, hint outcome), most calls first."""
    calls: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    prompt: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    cached: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    for call in side.calls:
        decision = names.SKIP if call.skipped else names.STORE
        outcome = call.text(names.HINT_OUTCOME) or ""
        key = (decision, tuple(call.texts(names.REASONS)), outcome)
        calls[key] += 1
        prompt[key] += call.count(names.USAGE_INPUT_TOKENS) or 0
        cached[key] += call.count(names.USAGE_CACHE_READ_INPUT_TOKENS) or 0
    return {
        key: {"calls": count, "prompt_tokens": prompt[key], "cached_tokens": cached[key]}
        for key, count in calls.most_common()
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def print_report(
    console: Console, policy: Side, everything: Side, sizes: Sizes, source: str
) -> None:
    """Print the decisions, the comparison of both sides, and the conclusion."""
    with_policy, without = summary(policy), summary(everything)
    _heading(
        console,
        "What the policy decided",
        f"{with_policy['calls']:,} calls from {source}, read from the application's decision log.",
    )
    console.print(_decisions(with_policy))
    _heading(
        console,
        "What the caches made of it",
        "The same calls in the same order, each side on its own fresh server. "
        f"{_MODES[sizes.mode]}: L1 {_size(sizes.l1_mib)}, L2 {_size(sizes.l2_mib)}.",
    )
    console.print(_comparison(with_policy, without))
    console.print()
    console.print(_conclusion(with_policy, without))
    for name, side in (("with the policy", with_policy), ("storing everything", without)):
        if side["decisions_in_spans"] != side["calls"]:
            console.print(
                f"[yellow]Warning: {side['calls']:,} calls were made {name}, "
                f"but the decision log has {side['decisions_in_spans']:,} decisions."
            )


def _heading(console: Console, title: str, text: str) -> None:
    console.print()
    console.print(Text(title, "bold"))
    console.print(Text(text))


def _decisions(side: dict[str, Any]) -> Table:
    table = Table()
    table.add_column("decision")
    table.add_column("reasons", overflow="fold", min_width=24)
    for column in ("calls", "prompt tokens", "share", "cached"):
        table.add_column(column, justify="right")
    total = sum(row["prompt_tokens"] for row in side["decisions"])
    for row in side["decisions"]:
        outcome = row["hint_outcome"]
        table.add_row(
            f"[{'yellow' if row['decision'] == names.SKIP else 'green'}]{row['decision']}",
            "\n".join(row["reasons"]) + ("" if outcome == "applied" else f"\n[dim]hint: {outcome}"),
            f"{row['calls']:,}",
            f"{row['prompt_tokens']:,}",
            _percent(_ratio(row["prompt_tokens"], total)),
            _percent(_ratio(row["cached_tokens"], row["prompt_tokens"])),
        )
    return table


Row = tuple[str, str, Callable[[Any], str], Callable[[Any, Any], str]]
"""Label, key in the summary, how a value is shown, and how two values are compared."""


def _comparison(policy: dict[str, Any], everything: dict[str, Any]) -> Table:
    table = Table()
    table.add_column("")
    for column in ("policy", "store everything", "difference"):
        table.add_column(column, justify="right")
    sections: Sequence[Sequence[Row]] = (
        (
            ("calls skipped", "skip_ratio_calls", _percent, _no_difference),
            ("prompt tokens skipped", "skip_ratio_tokens", _percent, _no_difference),
        ),
        (
            ("chunks written to LMCache", "chunks_written", _count, _relative),
            ("chunks evicted from L1", "l1_evicted_chunks", _count, _relative),
            ("chunks evicted from L2", "l2_evicted_chunks", _count, _relative),
        ),
        (
            ("LMCache hit rate", "lmcache_hit_ratio", _percent, _points),
            ("  served by L1", "l1_hit_ratio", _percent, _points),
            ("  added by L2", "l2_hit_ratio", _percent, _points),
            ("L2 hit rate after an L1 miss", "l2_hit_ratio_of_l1_misses", _percent, _points),
            ("prompt tokens from any cache", "cached_ratio", _percent, _points),
        ),
    )
    for section in sections:
        table.add_section()
        for label, key, show, compare in section:
            first, second = policy[key], everything[key]
            table.add_row(label, show(first), show(second), compare(first, second))
    return table


def _conclusion(policy: dict[str, Any], everything: dict[str, Any]) -> str:
    if not policy["skipped_calls"]:
        return (
            "The policy skipped nothing: every call looked worth storing, so both sides are equal."
        )
    return (
        f"The policy skipped {_percent(policy['skip_ratio_calls'])} of the calls, with "
        f"{_percent(policy['skip_ratio_tokens'])} of the prompt tokens. LMCache wrote "
        f"{policy['chunks_written']:,} chunks instead of {everything['chunks_written']:,}, "
        f"at a hit rate of {_percent(policy['lmcache_hit_ratio'])} "
        f"instead of {_percent(everything['lmcache_hit_ratio'])}."
    )


def _count(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1%}"


def _size(mib: int) -> str:
    return f"{mib / 1024:g} GiB" if mib % 1024 == 0 else f"{mib} MiB"


def _no_difference(policy: Any, everything: Any) -> str:
    return ""


def _relative(policy: int | None, everything: int | None) -> str:
    return "" if policy is None or not everything else f"{policy / everything - 1:+.1%}"


def _points(policy: float | None, everything: float | None) -> str:
    if policy is None or everything is None:
        return ""
    return f"{100 * (policy - everything):+.1f} points"

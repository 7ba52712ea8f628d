"""What the demo prints: decisions as the spans tell them, and both sides' caches as the metrics pages tell them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ...telemetry import names
from .runner import Side, Sizes


def summary(side: Side) -> dict[str, Any]:
    """The numbers of one side, ready for JSON. Rates are 0 to 1, None where nothing was counted."""
    calls, caches = side.calls, side.caches
    skipped = [call for call in calls if call.decision == names.SKIP]
    missed_l1 = None if caches.hit_l1 is None else caches.requested - caches.hit_l1
    return {
        "calls": side.sent,
        "decisions_in_spans": len(calls),
        "skipped_calls": len(skipped),
        "skip_ratio_calls": _ratio(len(skipped), len(calls)),
        "skip_ratio_tokens": _ratio(
            sum(call.prompt_tokens for call in skipped), sum(call.prompt_tokens for call in calls)
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
    calls: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    prompt: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    cached: Counter[tuple[str, tuple[str, ...], str]] = Counter()
    for call in side.calls:
        key = (call.decision, call.reasons, call.outcome)
        calls[key] += 1
        prompt[key] += call.prompt_tokens
        cached[key] += call.cached_tokens
    return {
        key: {"calls": count, "prompt_tokens": prompt[key], "cached_tokens": cached[key]}
        for key, count in calls.most_common()
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def print_report(
    console: Console, policy: Side, everything: Side, sizes: Sizes, source: str
) -> None:
    """Prints both tables and what they come to."""
    with_policy, without = summary(policy), summary(everything)
    console.print(_decisions(with_policy, source))
    console.print(_comparison(with_policy, without, sizes))
    console.print(_verdict(with_policy, without))
    for name, side in (("with the policy", with_policy), ("with store-everything", without)):
        if side["decisions_in_spans"] != side["calls"]:
            console.print(
                f"[yellow]Of {side['calls']:,} calls {name}, {side['decisions_in_spans']:,} left a decision on a span."
            )


def _decisions(side: dict[str, Any], source: str) -> Table:
    table = Table(
        title=f"Decisions, read back from the spans of the application ({source})",
        title_justify="left",
    )
    table.add_column("decision")
    table.add_column("reasons", overflow="fold", min_width=24)
    for name in ("calls", "tokens", "of all", "cached"):
        table.add_column(name, justify="right")
    total = sum(row["prompt_tokens"] for row in side["decisions"])
    for row in side["decisions"]:
        table.add_row(
            f"[{'yellow' if row['decision'] == names.SKIP else 'green'}]{row['decision']}",
            "\n".join(row["reasons"])
            + ("" if row["hint_outcome"] == "applied" else f"\n[dim]hint: {row['hint_outcome']}"),
            f"{row['calls']:,}",
            f"{row['prompt_tokens']:,}",
            _percent(_ratio(row["prompt_tokens"], total)),
            _percent(_ratio(row["cached_tokens"], row["prompt_tokens"])),
        )
    return table


def _comparison(policy: dict[str, Any], everything: dict[str, Any], sizes: Sizes) -> Table:
    table = Table(
        title=f"The same calls in the same order, two fresh servers (LMCache {sizes.mode}, L1 {sizes.l1_mib} MiB, L2 {sizes.l2_mib} MiB)",
        title_justify="left",
    )
    table.add_column("")
    for name in ("policy", "store everything", "difference"):
        table.add_column(name, justify="right")
    rows: Sequence[tuple[str, str, Callable[[Any], str], Callable[[Any, Any], str]]] = (
        ("calls", "calls", _count, _no_difference),
        ("skipped, of calls", "skip_ratio_calls", _percent, _no_difference),
        ("skipped, of prompt tokens", "skip_ratio_tokens", _percent, _no_difference),
        ("chunks written to LMCache", "chunks_written", _count, _relative),
        ("L1 hit rate, of looked-up tokens", "l1_hit_ratio", _percent, _points),
        ("L2 hit rate, of looked-up tokens", "l2_hit_ratio", _percent, _points),
        ("L2 hit rate, of what L1 missed", "l2_hit_ratio_of_l1_misses", _percent, _points),
        ("L1 + L2 hit rate", "lmcache_hit_ratio", _percent, _points),
        ("prompt tokens cached, vLLM's too", "cached_ratio", _percent, _points),
        ("chunks evicted from L1", "l1_evicted_chunks", _count, _relative),
        ("chunks evicted from L2", "l2_evicted_chunks", _count, _relative),
    )
    for label, key, show, compare in rows:
        table.add_row(
            label, show(policy[key]), show(everything[key]), compare(policy[key], everything[key])
        )
    return table


def _verdict(policy: dict[str, Any], everything: dict[str, Any]) -> str:
    if not policy["skipped_calls"]:
        return "The rule skipped nothing here: every call looked worth storing, so both sides are the same."
    return (
        f"The rule skipped {_percent(policy['skip_ratio_calls'])} of the calls, which hold {_percent(policy['skip_ratio_tokens'])} "
        f"of the prompt tokens. LMCache wrote {policy['chunks_written']:,} chunks instead of {everything['chunks_written']:,}; "
        f"its hit rate was {_percent(policy['lmcache_hit_ratio'])} against {_percent(everything['lmcache_hit_ratio'])}."
    )


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _no_difference(policy: Any, everything: Any) -> str:
    return ""


def _relative(policy: int | None, everything: int | None) -> str:
    return "" if policy is None or not everything else f"{policy / everything - 1:+.1%}"


def _points(policy: float | None, everything: float | None) -> str:
    return (
        "" if policy is None or everything is None else f"{100 * (policy - everything):+.1f} points"
    )

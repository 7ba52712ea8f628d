"""The report's plots, as SVG that stands in a page by itself. Names from a trace are drawn as they are, never as mathematics or markup."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from ..simulator.comparison import Result

Looks = Mapping[str, tuple[str, str]]
"""Colour and marker of each rule, the same in all plots."""

_COLOURS: Final = (
    "#4269d0",
    "#efb118",
    "#ff725c",
    "#6cc5b0",
    "#3ca951",
    "#ff8ab7",
    "#a463f2",
    "#97bbf5",
    "#9c6b4e",
    "#9498a0",
)
_MARKERS: Final = "os^Dv<>Ph*"
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "otel-kvpolicy",
    "font.family": ["sans-serif"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "text.parse_math": False,
    "legend.frameon": False,
}


def _svg(width: float, height: float, draw: Callable[[Any], None]) -> str:
    """A figure of so many inches, without what only a file of its own needs."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def looks_of(results: Sequence[Result]) -> Looks:
    """How each rule is drawn."""
    rules = dict.fromkeys(str(each.rule) for each in results)
    return {
        rule: (_COLOURS[at % len(_COLOURS)], _MARKERS[at % len(_MARKERS)])
        for at, rule in enumerate(rules)
    }


def _lines(
    axes: Any, results: Sequence[Result], looks: Looks, x: Callable[[Result], float]
) -> None:
    for rule, (colour, marker) in looks.items():
        points = sorted(
            (each for each in results if str(each.rule) == rule), key=lambda each: each.tiers.l1
        )
        axes.plot(
            [x(each) for each in points],
            [100 * each.outcome.hit_rate for each in points],
            label=rule,
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.5,
        )
    axes.set_ylabel("hit rate, % of prompt tokens")
    axes.set_ylim(bottom=0)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def hits_by_capacity(results: Sequence[Result], looks: Looks) -> str:
    """Hit rate against the size of L1, a line for each rule; the sizes stand at even distances."""
    sizes = sorted({each.tiers.l1 for each in results})

    def draw(axes: Any) -> None:
        _lines(axes, results, looks, lambda each: sizes.index(each.tiers.l1))
        axes.set_xticks(range(len(sizes)), labels=[f"{size:,}" for size in sizes])
        axes.set_xlabel("L1, chunks")

    return _svg(9, 4, draw)


def writes_and_hits(results: Sequence[Result], looks: Looks) -> str:
    """Hit rate against chunks written, a line through the sizes for each rule: up and to the left is better."""

    def draw(axes: Any) -> None:
        _lines(axes, results, looks, lambda each: each.outcome.written / 1000)
        axes.set_xlim(left=0)
        axes.set_xlabel("chunks written to L1, thousands")

    return _svg(9, 4, draw)


def skips_by_class(
    results: Sequence[Result], looks: Looks, classes: Mapping[str, Sequence[int]]
) -> str:
    """Share of the calls of each class that each rule skips.

    Args:
        results: of one size.
        looks: what :func:`looks_of` gave.
        classes: indexes of their requests in the trace.
    """

    def draw(axes: Any) -> None:
        names = list(classes)
        for at, each in enumerate(results):
            skipped, (colour, marker) = each.outcome.skipped, looks[str(each.rule)]
            axes.plot(
                [
                    100 * sum(skipped[request] for request in classes[name]) / len(classes[name])
                    for name in names
                ],
                [
                    row + (at - len(results) / 2) * 0.04 for row in range(len(names))
                ],  # side by side where they are alike
                linestyle="",
                label=str(each.rule),
                color=colour,
                marker=marker,
                markersize=6,
            )
        axes.set_yticks(
            range(len(names)), labels=[f"{name[:40]} ({len(classes[name]):,})" for name in names]
        )
        axes.invert_yaxis()
        axes.set_xlim(-3, 103)
        axes.set_xlabel("calls skipped, %")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    return _svg(9, 1.2 + 0.3 * len(classes), draw)

"""The plots of the HTML report, as SVG elements.

Names from a trace are drawn literally, never as math or markup.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from ....policy.adaptive.reuse_table import class_of
from ..simulator import Result
from ..trace import Trace

Styles = Mapping[str, tuple[str, str]]
"""Color and marker of each rule, the same in all plots."""

_MAX_ROLES: Final = 8
_COLORS: Final = (
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
    """Return an SVG element of ``width`` by ``height`` inches, without the XML header."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def styles_of(results: Sequence[Result]) -> Styles:
    """Assign a color and a marker to each rule."""
    rules = dict.fromkeys(str(result.rule) for result in results)
    return {
        rule: (_COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)])
        for index, rule in enumerate(rules)
    }


def _lines(
    axes: Any, results: Sequence[Result], styles: Styles, x: Callable[[Result], float]
) -> None:
    for rule, (color, marker) in styles.items():
        points = sorted(
            (result for result in results if str(result.rule) == rule),
            key=lambda result: result.tiers.l1,
        )
        axes.plot(
            [x(result) for result in points],
            [100 * result.outcome.hit_rate for result in points],
            label=rule,
            color=color,
            marker=marker,
            markersize=5,
            linewidth=1.5,
        )
    axes.set_ylabel("hit rate, % of prompt tokens")
    axes.set_ylim(bottom=0)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def hits_by_capacity(results: Sequence[Result], styles: Styles) -> str:
    """Plot the hit rate against the size of L1, one line per rule. The sizes are evenly spaced."""
    sizes = sorted({result.tiers.l1 for result in results})

    def draw(axes: Any) -> None:
        _lines(axes, results, styles, lambda result: sizes.index(result.tiers.l1))
        axes.set_xticks(range(len(sizes)), labels=[f"{size:,}" for size in sizes])
        axes.set_xlabel("L1, chunks")

    return _svg(9, 4, draw)


def writes_and_hits(results: Sequence[Result], styles: Styles) -> str:
    """Plot the hit rate against the chunks written, one line per rule through all sizes."""

    def draw(axes: Any) -> None:
        _lines(axes, results, styles, lambda result: result.outcome.written / 1000)
        axes.set_xlim(left=0)
        axes.set_xlabel("chunks written to L1, thousands")

    return _svg(9, 4, draw)


def skips_by_class(results: Sequence[Result], styles: Styles, trace: Trace) -> str:
    """Plot, for each class of calls, the share that each rule skips.

    Args:
        results: results with one size of tiers.
        styles: the result of :func:`styles_of`.
        trace: the traffic.
    """
    classes = _classes_of(trace)

    def draw(axes: Any) -> None:
        names = list(classes)
        for index, result in enumerate(results):
            skipped, (color, marker) = result.outcome.skipped, styles[str(result.rule)]
            shift = (index - len(results) / 2) * 0.04  # so that equal values stay visible
            axes.plot(
                [
                    100 * sum(skipped[request] for request in classes[name]) / len(classes[name])
                    for name in names
                ],
                [row + shift for row in range(len(names))],
                linestyle="",
                label=str(result.rule),
                color=color,
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


def _classes_of(trace: Trace) -> Mapping[str, list[int]]:
    """Return the requests of each class.

    A request belongs to one class by its turns, one by its length, and, if the trace has several
    roles, one by its role.
    """
    turns: dict[str, list[int]] = {}
    lengths: dict[str, list[int]] = {}
    roles: dict[str, list[int]] = {}
    for request, text in enumerate(trace.texts):
        reuse_class = class_of("", text.history_turns, trace.input_tokens[request], 0.0)
        turns.setdefault(reuse_class.turns_text, []).append(request)
        lengths.setdefault(reuse_class.length_text, []).append(request)
        roles.setdefault(trace.roles[request] or "no role", []).append(request)
    common = sorted(roles.items(), key=lambda item: -len(item[1]))[:_MAX_ROLES]
    in_order = [
        *sorted(turns.items(), key=_first_number),
        *sorted(lengths.items(), key=_first_number),
    ]
    return dict(in_order + (common if len(roles) > 1 else []))


def _first_number(item: tuple[str, list[int]]) -> tuple[bool, float]:
    """Sort key that puts ``no turns`` before ``1 turn`` and ``2k-4k tokens`` before ``16k+``."""
    first = item[0].split("-")[0].split()[0].rstrip("k+turns")
    return first.isdigit(), float(first) if first.isdigit() else 0.0

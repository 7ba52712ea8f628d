"""Draw pictures of the dashboards for the README, from the data of a real Prometheus.

    python dashboards/preview/render.py http://127.0.0.1:9090 --minutes 5

The pictures are previews made with matplotlib, not screenshots of Grafana. This script reads the
built JSON, fills in the variables as Grafana does, runs every query, and draws each panel with its
kind, unit, colors and thresholds, once on a light and once on a dark background. Panels that list
calls from Tempo are drawn from spans of the run; other Tempo panels say that they are not drawn.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import textwrap
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import itertools

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

JSON = dict[str, Any]
FOLDER = Path(__file__).parent
LABEL = (
    "preview drawn with matplotlib from the data of a real Prometheus and the run's spans,"
    " not a screenshot of Grafana"
)
THEMES = {
    "light": {
        "page": "#f4f5f5",
        "panel": "#ffffff",
        "text": "#24292e",
        "muted": "#6e7780",
        "grid": "#e4e7eb",
    },
    "dark": {
        "page": "#111217",
        "panel": "#181b1f",
        "text": "#d8d9da",
        "muted": "#8e8e9a",
        "grid": "#2b2e36",
    },
}
HUES = {
    "red": "#F2495C",
    "orange": "#FF9830",
    "yellow": "#FADE2A",
    "green": "#73BF69",
    "blue": "#5794F2",
    "purple": "#B877D9",
}
SHADES = {"dark-": 0.7, "semi-dark-": 0.85, "": 1.0, "light-": 1.15, "super-light-": 1.35}
ORDER = [
    "green",
    "yellow",
    "blue",
    "orange",
    "red",
    "purple",
    "dark-green",
    "dark-blue",
    "dark-orange",
    "dark-purple",
]


def color(name: str) -> str:
    """Return a color of Grafana's palette as ``#rrggbb``."""
    if name.startswith("#"):
        return name
    match = re.fullmatch(r"(super-light-|light-|semi-dark-|dark-)?(\w+)", name)
    assert match
    factor = SHADES[match[1] or ""]
    parts = [int(HUES[match[2]][i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [
        part * factor if factor <= 1 else part + (255 - part) * (factor - 1) * 2 for part in parts
    ]
    return "#" + "".join(f"{min(255, round(part)):02x}" for part in mixed)


def scaled(value: float, base: float, suffixes: list[str], digits: int = 1) -> str:
    """Return a value with the suffix of its order of magnitude."""
    step = 0
    while abs(value) >= base and step < len(suffixes) - 1:
        value, step = value / base, step + 1
    return (
        f"{value:.{digits}f}".rstrip("0").rstrip(".") + suffixes[step]
        if digits
        else f"{value:.0f}{suffixes[step]}"
    )


def shown(value: float, unit: str) -> str:
    """Return a value in its unit, roughly as Grafana shows it."""
    if not math.isfinite(value):
        return "–"
    if unit in ("percentunit", "percent"):
        return f"{value * (100 if unit == 'percentunit' else 1):.0f}%"
    if unit == "s":
        for size, suffix in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= size or suffix == "µs":
                return f"{value / size:.3g} {suffix}"
    if unit in ("bytes", "Bps"):
        return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) + (
            "/s" if unit == "Bps" else ""
        )
    tail = {"reqps": " req/s", "ops": "/s", "watt": " W", "celsius": " °C"}.get(unit, "")
    if unit == "hertz":
        return scaled(value, 1000, [" Hz", " kHz", " MHz", " GHz"])
    return scaled(value, 1000, ["", " K", " M", " G"], 2) + tail


class Source:
    """Runs queries in Prometheus as Grafana does."""

    def __init__(self, url: str, start: float, end: float, step: int, window: str) -> None:
        self.url, self.start, self.end, self.step, self.window = (
            url.rstrip("/"),
            start,
            end,
            step,
            window,
        )

    def fill(self, expr: str) -> str:
        """Replace Grafana's macros and variables; all variables select All."""
        values = {
            "__rate_interval": self.window,
            "__range": f"{round(self.end - self.start)}s",
            "chunk": "256",
            "decision": "skip",
        }
        return re.sub(r"\$(\w+)", lambda match: values.get(match[1], ".*"), expr)

    def ask(self, target: JSON) -> list[JSON]:
        """Return the series that a panel's query gives."""
        expr = self.fill(target["expr"])
        if target["instant"]:
            path, parameters = "query", {"query": expr, "time": self.end}
        else:
            path, parameters = (
                "query_range",
                {"query": expr, "start": self.start, "end": self.end, "step": self.step},
            )
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        # The address is the one that the user gave.
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310
            result = json.load(answer)["data"]["result"]
        assert isinstance(result, list)
        return result


def legend(target: JSON, labels: JSON) -> str:
    """Return the legend of a series."""
    text = re.sub(
        r"\{\{(\w+)\}\}", lambda match: str(labels.get(match[1], "")), target["legendFormat"]
    )
    return text.strip() or "(none)"


def collected(panel: JSON, source: Source) -> list[tuple[str, list[float], list[float]]]:
    """Return the legend, times and values of each series of a panel."""
    collection = []
    for target in panel["targets"]:
        for series in source.ask(target):
            points = series["values"] if "values" in series else [series["value"]]
            collection.append(
                (
                    legend(target, series["metric"]),
                    [float(t) for t, _ in points],
                    [float(v) for _, v in points],
                )
            )
    return collection


def fixed(panel: JSON) -> dict[str, str]:
    """Return the color of each series whose color the panel sets."""
    return {
        override["matcher"]["options"]: color(part["value"]["fixedColor"])
        for override in panel["fieldConfig"]["overrides"]
        for part in override["properties"]
        if part["id"] == "color"
    }


class Drawing:
    """Draws one dashboard on a light or a dark background."""

    def __init__(self, dashboard: JSON, source: Source, spans: list[JSON], theme: str) -> None:
        self.dashboard, self.source, self.spans_of_run, self.theme = (
            dashboard,
            source,
            spans,
            THEMES[theme],
        )
        shown_panels = [
            panel
            for panel in dashboard["panels"]
            if not (panel["type"] == "row" and panel["collapsed"])
        ]
        self.panels = shown_panels
        self.height = (
            max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown_panels) + 1.6
        )

    def draw(self) -> Figure:
        """Return the picture of the dashboard."""
        figure = plt.figure(figsize=(16, self.height * 0.36), dpi=75, facecolor=self.theme["page"])
        top = f"{self.dashboard['title']}  ·  {LABEL}"
        figure.text(
            0.008,
            1 - 0.75 / self.height,
            top,
            color=self.theme["text"],
            fontsize=11,
            va="center",
            weight="bold",
        )
        for panel in self.panels:
            place = panel["gridPos"]
            x, width = place["x"] / 24, place["w"] / 24
            bottom = 1 - (place["y"] + place["h"] + 1.5) / self.height
            height = place["h"] / self.height
            if panel["type"] == "row":
                figure.text(
                    x + 0.008,
                    bottom + height / 2,
                    f"▾ {panel['title']}",
                    color=self.theme["text"],
                    fontsize=10,
                    va="center",
                )
                continue
            self.panel(
                figure,
                panel,
                (x + 0.003, bottom + 0.1 / self.height, width - 0.006, height - 0.2 / self.height),
            )
        return figure

    def panel(self, figure: Figure, panel: JSON, box: tuple[float, float, float, float]) -> None:
        """Draw one panel into a box of the figure."""
        x, y, width, height = box
        frame = figure.add_axes(box, facecolor=self.theme["panel"], xticks=[], yticks=[])
        for spine in frame.spines.values():
            spine.set_color(self.theme["grid"])
        title = textwrap.shorten(panel["title"], width=max(12, int(width * 130)), placeholder="…")
        figure.text(
            x + 0.005,
            y + height - 0.55 / self.height,
            title,
            color=self.theme["text"],
            fontsize=8.5,
            va="center",
            weight="bold",
        )
        kind = panel["type"]
        if kind == "text":
            plain = re.sub(r"[*`]", "", panel["options"]["content"]).replace("\n", " ")
            words = "\n".join(textwrap.wrap(plain, max(18, int(width * 240))))
            figure.text(
                x + 0.006,
                y + height - 0.95 / self.height,
                words,
                color=self.theme["muted"],
                fontsize=7.5,
                va="top",
                linespacing=1.3,
            )
            return
        if panel["datasource"]["type"] != "prometheus":
            self.spans(frame, panel)
            return
        if kind == "stat":
            self.stat(frame, panel, collected(panel, self.source))
        elif kind == "table":
            self.table(frame, panel)
        else:
            legends = 0.22 if kind == "timeseries" else 0.24 if kind == "xychart" else 0.06
            inner = (
                x + 0.034 * min(1, width * 3 + 0.3),
                y + height * legends,
                width - 0.034 * min(1, width * 3 + 0.3) - 0.008,
                0,
            )
            inside = height * (1 - legends) - 0.95 / self.height
            axes = figure.add_axes(
                (inner[0], inner[1], inner[2], inside), facecolor=self.theme["panel"]
            )
            self.plain(axes)
            {"timeseries": self.lines, "xychart": self.points, "heatmap": self.heat}[kind](
                axes, panel
            )

    def plain(self, axes: Axes) -> None:
        axes.tick_params(colors=self.theme["muted"], labelsize=6.5, length=0)
        axes.grid(visible=True, color=self.theme["grid"], linewidth=0.6)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)

    def clock(self, axes: Axes) -> None:
        axes.set_xlim(self.source.start, self.source.end)
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: time.strftime("%H:%M:%S", time.gmtime(value)))
        )
        axes.locator_params(axis="x", nbins=5)

    def empty(self, axes: Axes, panel: JSON) -> None:
        words = "\n".join(textwrap.wrap(panel["fieldConfig"]["defaults"]["noValue"], 34))
        axes.text(
            0.5,
            0.5,
            words,
            transform=axes.transAxes,
            color=self.theme["muted"],
            fontsize=8,
            ha="center",
            va="center",
        )
        axes.set_yticks([])
        axes.set_xticks([])

    def lines(self, axes: Axes, panel: JSON) -> None:
        series = collected(panel, self.source)
        defaults, colors = panel["fieldConfig"]["defaults"], fixed(panel)
        if not series:
            self.empty(axes, panel)
            return
        unit, stacked = defaults["unit"], defaults["custom"]["stacking"]["mode"] == "normal"
        moments = sorted({t for _, times, _ in series for t in times})
        base = [0.0] * len(moments)
        for index, (name, times, values) in enumerate(series):
            tone = colors.get(name, color(ORDER[index % len(ORDER)]))
            label = f"{name}  {shown(values[-1], unit)}"
            if stacked:
                value_at = dict(zip(times, values, strict=True))
                upper = [low + value_at.get(t, 0.0) for low, t in zip(base, moments, strict=True)]
                axes.fill_between(moments, base, upper, color=tone, alpha=0.55, linewidth=0)
                axes.plot(moments, upper, color=tone, linewidth=0.9, label=label)
                base = upper
            else:
                axes.plot(times, values, color=tone, linewidth=1.4, label=label)
        for step in defaults["thresholds"]["steps"][1:]:
            axes.axhline(step["value"], color=color(step["color"]), linewidth=0.9, linestyle="--")
        low, high = defaults.get("min"), defaults.get("max")
        top = axes.get_ylim()[1]
        axes.set_ylim(
            low if low is not None else axes.get_ylim()[0],
            high * 1.02 if high is not None else top if top > 0 else 1,
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
        axes.locator_params(axis="y", nbins=5)
        self.clock(axes)
        self.legend(axes, len(series))

    def legend(self, axes: Axes, count: int) -> None:
        handles, labels = axes.get_legend_handles_labels()
        width = axes.get_position().width
        columns = max(1, min(count, int(width * 9)))
        room = columns * 3
        short = [
            textwrap.shorten(label, width=max(16, int(width * 170 / columns)), placeholder="…")
            for label in labels
        ]
        axes.legend(
            handles[:room],
            short[:room],
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.12),
            ncols=columns,
            fontsize=6.3,
            frameon=False,
            labelcolor=self.theme["text"],
            handlelength=1,
            columnspacing=1.2,
            borderpad=0,
            labelspacing=0.25,
        )

    def points(self, axes: Axes, panel: JSON) -> None:
        horizontal, *others = panel["targets"]
        across = {
            t: float(v) for series in self.source.ask(horizontal) for t, v in series["values"]
        }
        drawn = 0
        for target in others:
            for series in self.source.ask(target):
                pairs = [(across[t], float(v)) for t, v in series["values"] if t in across]
                if pairs:
                    tone = fixed(panel)[target["legendFormat"]]
                    axes.scatter(
                        [x for x, _ in pairs],
                        [y for _, y in pairs],
                        s=9,
                        color=tone,
                        alpha=0.8,
                        label=target["legendFormat"],
                        linewidths=0,
                    )
                    drawn += 1
        if not drawn:
            self.empty(axes, panel)
            return
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, "percentunit")))
        axes.set_xlabel(
            horizontal["legendFormat"], color=self.theme["muted"], fontsize=6.5, labelpad=1
        )
        self.legend(axes, drawn)

    def heat(self, axes: Axes, panel: JSON) -> None:
        (target,) = panel["targets"]
        series = sorted(self.source.ask(target), key=lambda s: float(s["metric"]["le"]))
        moments = sorted({float(t) for s in series for t, _ in s["values"]})
        if not moments:
            self.empty(axes, panel)
            return
        cumulative = [
            [{float(t): float(v) for t, v in s["values"]}.get(m, 0.0) for m in moments]
            for s in series
        ]
        cells = [
            cumulative[0],
            *(
                [max(0.0, a - b) for a, b in zip(upper, lower, strict=True)]
                for lower, upper in itertools.pairwise(cumulative)
            ),
        ]
        labels = [s["metric"]["le"] for s in series]
        scale = mpl.colors.LinearSegmentedColormap.from_list(
            "cells", [self.theme["panel"], color("orange")]
        )
        axes.grid(visible=False)
        extent = (moments[0], moments[-1] + self.source.step, -0.5, len(cells) - 0.5)
        axes.imshow(
            cells,
            aspect="auto",
            origin="lower",
            extent=extent,
            cmap=scale,
            norm=mpl.colors.PowerNorm(0.5),
            interpolation="nearest",
        )
        axes.set_yticks(range(len(labels)), [f"≤ {label}" for label in labels])
        self.clock(axes)

    def stat(
        self, axes: Axes, panel: JSON, series: list[tuple[str, list[float], list[float]]]
    ) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        if not series:
            self.empty(axes, panel)
            return
        states = {
            key: state
            for mapping in defaults["mappings"]
            for key, state in mapping["options"].items()
        }
        many = len(series) > 1
        per = min(0.62 / len(series), 0.3)
        for index, (name, _, values) in enumerate(series):
            value = values[-1]
            tone = [
                step["color"]
                for step in defaults["thresholds"]["steps"]
                if step["value"] is None or value >= step["value"]
            ][-1]
            words = (
                f"{value:,.0f}" if defaults.get("decimals") == 0 else shown(value, defaults["unit"])
            )
            if (state := states.get(f"{value:g}")) is not None:
                words, tone = state["text"], state["color"]
            if many:
                words = (
                    f"{name}   {words}"
                    if panel["options"]["textMode"] == "value_and_name"
                    else words
                )
            size = (7.5 if many else 11) if state or many else 19
            wrapped = (
                "\n".join(
                    textwrap.wrap(
                        words, max(14, int(axes.get_position().width * (200 if many else 120)))
                    )
                )
                if state or many
                else words
            )
            y = 0.66 - per * (index + 0.5) if many else 0.4
            axes.text(
                0.5 if not many else 0.03,
                y,
                wrapped,
                transform=axes.transAxes,
                color=color(tone),
                fontsize=size,
                weight="bold",
                ha="left" if many else "center",
                va="center",
            )

    def spans(self, axes: Axes, panel: JSON) -> None:
        """Draw the table that Tempo would give, from the spans of the run.

        Only the query's condition on the decision and its columns are used.
        """
        query = self.source.fill(panel["targets"][0]["query"])
        wanted = re.search(r'span\.(kvpolicy\.[a-z.]+) = "(\w+)"', query)
        columns = (
            re.findall(r"span\.([\w.]+)", query.split("select(")[1]) if "select(" in query else []
        )
        listed = [
            span
            for span in self.spans_of_run
            if columns and wanted and span.get(wanted[1]) == wanted[2]
        ][-13:]
        if not listed:
            words = (
                "no such calls in this run"
                if columns
                else "needs vLLM's spans in Tempo (not part of this preview)"
            )
            axes.text(
                0.5,
                0.45,
                words,
                transform=axes.transAxes,
                color=self.theme["muted"],
                fontsize=8,
                ha="center",
                va="center",
            )
            return
        starts = [0.006, 0.06, 0.42, 0.54, 0.62, 0.71, 0.80, 0.84, 0.895]
        for column, name in enumerate(["Trace ID", *columns]):
            axes.text(
                starts[column],
                0.86,
                name.removeprefix("kvpolicy."),
                transform=axes.transAxes,
                fontsize=6.5,
                color=color("blue"),
                va="center",
            )
            for row, span in enumerate(reversed(listed)):
                value = (
                    ", ".join(span[name])
                    if isinstance(span.get(name), list)
                    else str(span.get(name, ""))
                )
                value = value[: 8 if column == 0 else 118 if column == 1 else 24]
                axes.text(
                    starts[column],
                    0.8 - row * 0.062,
                    value,
                    transform=axes.transAxes,
                    fontsize=6.5,
                    color=self.theme["text"],
                    va="center",
                )

    def table(self, axes: Axes, panel: JSON) -> None:
        (target,) = panel["targets"]
        rows = sorted(self.source.ask(target), key=lambda s: -float(s["value"][1]))[:9]
        if not rows:
            self.empty(axes, panel)
            return
        columns = sorted({key for s in rows for key in s["metric"]})
        wide = axes.get_position().width
        names = [*columns, target["legendFormat"]]
        for column, name in enumerate(names):
            x = 0.006 + column * 0.99 / len(names)
            axes.text(
                x,
                0.80,
                name,
                transform=axes.transAxes,
                fontsize=7,
                color=color("blue"),
                va="center",
            )
            for row, series in enumerate(rows):
                value = (
                    f"{float(series['value'][1]):,.0f}"
                    if column == len(columns)
                    else series["metric"].get(name, "")
                )
                short = (
                    textwrap.shorten(
                        value, width=max(10, int(wide * 190 / len(names))), placeholder="…"
                    )
                    if value
                    else ""
                )
                axes.text(
                    x,
                    0.71 - row * 0.078,
                    short,
                    transform=axes.transAxes,
                    fontsize=7,
                    color=self.theme["text"],
                    va="center",
                )


def main() -> None:
    """Draw every dashboard, light and dark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prometheus")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--step", type=int, default=2, help="seconds")
    parser.add_argument("--window", default="20s", help="range of rates ($__rate_interval)")
    parser.add_argument(
        "--spans", type=Path, help="JSON list of span attributes, for the panels that list calls"
    )
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    end = time.time()
    spans = json.loads(options.spans.read_text()) if options.spans else []
    source = Source(
        options.prometheus, end - options.minutes * 60, end, options.step, options.window
    )
    for path in sorted((FOLDER.parent / "grafana").glob("*.json")):
        for theme in THEMES:
            figure = Drawing(json.loads(path.read_text()), source, spans, theme).draw()
            drawn = io.BytesIO()
            figure.savefig(drawn, facecolor=figure.get_facecolor())
            plt.close(figure)
            # A palette is enough for flat colors, and makes the file three times smaller.
            Image.open(drawn).convert("RGB").quantize(128).save(
                options.to / f"{path.stem}-{theme}.png", optimize=True
            )


if __name__ == "__main__":
    main()

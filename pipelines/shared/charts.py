"""Line charts of the experiments: curves with error bars, bands and levels, on light or dark backgrounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.shared.pictures import LIGHT, SERIES, Paper, bare, drawing

COLOURS = (SERIES[0], SERIES[5], SERIES[2], SERIES[1], SERIES[3], SERIES[6], SERIES[4])
MARKS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Curve:
    """y over x under a name."""

    name: str
    x: Any  # (k,)
    y: Any
    error: Any = None  # (k,) half the length of the error bars, or None
    band: Any = None  # half the width (k,) of a shaded band around y, or None
    line: bool = True  # whether points are joined, and whether they are marked
    marks: bool = True
    dashed: bool = False  # whether the line is dashed
    colour: int | str | None = None  # "ink", the number of a colour of the palette, or None for the next one
    mark: int | None = None  # index of a marker, or None for the next one
    width: float = 1.8  # width of the line, in points


def curves(
    shown: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    levels: Sequence[tuple[str, float]] = (),
    x_log: bool = False,
    y_log: bool = False,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    height: float = 3.6,
    paper: Paper = LIGHT,
) -> bytes:
    """Draw curves in one frame, the legend above it; `levels` are dashed horizontal lines with names."""
    with drawing(6.4, height, paper) as (figure, png):
        ax = figure.subplots()
        marks = iter(MARKS * len(shown))
        for number, curve in enumerate(shown):
            chosen = number if curve.colour is None else curve.colour
            colour = paper.ink if isinstance(chosen, str) else COLOURS[chosen % len(COLOURS)]
            style = {
                "color": colour,
                "linestyle": "none" if not curve.line else "--" if curve.dashed else "-",
                "linewidth": curve.width,
                "markersize": 5,
            }
            mark = None
            if curve.marks:
                mark = next(marks) if curve.mark is None else MARKS[curve.mark % len(MARKS)]
            ax.errorbar(
                curve.x, curve.y, yerr=curve.error, marker=mark, capsize=3, label=curve.name or None, zorder=3, **style
            )
            if curve.band is not None:
                y, half = np.asarray(curve.y), np.asarray(curve.band)
                ax.fill_between(curve.x, y - half, y + half, color=colour, alpha=0.18, linewidth=0)
        for number, (name, level) in enumerate(levels):
            dashes = (0, (5, 2 + 2 * number))
            ax.axhline(level, color=paper.soft, linestyle=dashes, linewidth=1.4, label=name, zorder=2)
        if x_log:
            ax.set_xscale("log")
        if y_log:
            ax.set_yscale("log")
        if x_ticks is not None:
            ax.set_xticks(x_ticks, [f"{tick:,.10g}" for tick in x_ticks])
            ax.minorticks_off()
        if y_ticks is not None:
            ax.set_yticks(y_ticks, [f"{tick:,.10g}" for tick in y_ticks])
            ax.minorticks_off()
        ax.set(xlabel=x_label, ylabel=y_label)
        if x_range is not None:
            ax.set_xlim(x_range)
        if y_range is not None:
            ax.set_ylim(y_range)
        bare(ax, paper)
        ax.grid(axis="y", color=paper.line, linewidth=0.8)
        names = [curve.name for curve in shown if curve.name] + [name for name, _ in levels]
        columns = max(1, min(len(names), 84 // (7 + max(map(len, names), default=1))))  # 84 letters in the width
        figure.legend(loc="outside upper left", ncols=columns, frameon=False, handlelength=2, columnspacing=1.2)
    return png.getvalue()

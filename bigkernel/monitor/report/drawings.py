"""Drawings of a report page as markup: stages, rate over time, memory by worker, confusion, digits, residuals, steps.

Each returns inline SVG or HTML (`templates/drawings.html`) in the colours of `page.css`, hence light and dark; or "".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from bigkernel.monitor.format import duration
from bigkernel.monitor.palette import SERIES, meaning, stage_role
from bigkernel.monitor.report.pixels import png
from bigkernel.monitor.report.rendering import draw
from bigkernel.monitor.report.timeline import Axis

MOST_CLASSES = 64  # of a confusion matrix that is drawn
_NUMBERED_CLASSES = 20  # with its counts
_CHART_PIXELS = 170


def shares(seconds: Mapping[str, float]) -> Markup:
    """Draw a bar of stages, by their seconds, with a legend; what is done in a stage is shown under the pointer."""
    total = math.fsum(seconds.values())
    if total <= 0:
        return Markup()
    stages = [
        {
            "name": name,
            "role": stage_role(name),
            "told": f"{name}: {meaning(name)}" if meaning(name) else name,
            "share": value / total,
            "time": duration(value),
            "percent": f"{100 * value / total:.{1 if value < 0.0995 * total else 0}f}",
        }
        for name, value in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    return draw("shares", stages=stages)


def legend(entries: Sequence[tuple[int, str]]) -> Markup:
    """Draw colours and what they mean."""
    return draw("legend", entries=[(number % len(SERIES), text) for number, text in entries])


def rate(histories: Sequence[tuple[float, Sequence[Sequence[float]]]], axis: Axis, calibrated: float) -> Markup:
    """Draw rates over time as steps: of every sweep, its start and its points (seconds since then, flops a second).

    A dashed line is the rate that the machines were measured to do; 0: they were not.
    """
    top = max([calibrated, *(value for _, history in histories for _, value in history)], default=0.0)
    if top <= 0:
        return Markup()
    unit, name = next(((u, n) for u, n in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")) if top >= u), (1.0, ""))
    scale = (_CHART_PIXELS - 16) / (top / unit)
    bars = []
    for start, history in histories:
        for (before, _), (after, value) in pairwise([(0.0, 0.0), *history]):
            left, right = axis.at(start + before), axis.at(start + after)
            bars.append((left, max(0.05, right - left), scale * value / unit))
    step = _nice(top / unit / 3)
    steps = range(1, math.floor(top / unit / step + 1e-9) + 1)
    levels = [(scale * number * step, f"{number * step:g} {name}FLOP/s") for number in steps] + [(0.0, "")]
    mark = [(scale * calibrated / unit, f"calibrated: {calibrated / unit:.3g} {name}FLOP/s")] if calibrated > 0 else []
    return draw("rate", axis=axis, height=_CHART_PIXELS, bars=bars, levels=levels, calibrated=mark)


def _nice(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def memory(peaks: Mapping[str, int], announced: int, names: Mapping[str, str], *, most: int = 16) -> Markup:
    """Draw the highest resident memory of workers, the highest first, with a dashed line at what was announced."""
    if not peaks or max(peaks.values()) <= 0:
        return Markup()
    ordered = sorted(peaks.items(), key=lambda item: -item[1])
    end = 1.04 * max(announced, ordered[0][1])
    workers = [
        {
            "address": worker,
            "name": names.get(worker, worker),
            "above": 0 < announced < peak,
            "percent": 100 * peak / end,
            "peak": f"{peak / 1e6:,.0f} MB",
        }
        for worker, peak in ordered[:most]
    ]
    more = f"{len(ordered) - most:,}" if len(ordered) > most else ""
    return draw("memory", workers=workers, announced=100 * announced / end, more=more)


def confusion(counts: NDArray[np.float64], classes: Sequence[object]) -> Markup:
    """Draw a confusion matrix (c, c), true class by predicted class: up to 20 classes with its numbers, up to 64."""
    c = len(counts)
    if not 0 < c <= MOST_CLASSES:
        return Markup()
    in_row = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    wrong = counts - np.diag(np.diag(counts))
    # a few errors among thousands of rows would be white on a linear scale
    shade = np.sqrt(wrong / max(float(wrong.max()), 1.0)) * 0.85
    np.fill_diagonal(shade, np.diag(counts / in_row) * 0.5)
    kinds = np.where(np.eye(c, dtype=bool), "hit", np.where(counts > 0, "miss", "none"))
    if c > _NUMBERED_CLASSES:
        cells = [
            (i, j, kinds[i, j], shade[i, j], f"{classes[i]} → {classes[j]}: {counts[i, j]:,.0f}")
            for i, j in np.argwhere(counts)
        ]
        return draw("confusion_map", classes=c, cells=cells)
    rows = [[(kinds[i, j], shade[i, j], f"{counts[i, j]:,.0f}") for j in range(c)] for i in range(c)]
    return draw("confusion_table", labels=classes, rows=rows)


def digits(images: NDArray[np.uint8], captions: Sequence[tuple[str, str, bool]]) -> Markup:
    """Show images (k, h, w), high values dark, each above a heading and a line; the last of a caption: it is wrong."""
    return draw("digits", images=[(png(255 - image), *each) for image, each in zip(images, captions, strict=True)])


def residuals(counts: NDArray[np.float64], unit: str) -> Markup:
    """Draw a histogram (bins,) over −4 … 4 units, the outer bins open, and the bell curve of the same variance."""
    total, bins = float(counts.sum()), len(counts)
    if total <= 0:
        return Markup()
    edges = np.linspace(-4, 4, bins + 1)
    # Φ(b) − Φ(a) of a normal distribution
    cdf = np.array([0.5 * (1 + math.erf(edge / math.sqrt(2))) for edge in edges])
    bell = np.diff(cdf) * total
    scale = (_CHART_PIXELS - 8) / max(float(counts.max()), float(bell.max()))
    bars = [
        (100 * i / bins, scale * count, f"{edges[i]:.1f} to {edges[i + 1]:.1f}: {100 * count / total:.2g} %")
        for i, count in enumerate(counts)
    ]
    curve = [(100 * (i + 0.5) / bins, scale * a, scale * b) for i, (a, b) in enumerate(pairwise(bell))]
    return draw("residuals", height=_CHART_PIXELS, width=100 / bins, bars=bars, curve=curve, unit=unit)


def descent(shares: Sequence[float], wanted: float | None) -> Markup:
    """Draw what each step leaves on a scale of decades, with a dashed line at what was wanted."""
    if not shares:
        return Markup()
    marks = [wanted] if wanted and wanted > 0 else []
    low = math.floor(math.log10(min([*shares, *marks])) - 1e-9)
    top = max(math.ceil(math.log10(max([*shares, *marks])) + 1e-9), low + 1)
    scale = (_CHART_PIXELS - 16) / (top - low)

    def tall(value: float) -> float:
        return scale * (math.log10(value) - low)

    bars = [(100 * i / len(shares), tall(share), i + 1, f"{share:.2g}") for i, share in enumerate(shares)]
    every = max(1, (top - low) // 5)
    levels = [(scale * (power - low), f"1e{power}" if power else "1") for power in range(low, top, every)]
    return draw(
        "descent",
        height=_CHART_PIXELS,
        width=100 / len(shares),
        bars=bars,
        levels=levels,
        wanted=[(tall(mark), f"{mark:g}") for mark in marks],
    )

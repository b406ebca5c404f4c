"""Drawings of a report page as markup: stages, rate over time, memory by worker, confusion, digits, residuals.

Each returns inline SVG or HTML whose colours are those of `page.css`, hence light and dark; all text is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bigkernel.monitor.format import duration
from bigkernel.monitor.report.page import data_url
from bigkernel.monitor.report.pixels import png
from bigkernel.monitor.report.timeline import COLOURS, Axis, frame

# a stage has the same colour in every drawing
STAGES = ("block", "gram", "exp", "read", "convert", "solve", "merge", "add", "publish", "predict", "write")
MOST_CLASSES = 64  # of a confusion matrix that is drawn
_NUMBERED_CLASSES = 20  # with its counts
_CHART_PIXELS = 170


def colour_of(stage: str, among: Sequence[str]) -> int:
    """The colour of a stage: its own, or that of its place among the others."""
    known = [name for name in STAGES if name in among] + [name for name in among if name not in STAGES]
    return known.index(stage) % COLOURS


def shares(seconds: Mapping[str, float], names: Sequence[str]) -> str:
    """A bar of stages, by their seconds, with a legend; `names` are all stages of the page."""
    total = math.fsum(seconds.values())
    if total <= 0:
        return ""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    bar = "".join(
        f'<i class="c{colour_of(name, names)}" style="flex:{value / total:.5f}" title="{html.escape(name)}"></i>'
        for name, value in ordered
        if value > 0
    )
    legend = "".join(
        f'<li><i class="c{colour_of(name, names)}"></i>{html.escape(name)} <b>{duration(value)}</b> '
        f"{100 * value / total:.{1 if value < 0.0995 * total else 0}f}\u00a0%</li>"
        for name, value in ordered
    )
    return f'<div class="stack">{bar}</div><ul class="legend">{legend}</ul>'


def legend(entries: Sequence[tuple[int, str]]) -> str:
    """Colours and what they mean."""
    if not entries:
        return ""
    items = "".join(f'<li><i class="c{number % COLOURS}"></i>{html.escape(text)}</li>' for number, text in entries)
    return f'<ul class="legend">{items}</ul>'


def rate(histories: Sequence[tuple[float, Sequence[Sequence[float]]]], axis: Axis, calibrated: float) -> str:
    """Rate over time as steps: of every sweep, its start and its points (seconds since then, flops a second).

    A dashed line is the rate that the machines were measured to do; 0: they were not.
    """
    points = [(start, point) for start, history in histories for point in history]
    top = max([calibrated, *(value for _, (_, value) in points)], default=0.0)
    if top <= 0:
        return ""
    unit, name = next(((u, n) for u, n in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")) if top >= u), (1.0, ""))
    step = _nice(top / unit / 3)
    height = _CHART_PIXELS
    scale = (height - 16) / (top / unit)
    parts = [frame(axis, height)]
    for start, history in histories:
        for (before, _), (after, value) in pairwise([(0.0, 0.0), *history]):
            left, right = axis.at(start + before), axis.at(start + after)
            tall = scale * value / unit
            parts.append(
                f'<rect class="c0" fill-opacity=".55" x="{left:.2f}%" y="{height - tall:.1f}" '
                f'width="{max(0.05, right - left):.2f}%" height="{tall:.1f}"/>'
            )
    for number in range(1, math.floor(top / unit / step + 1e-9) + 1):
        y = height - scale * number * step
        parts.append(
            f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="halo" x="4" y="{y - 4:.1f}">{number * step:g} {name}FLOP/s</text>'
        )
    parts.append(f'<line class="grid" x1="0" x2="100%" y1="{height}" y2="{height}"/>')
    if calibrated > 0:
        y = height - scale * calibrated / unit
        parts.append(
            f'<line class="mark" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="halo" x="100%" y="{y - 5:.1f}" text-anchor="end">calibrated: '
            f"{calibrated / unit:.3g} {name}FLOP/s</text>"
        )
    return f'<svg width="100%" height="{height + 20}" role="img" aria-label="rate over time">{"".join(parts)}</svg>'


def _nice(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def memory(peaks: Mapping[str, int], announced: int, names: Mapping[str, str], *, most: int = 16) -> str:
    """Highest resident memory of workers, the highest first, with a dashed line at what was announced."""
    if not peaks or max(peaks.values()) <= 0:
        return ""
    ordered = sorted(peaks.items(), key=lambda item: -item[1])
    end = 1.04 * max(announced, ordered[0][1])
    line = f'<u style="left:{100 * announced / end:.2f}%"></u>' if announced else ""
    above = {worker for worker, peak in ordered if 0 < announced < peak}
    rows = "".join(
        f'<span title="{html.escape(worker)}">{html.escape(names.get(worker, worker))}</span><div>'
        f'<i class="{"c5" if worker in above else "c0"}" style="width:{100 * peak / end:.2f}%"></i>{line}</div>'
        f"<b>{peak / 1e6:,.0f} MB</b>"
        for worker, peak in ordered[:most]
    )
    more = f"<p>{len(ordered) - most:,} more workers had no higher peak.</p>" if len(ordered) > most else ""
    return f'<div class="bars">{rows}</div>{more}'


def confusion(counts: NDArray[np.float64], classes: Sequence[object]) -> str:
    """A confusion matrix (c, c), true class by predicted class: with its numbers up to 20 classes, drawn up to 64."""
    c = len(counts)
    if not 0 < c <= MOST_CLASSES:
        return ""
    in_row = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    wrong = counts - np.diag(np.diag(counts))
    # a few errors among thousands of rows would be white on a linear scale
    shade = np.sqrt(wrong / max(float(wrong.max()), 1.0)) * 0.85
    np.fill_diagonal(shade, np.diag(counts / in_row) * 0.5)
    labels = [html.escape(str(label)) for label in classes]
    if c > _NUMBERED_CLASSES:
        side = 100 / c
        cells = "".join(
            f'<rect class="{"hit" if i == j else "miss"}" x="{j * side:.2f}%" y="{i * side:.2f}%" width="{side:.2f}%" '
            f'height="{side:.2f}%" fill-opacity="{shade[i, j]:.2f}">'
            f"<title>{labels[i]} → {labels[j]}: {counts[i, j]:,.0f}</title></rect>"
            for i in range(c)
            for j in range(c)
            if counts[i, j]
        )
        return (
            '<svg viewBox="0 0 100 100" width="100%" style="max-width:34rem;border:1px solid var(--line)" role="img" '
            f'aria-label="confusion matrix of {c} classes">{cells}</svg>'
        )
    head = "".join(f'<th scope="col">{label}</th>' for label in labels)
    rows = "".join(
        f'<tr><th scope="row">{labels[i]}</th>'
        + "".join(
            f'<td class="{"hit" if i == j else "miss" if counts[i, j] else "none"}" style="--v:{shade[i, j]:.2f}">'
            f"{counts[i, j]:,.0f}</td>"
            for j in range(c)
        )
        + "</tr>"
        for i in range(c)
    )
    return f'<div class="wide"><table class="matrix"><tr><td></td>{head}</tr>{rows}</table></div>'


def digits(images: NDArray[np.uint8], captions: Sequence[tuple[str, str, bool]]) -> str:
    """Images (k, h, w), high values dark, each above a heading and a line; the last of a caption: it is wrong."""
    shown = "".join(
        f'<div class="{"wrong" if wrong else ""}"><img src="{data_url(png(255 - image))}" width="64" height="64" '
        f'alt="{html.escape(heading)}"><b>{html.escape(heading)}</b>{html.escape(below)}</div>'
        for image, (heading, below, wrong) in zip(images, captions, strict=True)
    )
    return f'<div class="digits">{shown}</div>'


def residuals(counts: NDArray[np.float64], unit: str) -> str:
    """A histogram (bins,) over −4 … 4 units, the first and the last bin open; the bell curve of the same variance."""
    total, bins = float(counts.sum()), len(counts)
    if total <= 0:
        return ""
    height = _CHART_PIXELS
    edges = np.linspace(-4, 4, bins + 1)
    # Φ(b) − Φ(a) of a normal distribution
    cdf = np.array([0.5 * (1 + math.erf(edge / math.sqrt(2))) for edge in edges])
    bell = np.diff(cdf) * total
    top = max(float(counts.max()), float(bell.max()))
    parts = [
        f'<rect class="c0" fill-opacity=".7" x="{100 * i / bins:.2f}%" y="{height - (height - 8) * count / top:.1f}" '
        f'width="{100 / bins - 0.25:.2f}%" height="{(height - 8) * count / top:.1f}">'
        f"<title>{edges[i]:.1f} to {edges[i + 1]:.1f}: {100 * count / total:.2g} %</title></rect>"
        for i, count in enumerate(counts)
    ]
    for i, (a, b) in enumerate(pairwise(bell)):
        y = [height - (height - 8) * value / top for value in (a, b)]
        x = [100 * (i + 0.5) / bins, 100 * (i + 1.5) / bins]
        parts.append(f'<line class="mark" x1="{x[0]:.2f}%" x2="{x[1]:.2f}%" y1="{y[0]:.1f}" y2="{y[1]:.1f}"/>')
    for number in range(-4, 5, 2):
        anchor = "start" if number == -4 else "end" if number == 4 else "middle"
        parts.append(
            f'<text x="{12.5 * (number + 4):.1f}%" y="{height + 15}" text-anchor="{anchor}">{number}'
            f"{' ' + html.escape(unit) if number == 4 else ''}</text>"
        )
    return (
        f'<svg width="100%" height="{height + 20}" role="img" aria-label="histogram of residuals">'
        f"{''.join(parts)}</svg>"
    )

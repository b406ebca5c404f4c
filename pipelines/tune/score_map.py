"""The picture of a search: its score over bandwidth and penalty. Needs matplotlib, bigkernel[plots]."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

Array = NDArray[Any]
INEXACT = "right only to more than a thousandth of the predictions"
INK, MARK = "#1c2430", "#d55e00"
DARK = ("#14191f", "#e4e9f0")  # paper and ink of dark screens
_MOST_WRITTEN = 14  # columns of cells that have room for a number
_MOST_LABELS = 10


def score_map(
    mean: Array,
    error: Array,
    widths: Sequence[float | str],
    alphas: Sequence[float],
    *,
    label: str,
    width_name: str,
    inexact: Array | None = None,
    said: str = INEXACT,
    chosen: tuple[int, int] | None = None,
    edges: Sequence[str] = (),
    colours: tuple[str, str] = ("#ffffff", INK),
) -> bytes:
    """A heat map (PNG) of scores over widths (rows) and penalties (columns).

    Cells within one standard error of the best are outlined, the best one is a star, and a choice that is another one a
    diamond. Numbers stand in the cells where they fit. The colours end at the tenth percentile of the scores, so that
    candidates far off do not hide the others.

    Parameters
    ----------
    mean, error : (w, a), to be large; NaN where there is no candidate
    inexact : (w, a) bool, candidates whose predictions may be off; they are hatched
    said : of what is hatched
    chosen : the cell of the chosen candidate, where it need not be the best
    edges : what is to be added where the best lies at an end of the grid
    colours : of the paper and the ink
    """
    ground, ink = colours
    # of equal ones that of the largest penalty, as the search has it
    i, j = max(
        np.argwhere(mean >= (1 - 1e-14 * np.sign(np.nanmax(mean))) * np.nanmax(mean)), key=lambda at: (at[1], at[0])
    )
    best = int(i), int(j)
    with matplotlib.rc_context(
        {
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
            **dict.fromkeys(("figure.facecolor", "axes.facecolor"), ground),
            "font.size": 10,
        }
    ):
        told = f"★ best {label} {mean[best]:.4g} ± {error[best]:.2g}; outlined: within one standard error of it"
        marks = {best: "★"}
        if chosen is not None and chosen != best:
            marks[chosen] = "◆"
            told += f"\n◆ chosen, the simplest of these: {mean[chosen]:.4g}"
        doubtful = np.argwhere(np.zeros(mean.shape, bool) if inexact is None else inexact)
        told += f"\nhatched: {said}" if len(doubtful) else ""
        told += "".join(f"\nat an end of the grid: {edge}" for edge in edges)
        figure = Figure(figsize=(7.2, 1.5 + 0.2 * told.count("\n") + 0.36 * len(mean)), dpi=200, layout="constrained")
        ax = figure.subplots()
        shown = _cells(ax, mean, marks)
        _outline(ax, np.nan_to_num(mean, nan=-np.inf) >= mean[best] - error[best])
        if edges:
            _flag(ax, best, mean.shape)
        for i, j in doubtful:
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="///", edgecolor=MARK, linewidth=0))
        _label_penalties(ax, alphas)
        ax.set_yticks(range(len(widths)), [width if isinstance(width, str) else f"{width:.3g}" for width in widths])
        ax.set(xlabel="penalty alpha (loss summed over rows)", ylabel=f"{width_name} (units of the rows)")
        ax.set_title(told, fontsize=9, loc="left", parse_math=False, wrap=True)
        for spine in ax.spines.values():
            spine.set_visible(False)
        figure.colorbar(shown, ax=ax, label=f"{label}, mean over folds", extend="min")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _cells(ax: Axes, mean: Array, marks: dict[Any, str]) -> Any:
    """The colours of the cells, numbers where they fit, and the marks of some."""
    low, high = float(np.nanpercentile(mean, 10)), float(np.nanmax(mean))
    shown = ax.imshow(mean, cmap="cividis", vmin=low, vmax=high, aspect="auto")
    written = mean.shape[1] <= _MOST_WRITTEN
    for (i, j), value in np.ndenumerate(mean):
        mark = marks.get((i, j), "")
        if np.isnan(value) or not (written or mark):
            continue
        bright = value > (low + high) / 2
        number = f"{value:.3g}" if abs(value) >= 1 or not value else f"{value:.3f}"
        words = "\n".join(part for part in (mark, number if written else "") if part)
        size = 7 if written else 11
        ax.text(
            j, i, words, ha="center", va="center", fontsize=size, linespacing=0.95, color=INK if bright else "#ffffff"
        )
    return shown


def _label_penalties(ax: Axes, alphas: Sequence[float]) -> None:
    """Powers of ten where columns reach over some, else the penalties themselves."""
    ax.tick_params(length=0)
    places = np.arange(len(alphas))
    logs = np.log10(np.maximum(alphas, 1e-300))
    powers = np.arange(np.ceil(logs[0] - 1e-9), np.floor(logs[-1] + 1e-9) + 1) if alphas[0] > 0 else np.zeros(0)
    if len(powers) < 2:
        step = max(1, -(-len(alphas) // _MOST_LABELS))
        ax.set_xticks(places[::step], [f"{alpha:.2g}" for alpha in alphas[::step]])
        return
    powers = powers[:: max(1, -(-len(powers) // _MOST_LABELS))]
    ax.set_xticks(np.interp(powers, logs, places), [f"$10^{{{power:.0f}}}$" for power in powers])
    ax.tick_params(axis="x", length=3)


def _flag(ax: Axes, best: Any, shape: tuple[int, ...]) -> None:
    """A bar along the ends of the map at which the best cell lies."""
    (w, a), (i, j) = shape, best
    for there, x, y in (
        (a > 2 and j == 0, (-0.5, -0.5), (-0.5, w - 0.5)),
        (a > 2 and j == a - 1, (a - 0.5, a - 0.5), (-0.5, w - 0.5)),
        (w > 2 and i == 0, (-0.5, a - 0.5), (-0.5, -0.5)),
        (w > 2 and i == w - 1, (-0.5, a - 0.5), (w - 0.5, w - 0.5)),
    ):
        if there:
            ax.plot(x, y, color=MARK, linewidth=5, linestyle=(0, (1, 0.6)), solid_capstyle="butt", clip_on=False)


def _outline(ax: Axes, near: Array) -> None:
    """Draw a line where a cell of `near` (w, a) has a neighbour that is not of them, or none."""
    w, a = near.shape
    for i, j in np.argwhere(near):
        for there, x, y in (
            (i == 0 or not near[i - 1, j], (j - 0.5, j + 0.5), (i - 0.5, i - 0.5)),
            (i == w - 1 or not near[i + 1, j], (j - 0.5, j + 0.5), (i + 0.5, i + 0.5)),
            (j == 0 or not near[i, j - 1], (j - 0.5, j - 0.5), (i - 0.5, i + 0.5)),
            (j == a - 1 or not near[i, j + 1], (j + 0.5, j + 0.5), (i - 0.5, i + 0.5)),
        ):
            if there:
                ax.plot(x, y, color=MARK, linewidth=2.2, solid_capstyle="round", clip_on=False)

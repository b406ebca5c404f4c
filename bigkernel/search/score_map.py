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
INK, SOFT, MARK = "#1c2430", "#5a6573", "#d55e00"


def score_map(
    mean: Array,
    error: Array,
    widths: Sequence[float],
    alphas: Sequence[float],
    *,
    label: str,
    width_name: str,
    inexact: Array | None = None,
    said: str = INEXACT,
    colours: tuple[str, str] = ("#ffffff", INK),
) -> bytes:
    """A heat map (PNG) of scores over widths (rows) and penalties (columns).

    Cells within one standard error of the best are outlined, the best one is marked. The colours end at the tenth
    percentile of the scores, so that candidates far off do not hide the others.

    Parameters
    ----------
    mean, error : (w, a), to be large
    inexact : (w, a) bool, candidates whose predictions may be off; they are hatched
    said : of what is hatched
    colours : of the paper and the ink
    """
    ground, ink = colours
    w, a = mean.shape
    best = np.unravel_index(int(np.argmax(mean)), mean.shape)
    near = mean >= mean[best] - error[best]
    with matplotlib.rc_context(
        {
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
            **dict.fromkeys(("figure.facecolor", "axes.facecolor"), ground),
            "font.size": 10,
        }
    ):
        figure = Figure(figsize=(7.2, 1.7 + 0.3 * w), dpi=200, layout="constrained")
        ax = figure.subplots()
        low = float(np.percentile(mean, 10))
        shown = ax.imshow(mean, cmap="cividis", vmin=low, vmax=float(mean.max()), aspect="auto")
        _outline(ax, near)
        ax.plot(best[1], best[0], marker="*", markersize=13, color=MARK, markeredgecolor="#ffffff")
        doubtful = np.argwhere(np.zeros_like(near) if inexact is None else inexact)
        for i, j in doubtful:
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="///", edgecolor=MARK, linewidth=0))
        step = max(1, -(-a // 10))
        ax.set_xticks(
            range(0, a, step), [f"{alpha:.0e}".replace("e-0", "e-").replace("e+0", "e") for alpha in alphas[::step]]
        )
        ax.set_yticks(range(w), [f"{width:.3g}" for width in widths])
        ax.set(xlabel="penalty alpha (loss summed over rows)", ylabel=f"{width_name} (units of the rows)")
        told = f"best {label} {mean[best]:.4g} ± {error[best]:.2g}; outlined: within one standard error of it"
        ax.set_title(
            told + (f"\nhatched: {said}" if len(doubtful) else ""),
            fontsize=10,
            loc="left",
        )
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
        figure.colorbar(shown, ax=ax, label=f"{label}, mean over folds", extend="min")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


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

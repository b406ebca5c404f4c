"""The picture of accuracies by method of `python -m pipelines domains`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.shared.pictures import LIGHT, SERIES, Paper, bare, drawing

BLUE, GREEN, GREY = SERIES[0], SERIES[2], SERIES[4]


@dataclass(frozen=True)
class Bar:
    """Accuracies of a method, %, one for each panel, with standard errors and published figures where known."""

    name: str
    kind: str
    means: Sequence[float]
    errors: Sequence[float]
    published: Sequence[float | None]


def accuracy_panels(bars: Sequence[Bar], panels: Sequence[str], kinds: Sequence[str], *, paper: Paper = LIGHT) -> bytes:
    """Draw a bar for each method in each panel, coloured by what it knows, ± one standard error.

    Published figures are ticks.
    """
    colours = dict(zip(kinds, (GREY, BLUE, GREEN), strict=False))
    with drawing(6.4, 1.15 + 0.32 * len(bars), paper) as (figure, png):
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.08})[0]
        places = np.arange(len(bars))
        for j, (ax, title) in enumerate(zip(axes, panels, strict=True)):
            for kind in [kind for kind in kinds if any(bar.kind == kind for bar in bars)]:
                of_kind = np.array([bar.kind == kind for bar in bars])
                values = np.array([bar.means[j] for bar in bars])
                label = kind if j == 0 else None
                ax.barh(places[of_kind], values[of_kind], height=0.62, color=colours[kind], label=label)
            ax.errorbar(
                [bar.means[j] for bar in bars],
                places,
                xerr=[bar.errors[j] for bar in bars],
                fmt="none",
                ecolor=paper.ink,
                elinewidth=1.3,
                capsize=3,
            )
            known = [(place, bar.published[j]) for place, bar in enumerate(bars) if bar.published[j] is not None]
            if known:
                ax.plot(
                    [value for _, value in known],
                    [place for place, _ in known],
                    linestyle="none",
                    marker="|",
                    markersize=15,
                    markeredgewidth=2.2,
                    color=SERIES[5],
                    label="published" if j == 0 else None,
                )
            ax.set(xlim=(0, 100), xlabel="accuracy on the target, %", title=title)
            ax.set_xticks(range(0, 101, 25))
            bare(ax, paper)
        axes[0].set_yticks(places, [bar.name for bar in bars])
        axes[0].invert_yaxis()
        figure.legend(loc="outside upper left", ncols=4, frameon=False, handlelength=1, columnspacing=1.1, fontsize=9)
    return png.getvalue()

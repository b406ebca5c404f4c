"""Figures of the report pages, as PNG bytes, drawn for light or dark paper.

matplotlib is imported when the first picture is drawn, without pyplot and so without any global figure. Pictures have
two pixels a CSS pixel; widths are in inches of 100 CSS pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bigkernel.arrays import Array
from bigkernel.monitor import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200
WRONG = palette.LIGHT["failed"]  # vermilion: distinct from blue and grey for every kind of colour vision
SERIES = tuple(light for light, _ in palette.SERIES)


@dataclass(frozen=True)
class Paper:
    """Colours of a picture; other colours are chosen by role (`bigkernel.monitor.palette`)."""

    ink: str
    soft: str
    line: str
    ground: str
    bar: str
    digits: str
    roles: Mapping[str, str]


def _paper(colours: Mapping[str, str], ground: str, digits: str) -> Paper:
    return Paper(*(colours[role] for role in ("ink", "soft", "line")), ground, colours["accent"], digits, colours)


LIGHT = _paper(palette.LIGHT, "#ffffff", "gray_r")
DARK = _paper(palette.DARK, "#14191f", "gray")


def both(draw: Callable[..., bytes], *args: Any, **options: Any) -> tuple[bytes, bytes]:
    """Draw the same picture for light and dark backgrounds."""
    return draw(*args, paper=LIGHT, **options), draw(*args, paper=DARK, **options)


def predictions(
    images: Array, predicted: Sequence[Any], true: Sequence[Any], *, columns: int = 10, paper: Paper = LIGHT
) -> bytes:
    """Draw digits (n, h, w) under their predicted labels; wrong ones are framed and show the true label behind it."""
    rows = -(-len(images) // columns)
    with drawing(6.4, 0.86 * rows, paper) as (figure, png):
        axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"wspace": 0.12, "hspace": 0.12})
        for place, ax in enumerate(axes.flat):
            if place >= len(images):
                ax.axis("off")
                continue
            digit(ax, images[place], paper)
            if predicted[place] == true[place]:
                ax.set_title(str(predicted[place]), color=paper.soft, pad=3)
                continue
            ax.set_title(f"{predicted[place]} ({true[place]})", color=WRONG, weight="bold", pad=3)
            for spine in ax.spines.values():
                spine.set(edgecolor=WRONG, linewidth=2, visible=True)
    return png.getvalue()


def confusion(counts: Array, labels: Sequence[Any], *, paper: Paper = LIGHT) -> bytes:
    """Draw a confusion matrix (c, c), true class by predicted class, with its counts."""
    # square root: single errors remain visible beside a full diagonal
    shares = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    texts = [[f"{int(count):,}" if count else "·" for count in line] for line in counts]
    names, side = [str(label) for label in labels], 1.4 + 0.42 * len(labels)
    axes = {"x_label": "predicted digit", "y_label": "true digit"}
    return heat_map(shares, names, names, **axes, texts=texts, size=(side, side - 0.35), paper=paper)


def heat_map(
    values: Array,
    columns: Sequence[str],
    rows: Sequence[str],
    *,
    x_label: str,
    y_label: str,
    value_label: str = "",
    texts: Sequence[Sequence[str]] | None = None,
    size: tuple[float, float] | None = None,
    paper: Paper = LIGHT,
) -> bytes:
    """Draw numbers (r, c) of at least 0 as colours, each with its text or value, under names of columns and rows."""
    from matplotlib.colors import LinearSegmentedColormap

    with drawing(*(size or (6.4, 1.3 + 0.36 * len(rows))), paper) as (figure, png):
        ax = figure.subplots()
        heat = LinearSegmentedColormap.from_list("heat", [paper.ground, paper.bar])
        top = max(float(np.max(values)), 1e-300)
        ax.imshow(values, cmap=heat, vmin=0, vmax=top, aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            ink = "#ffffff" if value > 0.6 * top else (paper.ink if value else paper.soft)
            text = texts[i][j] if texts else "0" if value == 0 else f"{value:.1f}" if value >= 0.1 else "<0.1"
            ax.text(j, i, text, ha="center", va="center", color=ink, fontsize=9)
        ax.set(xlabel=x_label, ylabel=y_label)
        ax.set_title(value_label, loc="left")
        ax.set_xticks(range(len(columns)), list(columns))
        ax.set_yticks(range(len(rows)), list(rows))
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
    return png.getvalue()


@contextmanager
def drawing(width: float, height: float, paper: Paper) -> Iterator[tuple[Figure, io.BytesIO]]:
    """Yield an empty figure; after the block, its PNG is in the buffer."""
    import matplotlib
    from matplotlib.figure import Figure

    colours = {
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), paper.ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), paper.ground),
        "axes.edgecolor": paper.line,
        "font.size": 10,
        "axes.titlesize": 10,
    }
    buffer = io.BytesIO()
    with matplotlib.rc_context(colours):
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield figure, buffer
        figure.savefig(buffer, format="png")


def digit(ax: Axes, image: Array, paper: Paper) -> None:
    """Draw a digit."""
    ax.imshow(image, cmap=paper.digits, vmin=0, vmax=255, interpolation="nearest")
    _frame(ax, paper)


def bare(ax: Axes, paper: Paper) -> None:
    """Draw grid lines and no frame."""
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)
    ax.grid(axis="x", color=paper.line, linewidth=0.8)
    ax.set_axisbelow(True)


def contact_sheet(groups: Mapping[str, Array], row_titles: Sequence[str], *, paper: Paper = LIGHT) -> bytes:
    """Draw groups of digits side by side, each (r, c, h, w) under its name ("": none), rows beside their titles."""
    places: list[tuple[str, Array, int] | None] = []
    for name, images in groups.items():
        places += [None] * bool(places) + [(name, images, j) for j in range(images.shape[1])]
    widths = [0.25 if place is None else 1.0 for place in places]
    r = len(row_titles)
    above = 0.25 * any(groups)
    with drawing(6.4, above + min(5.6 / sum(widths), 1.0) * r, paper) as (figure, png):
        grid = {"width_ratios": widths, "wspace": 0.08, "hspace": 0.08}
        # room for the names above, which are wider than one image and so no titles
        figure.get_layout_engine().set(rect=(0, 0, 1, 1 - above / figure.get_figheight()))
        axes = figure.subplots(r, len(places), squeeze=False, gridspec_kw=grid)
        for i, j in np.ndindex(axes.shape):
            place = places[j]
            if place is None:
                axes[i, j].axis("off")
                continue
            name, images, k = place
            digit(axes[i, j], images[i, k], paper)
            if i == 0 and k == 0:
                place_of_name = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
                axes[i, j].annotate(name, (0, 1), (0, 4), **place_of_name).set_in_layout(False)
        for i in range(r):
            axes[i, 0].set_ylabel(row_titles[i], rotation=0, ha="right", va="center", labelpad=6)
    return png.getvalue()


def _frame(ax: Axes, paper: Paper) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(edgecolor=paper.line, linewidth=0.8)

"""Pictures of what a model sees (`pipelines.shared.sight`): features, nearest landmarks, digits that were misread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.shared.experiments import Report
from pipelines.shared.pictures import LIGHT, WRONG, Paper, drawing
from pipelines.shared.sight import Neighbours, Sight, Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[Any]
STEP, LINE, ROOM = 1.1, 1.3, 0.14  # of tiles across and down, and of the room before neighbours, in sides of a tile
FAINT = 0.08  # strokes that are not drawn, as a share of the strongest
# directions of the gradient that make one stroke, and the stroke across it (right, down), of 8 and of 4 directions
_STROKES = {
    8: (((0, 1), (0.0, 1.0)), ((2, 3), (1.0, 0.0)), ((4, 7), (1.0, -1.0)), ((5, 6), (1.0, 1.0))),
    4: (((0,), (0.0, 1.0)), ((1,), (1.0, 0.0)), ((2,), (1.0, -1.0)), ((3,), (1.0, 1.0))),
}


@dataclass(frozen=True)
class _Tile:
    """One small picture: its values, how they are drawn, and the text above it."""

    kind: str
    values: Array
    text: str = ""
    wrong: bool = False


def show(report: Report, sight: Sight, *, among: int, tested: str) -> None:
    """The section of a page: `among` labelled rows were looked at for neighbours; `tested` names the digits."""
    report.page.heading("What the model sees")
    steps = [stage.name for stage in sight.stages]
    through = f" as {' and then '.join(steps)}," if steps else ""
    strokes = any(stage.kind == "strokes" for stage in sight.stages)
    report.figure(
        "seen",
        seen,
        sight,
        caption=f"{tested[:1].upper()}{tested[1:]}, one of each of some classes,{through} and the landmarks "
        "nearest to it, as the rows that they were drawn from: class, and kernel value k(x, z) from 0 to 1. Framed: "
        "a landmark of another class."
        + (" Strokes are drawn where they lie in the image, the thicker the more of it runs so." if strokes else ""),
    )
    if sight.worst is not None:
        report.figure(
            "misread",
            misread,
            sight.worst,
            caption=f"The {len(sight.worst.rows)} {tested} that the model is most wrong about, the worst first: the "
            f"true class, what it was read as, and the nearest of {among:,} labelled training rows with their class "
            "and distance between features (no unit). Framed: neighbours of another class than the true one.",
        )


def seen(sight: Sight, *, paper: Paper = LIGHT) -> bytes:
    """Digits (a line each), their features by stage, and the landmarks nearest to them."""
    found = sight.landmarks
    lines = []
    for number, digit in enumerate(found.digits):
        line = [_Tile("image", digit, _read(found, number), found.true[number] != found.predicted[number])]
        line += [_Tile(stage.kind, stage.values[number]) for stage in sight.stages]
        lines.append([*line, *_near(found, number)])
    near = 1 + len(sight.stages)
    headings = {0: "digit", near: "nearest landmarks"}
    headings |= {1 + place: _short(stage) for place, stage in enumerate(sight.stages)}
    return _sheet(lines, headings, near, paper)


def misread(found: Neighbours, *, paper: Paper = LIGHT) -> bytes:
    """Digits that were misread (a line each), and the labelled rows nearest to them."""
    lines = [
        [_Tile("image", digit, _read(found, number), True), *_near(found, number)]
        for number, digit in enumerate(found.digits)
    ]
    return _sheet(lines, {0: "misread", 1: "nearest labelled rows"}, 1, paper)


def _short(stage: Stage) -> str:
    return {"strokes": "strokes", "image": "pose"}.get(stage.kind, "numbers")


def _read(found: Neighbours, number: int) -> str:
    true, predicted = found.true[number], found.predicted[number]
    return true if true == predicted else f"{true} as {predicted}"


def _near(found: Neighbours, number: int) -> list[_Tile]:
    """The neighbours of a digit."""
    of_digit = zip(found.images[number], found.labels[number], found.values[number], strict=True)
    return [
        _Tile("image", image, f"{label}: {value:.2f}", label != found.true[number]) for image, label, value in of_digit
    ]


def _sheet(lines: Sequence[Sequence[_Tile]], headings: Mapping[int, str], gap: int, paper: Paper) -> bytes:
    """Tiles in lines and columns, with a little room before the column `gap`; headings stand above their column.

    All are drawn in one frame, whose unit is the side of a tile: a frame for each would take a second to lay out.
    """
    across, down, above = len(lines[0]) * STEP + ROOM, len(lines) * LINE, 0.42
    with drawing(6.4, 6.4 * (down + above) / across, paper) as (figure, png):
        figure.set_layout_engine("none")
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(-0.03, across - 0.03), ylim=(down - 0.03, -above - 0.03))
        ax.axis("off")
        for i, line in enumerate(lines):
            for j, tile in enumerate(line):
                left, top = j * STEP + ROOM * (j >= gap), i * LINE + LINE - 1.06
                _draw(ax, tile, left, top, paper)
                if i == 0 and j in headings:
                    ax.text(left, -above + 0.24, headings[j], va="bottom", color=paper.ink)
    return png.getvalue()


def _draw(ax: Axes, tile: _Tile, left: float, top: float, paper: Paper) -> None:
    """A tile whose upper left corner is there."""
    from matplotlib.patches import Rectangle

    values, place = tile.values, (left, left + 1, top + 1, top)
    if tile.kind == "strokes":
        _draw_strokes(ax, values, left, top, paper)
    else:
        if tile.kind == "numbers":
            side = math.ceil(math.sqrt(len(values)))
            whole = np.zeros(side * side)
            whole[: len(values)] = np.abs(values)
            values = whole.reshape(side, side)
        high = max(float(values.max()), 1e-300)
        ax.imshow(values, cmap=paper.digits, vmin=0, vmax=high, interpolation="nearest", extent=place, aspect="auto")
    edge, width = (WRONG, 1.8) if tile.wrong else (paper.line, 0.8)
    ax.add_patch(Rectangle((left, top), 1, 1, fill=False, edgecolor=edge, linewidth=width, zorder=3))
    style = {"color": WRONG, "weight": "bold"} if tile.wrong else {"color": paper.soft}
    ax.text(left + 0.5, top - 0.04, tile.text, ha="center", va="bottom", fontsize=8.5, **style)


def _draw_strokes(ax: Axes, values: Array, left: float, top: float, paper: Paper) -> None:
    """Lines across the gradient in every cell, (directions, cells, cells), the thicker the larger the feature."""
    from matplotlib.collections import LineCollection

    cells = values.shape[1]
    lines, sizes = [], []
    high = max(float(values.max()), 1e-300)
    for members, (right, down) in _STROKES[len(values)]:
        strength = np.sqrt((values[list(members)] ** 2).sum(axis=0)) / high
        half = 0.45 / math.hypot(right, down) / cells
        for (row, column), value in np.ndenumerate(strength):
            if value > FAINT:
                x, y, dx, dy = left + (column + 0.5) / cells, top + (row + 0.5) / cells, half * right, half * down
                lines.append([(x - dx, y - dy), (x + dx, y + dy)])
                sizes.append(2.2 * value)
    ax.add_collection(LineCollection(lines, linewidths=sizes, colors=paper.bar, capstyle="round"))

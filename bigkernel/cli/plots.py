"""Plots of a search for notebooks and papers.

matplotlib is an extra, bigkernel[plots], and is loaded on demand. Names are plotted literally, never as mathematics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array
from bigkernel.data.visible import visible
from bigkernel.errors import ConfigError
from bigkernel.kernels.algebra import Kernel
from bigkernel.monitor.palette import LIGHT
from bigkernel.search.results import doubtful
from bigkernel.search.sweep_search import SweepSearchCV

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARK, LINE = LIGHT["failed"], LIGHT["accent"]
_LETTERS = 60  # longest name at an axis


def plot_search(search: Any, *, score: str | None = None, ax: Axes | None = None) -> Axes:
    """Plot the scores of a search over its grid.

    One numeric parameter gives a line with standard errors, two a map; of more, the penalty and the first other one are
    shown, and each place is the best over the rest. The best candidate is a hollow star. Colours of a map end at
    three times the best error, or at the median score where no perfect score is known; crosses mark candidates whose
    predictions have a rounding error above a thousandth, or whose conjugate gradients have not converged. Candidates
    with a word as the value, as gamma="scale", share one place of a map, "other".

    Parameters
    ----------
    search : a fitted SweepSearchCV
    score : which of several scores; None: the only one, or that of `refit`
    ax : axes to plot on; None: new axes

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        No SweepSearchCV, no number varies over the grid, no such score, or matplotlib is missing.
    """
    if not isinstance(search, SweepSearchCV):
        raise ConfigError(f"search: expected a fitted SweepSearchCV, found {type(search).__name__}")
    check_is_fitted(search, "cv_results_")
    results = search.cv_results_
    label = score or ("score" if "mean_test_score" in results else str(search.refit))
    if f"mean_test_{label}" not in results:
        known = ", ".join(key.removeprefix("mean_test_") for key in results if key.startswith("mean_test_"))
        raise ConfigError(f"score: {label!r} is not one of the scores of this search: {known}")
    coordinates = [_numbers_of(params) for params in results["params"]]
    names = list(dict.fromkeys(name for place in coordinates for name in place))
    varied = [name for name in names if len({place.get(name) for place in coordinates}) > 1]
    if not varied:
        raise ConfigError("search: expected a grid with a varying number, found none")
    varied = sorted(varied, key=lambda name: name != "alpha")[:2]
    cells: dict[tuple[Any, ...], int] = {}
    mean = results[f"mean_test_{label}"]
    for i, place in enumerate(coordinates):
        key = tuple(place.get(name, np.nan) for name in varied)
        if key not in cells or mean[i] > mean[cells[key]]:
            cells[key] = i
    ax = _or_new(ax)
    said = str(label if label != "score" else search.scorer_ if isinstance(search.scorer_, str) else "score")
    if len(varied) == 1:
        _draw_line(ax, cells, mean, results[f"sem_test_{label}"], doubtful(results))
    else:
        _draw_map(ax, cells, mean, doubtful(results), perfect=0.0 if said.startswith("neg_") else 1.0)
    scores = f"{said}, mean over folds"
    across, up = [*varied, scores][:2]
    ax.set_xlabel(visible(across, most=_LETTERS), parse_math=False)
    ax.set_ylabel(visible(up, most=_LETTERS), parse_math=False)
    if len(varied) == 2:
        ax.figure.colorbar(ax.images[-1], ax=ax, label=scores, extend="min")
    return ax


def _numbers_of(params: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a candidate by name; of a kernel its first parameter."""
    numbers: dict[str, float] = {}
    for name, value in params.items():
        name = name.rpartition("__")[2]
        if isinstance(value, Kernel):
            name, value = next(iter(value.get_params().items()), (name, None))
            value = float(np.mean(value)) if isinstance(value, tuple | list | np.ndarray) else value
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            numbers[name] = float(value)
    return numbers


def _draw_line(ax: Axes, cells: dict[tuple[Any, ...], int], mean: Array, error: Array, doubtful: Array) -> None:
    order = sorted(cells)
    x, chosen = np.array([key[0] for key in order]), np.array([cells[key] for key in order])
    ax.errorbar(x, mean[chosen], error[chosen], color=LINE, marker="o", markersize=4, capsize=3)
    best = int(np.argmax(mean[chosen]))
    ax.plot(x[best], mean[chosen][best], "*", color=MARK, markersize=13, zorder=3)
    bad = doubtful[chosen]
    ax.plot(x[bad], mean[chosen][bad], "x", color=MARK, markersize=10)
    if (x > 0).all() and x.max() > 20 * x.min():
        ax.set_xscale("log")


def _draw_map(ax: Axes, cells: dict[tuple[Any, ...], int], mean: Array, doubtful: Array, perfect: float) -> None:
    columns, lines = (sorted({key[axis] for key in cells}, key=lambda v: (np.isnan(v), v)) for axis in (0, 1))
    values = np.full((len(lines), len(columns)), np.nan)
    for (column, line), i in cells.items():
        place = lines.index(line), columns.index(column)
        values[place] = mean[i]
        if doubtful[i]:
            ax.plot(place[1], place[0], "x", color=MARK, markersize=9)
    high = float(np.nanmax(values))
    low = perfect - 3 * (perfect - high) if high < perfect else float(np.nanmedian(values))
    low = max(low, float(np.nanmin(values)))  # hopeless candidates do not use up the colours
    ax.imshow(values, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    line, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    ax.plot(column, line, "*", color=MARK, markerfacecolor="none", markeredgewidth=1.5, markersize=14)
    step = -(-len(columns) // 8)
    ax.set_xticks(range(0, len(columns), step), ["other" if np.isnan(v) else f"{v:.2g}" for v in columns[::step]])
    ax.set_yticks(range(len(lines)), ["other" if np.isnan(v) else f"{v:.3g}" for v in lines])


def _or_new(ax: Axes | None) -> Axes:
    """Return the axes to plot on; new ones are those of a figure that a notebook shows."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ConfigError(f'pictures need matplotlib ({error}): pip install "bigkernel[plots]"') from error
    _, made = pyplot.subplots(layout="constrained")
    axes: Axes = made
    return axes

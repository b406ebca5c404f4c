"""Pictures for notebooks and papers: each function draws on matplotlib axes and returns them.

matplotlib is an extra, bigkernel[plots], and loads when a picture is asked for. Names and labels are drawn as letters;
nothing in them is taken for mathematics.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from bigkernel.cli.plot_axes import label_axes, last_of, name_of, names_of_features, or_new
from bigkernel.data.corpus_arguments import is_count
from bigkernel.data.visible import visible
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.evaluation import split
from bigkernel.kernels.algebra import Kernel
from bigkernel.monitor.palette import LIGHT
from bigkernel.search.results import doubtful
from bigkernel.search.sweep_search import SweepSearchCV

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[Any]
INK, MARK, LINE = LIGHT["ink"], LIGHT["failed"], LIGHT["accent"]
_MOST_NUMBERS = 20  # classes whose counts are written into their cells


def plot_search(search: Any, *, score: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the scores of a search over what its grid varies.

    One number that varies gives a line with its standard errors, two a map; of more, the penalty and the first other
    are shown, and each place is the best over the rest. The best candidate is a star; crosses mark candidates whose
    predictions rounding has moved by more than a thousandth, or whose conjugate gradients have not ended. Candidates
    that have a word in the place of the number, as gamma="scale", share one place of a map, "other".

    Parameters
    ----------
    search : a fitted SweepSearchCV
    score : which of several scores; None: the only one, or that of `refit`
    ax : where to draw; None: new axes

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
        raise ConfigError(f"score: {label!r} is none of the scores of this search: {known}")
    coordinates = [_numbers_of(params) for params in results["params"]]
    names = list(dict.fromkeys(name for place in coordinates for name in place))
    varied = [name for name in names if len({place.get(name) for place in coordinates}) > 1]
    if not varied:
        raise ConfigError("search: no number varies over its grid; there is nothing to draw")
    varied = sorted(varied, key=lambda name: name != "alpha")[:2]
    cells: dict[tuple[Any, ...], int] = {}
    mean = results[f"mean_test_{label}"]
    for i, place in enumerate(coordinates):
        key = tuple(place.get(name, np.nan) for name in varied)
        if key not in cells or mean[i] > mean[cells[key]]:
            cells[key] = i
    ax = or_new(ax)
    draw = _draw_line if len(varied) == 1 else _draw_map
    draw(ax, cells, mean, results[f"sem_test_{label}"], doubtful(results))
    said = str(label if label != "score" else search.scorer_ if isinstance(search.scorer_, str) else "score")
    scores = f"{said}, mean over folds"
    label_axes(ax, *[*varied, scores][:2])
    if len(varied) == 2:
        ax.figure.colorbar(ax.images[-1], ax=ax, label=scores)
    return ax


def _numbers_of(params: dict[str, Any]) -> dict[str, float]:
    """The numbers of a candidate by name; of a kernel its first parameter."""
    found: dict[str, float] = {}
    for name, value in params.items():
        name = name.rpartition("__")[2]
        if isinstance(value, Kernel):
            name, value = next(iter(value.get_params().items()), (name, None))
            value = float(np.mean(value)) if isinstance(value, tuple | list | np.ndarray) else value
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            found[name] = float(value)
    return found


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


def _draw_map(ax: Axes, cells: dict[tuple[Any, ...], int], mean: Array, error: Array, doubtful: Array) -> None:
    columns, lines = (sorted({key[axis] for key in cells}, key=lambda v: (np.isnan(v), v)) for axis in (0, 1))
    values = np.full((len(lines), len(columns)), np.nan)
    for (column, line), i in cells.items():
        place = lines.index(line), columns.index(column)
        values[place] = mean[i]
        if doubtful[i]:
            ax.plot(place[1], place[0], "x", color=MARK, markersize=9)
    low = float(np.nanpercentile(values, 10))  # what is far off does not hide the rest
    ax.imshow(values, cmap="cividis", aspect="auto", vmin=low, vmax=float(np.nanmax(values)))
    line, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    ax.plot(column, line, "*", color=MARK, markeredgecolor="white", markersize=14)
    step = -(-len(columns) // 8)
    ax.set_xticks(
        range(0, len(columns), step), ["other" if np.isnan(value) else f"{value:.2g}" for value in columns[::step]]
    )
    ax.set_yticks(range(len(lines)), ["other" if np.isnan(value) else f"{value:.3g}" for value in lines])


def plot_confusion(model: Any, X: Any, y: Any = None, *, ax: Axes | None = None) -> Axes:
    """Draw which classes a model takes for which, from one sweep over labelled rows.

    Parameters
    ----------
    model : a fitted classifier, or a Pipeline that ends with one
    X, y : rows of any kind, and their labels where they do not carry them
    ax : where to draw; None: new axes

    Returns
    -------
    matplotlib.axes.Axes
        Colours are shares of the rows of a true class; counts stand in the cells, up to 20 classes.

    Raises
    ------
    ConfigError
        No classifier of this package.
    """
    last_of(model, "score_totals", expected="a classifier of bigkernel", kind=is_classifier)
    last, mapped = split(model, X)
    counts = np.asarray(last.score_totals(mapped, y)["confusion"])
    if not counts.sum():
        raise DataError("X: no labelled row, and so nothing is confused")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [visible(label, most=20) for label in last.classes_]
    ax = or_new(ax)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(names))
    ax.set_xticks(ticks, names, rotation=90 if max(map(len, names)) > 3 else 0, parse_math=False)
    ax.set_yticks(ticks, names, parse_math=False)
    ax.set(xlabel="predicted class", ylabel="true class", title=f"{1 - np.trace(counts) / counts.sum():.2%} error")
    if len(names) <= _MOST_NUMBERS:
        for (i, j), count in np.ndenumerate(counts):
            if count:
                ax.text(j, i, f"{count:,.0f}", ha="center", va="center", color="white" if shares[i, j] > 0.5 else INK)
    return ax


def plot_landmarks(
    model: Any, *, image_shape: tuple[int, int] | None = None, count: int = 40, ax: Axes | None = None
) -> Axes:
    """Draw the landmarks of a fit, those of the largest coefficients first.

    Parameters
    ----------
    model : a fitted kernel estimator with landmarks that are rows, or a Pipeline that ends with one
    image_shape : (h, w), where landmarks are pictures; each is stretched from its least to its largest value. None:
        points, where rows have one or two features
    count : most pictures
    ax : where to draw; None: new axes

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        There are none (linear models, random features), or they are neither pictures nor points; an image shape or a
        count that is none.
    """
    if not is_count(count):
        raise ConfigError(f"count: expected a whole number of pictures from 1, found {count!r}")
    if image_shape is not None and not (np.shape(image_shape) == (2,) and all(map(is_count, image_shape))):
        raise ConfigError(f"image_shape: expected (height, width), two whole numbers from 1, found {image_shape!r}")
    check_is_fitted(last_of(model))
    last = last_of(model, "landmarks_", expected="a kernel estimator", why=", which has no landmarks that are rows")
    landmarks = last.landmarks_
    weights = np.abs(np.asarray(getattr(last, "dual_coef_", np.ones(len(landmarks))))).reshape(len(landmarks), -1)
    size = np.linalg.norm(weights, axis=1)
    order = np.argsort(-size, kind="stable")
    m, d = landmarks.shape
    if image_shape is not None:
        h, w = image_shape
        if h * w != d:
            raise ConfigError(f"image_shape: pictures of {h} by {w} have {h * w} pixels, landmarks {d}")
        ax = or_new(ax)
        ax.imshow(_montage(landmarks[order[:count]].reshape(-1, h, w)), cmap="gray_r", vmin=0, vmax=1)
        ax.set_axis_off()
    elif d <= 2:
        ax = or_new(ax)
        second = landmarks[:, 1] if d == 2 else np.zeros(m)
        ax.scatter(landmarks[:, 0], second, s=10 + 90 * size / max(float(size.max()), 1e-300), color=LINE, alpha=0.7)
        label_axes(ax, *names_of_features(model, d))
        ax.yaxis.set_visible(d == 2)
    else:
        raise ConfigError(
            f"image_shape: landmarks of {d} features are points in no plane; give (h, w) if they are pictures"
        )
    ax.set_title(f"{m:,} landmarks" + (f", {min(count, m)} shown" if image_shape is not None else ""))
    return ax


def _has_deviations(model: Any) -> bool:
    return "return_std" in signature(getattr(model, "predict", len)).parameters


def _montage(pictures: Array) -> Array:
    """Pictures (k, h, w) in lines of ten with a margin between, each from 0 to 1."""
    k, h, w = pictures.shape
    columns = min(10, k)
    lines = -(-k // columns)
    low = pictures.min(axis=(1, 2), keepdims=True)
    spread = pictures.max(axis=(1, 2), keepdims=True) - low
    shown = (pictures - low) / np.where(spread > 0, spread, 1)
    sheet = np.zeros((lines * (h + 1) - 1, columns * (w + 1) - 1))
    for i, picture in enumerate(shown):
        top, left = i // columns * (h + 1), i % columns * (w + 1)
        sheet[top : top + h, left : left + w] = picture
    return sheet


def plot_band(
    model: Any, X: Any, y: Any = None, *, against: Any = None, sigmas: float = 2.0, ax: Axes | None = None
) -> Axes:
    """Draw predictions with the band of `predict(X, return_std=True)`.

    Parameters
    ----------
    model : a fitted KernelRidge of one target
    X : (n, d) in memory, where the model predicts, in any order
    y : observations (n,) there, drawn as points
    against : (n,) what the predictions are drawn against; None: the one feature of X
    sigmas : half the height of the band, in standard deviations of an observation
    ax : where to draw; None: new axes

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        X has several features and `against` is not given, the model has no standard deviation, or `y` is not a number
        a row.
    """
    why = ", whose predictions have no standard deviation"
    last_of(model, expected="a fitted KernelRidge", kind=_has_deviations, why=why)
    values = np.asarray(X)
    if y is not None and np.shape(y) != (len(values),):
        raise ConfigError(f"y: expected {len(values)} observations, one a row of X, found shape {np.shape(y)}")
    if against is None and (values.ndim != 2 or values.shape[1] != 1):
        raise ConfigError(f"against: X has the shape {values.shape}; say what its predictions are to be drawn against")
    place = values[:, 0] if against is None else np.asarray(against)
    mean, std = model.predict(X, return_std=True)
    if np.ndim(mean) != 1 or place.shape != np.shape(mean):
        raise ConfigError(f"against: {place.shape} places for predictions of shape {np.shape(mean)}; expected one each")
    order = np.argsort(place, kind="stable")
    place, mean, std = place[order], np.asarray(mean)[order], np.asarray(std)[order]
    ax = or_new(ax)
    low, high = mean - sigmas * std, mean + sigmas * std
    ax.fill_between(place, low, high, color=LINE, alpha=0.2, label=f"± {sigmas:g} σ of an observation")
    ax.plot(place, mean, color=LINE, label="prediction")
    if y is not None:
        ax.plot(place, np.asarray(y)[order], ".", color=INK, markersize=4, label="observed")
    across = names_of_features(model, 1)[0] if against is None else name_of(against, "against")
    label_axes(ax, across, name_of(y, "target"))
    ax.legend(frameon=False)
    return ax

"""What the pictures of `plots` share: the axes to draw on, their names, and the check of the model to draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sklearn.pipeline import Pipeline

from bigkernel.data.visible import visible
from bigkernel.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTERS = 60  # of a name at an axis


def or_new(ax: Axes | None) -> Axes:
    """The axes to draw on; new ones are those of a figure that a notebook shows."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ConfigError(f'pictures need matplotlib ({error}): pip install "bigkernel[plots]"') from error
    _, made = pyplot.subplots(layout="constrained")
    found: Axes = made
    return found


def label_axes(ax: Axes, across: object, up: object = "") -> None:
    """Name both axes; nothing in a name is taken for mathematics."""
    ax.set_xlabel(visible(across, most=_LETTERS), parse_math=False)
    ax.set_ylabel(visible(up, most=_LETTERS), parse_math=False)


def name_of(column: object, otherwise: str) -> str:
    """The name of a column of a frame, or what else it is called."""
    name = getattr(column, "name", None)
    return otherwise if name is None else str(name)


def names_of_features(model: Any, count: int) -> list[str]:
    """The names of the features that a model was fitted to, or their numbers."""
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    return names if len(names) == count else [f"feature {number}" for number in range(count)]


def last_of(
    model: Any, *needed: str, expected: str = "", kind: Callable[[Any], bool] = lambda last: True, why: str = ""
) -> Any:
    """The estimator that a Pipeline ends with, or the model itself, if it is what a picture needs.

    Parameters
    ----------
    needed : attributes that it must have
    expected : what to say that it must be
    kind : what else it must fulfil
    why : the end of the sentence that refuses another

    Raises
    ------
    ConfigError
        It is something else.
    """
    last = model[-1] if isinstance(model, Pipeline) else model
    if not all(hasattr(last, name) for name in needed) or not kind(last):
        raise ConfigError(f"model: expected {expected}, found {type(last).__name__}{why}")
    return last

"""The numbers that candidates differ in, as axes of the grid: whether the best lies at an end.

An axis is a parameter of `param_grid`, or a parameter of the kernels that are given there. Candidates lie in the same
grid where all that is no number is the same. Sizes and tolerances (`NO_AXES`) are no axes: more landmarks are always
better, and cost more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel.kernels.algebra import Kernel

NO_AXES = {"n_landmarks", "random_state", "tol", "max_iter", "nu", "n_rounds", "n_neighbors"}
LEAST_VALUES = 3  # of an axis whose ends tell something: of two values every one is an end
Axis = tuple[str, str]  # name of the parameter, and of that of the kernel that is its value, or ""


@dataclass(frozen=True)
class Edge:
    """An end of an axis at which the best candidate lies.

    Attributes
    ----------
    parameter : its name
    side : "smallest" or "largest"
    value, further : the best value, and the next one that the grid would have
    count : values of the axis
    """

    parameter: str
    side: str
    value: float
    further: float
    count: int

    def __str__(self) -> str:
        wanted = "smaller" if self.side == "smallest" else "larger"
        return (
            f"{self.parameter}: the best value, {self.value:.4g}, is the {self.side} of {self.count}; add {wanted} "
            f"ones, such as {self.further:.3g}"
        )


def coordinates(params: Mapping[str, Any]) -> dict[Axis, float]:
    """The numbers of a candidate by axis."""
    found: dict[Axis, float] = {}
    for name, value in params.items():
        if isinstance(value, Kernel):
            inner = value.get_params(deep=False).items()
            found |= {(name, key): number for key, number in inner if key not in NO_AXES and _is_number(number)}
        elif name.rpartition("__")[2] not in NO_AXES and _is_number(value):
            found[name, ""] = value
    return found


def edges(grid: Sequence[Mapping[str, Any]], best: int) -> list[Edge]:
    """Find the ends at which the best candidate lies."""
    found = []
    for (name, inner), values in _axes(grid, best).items():
        place = coordinates(grid[best])[name, inner]
        if len(values) < LEAST_VALUES or place not in (values[0], values[-1]):
            continue
        further = _beyond(values, place)
        if further is not None and further != place:
            parameter = "__".join(part for part in (name.removeprefix("model__"), inner) if part)
            side = "smallest" if place == values[0] else "largest"
            found.append(Edge(parameter, side, place, further, len(values)))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)


def _alike(grid: Sequence[Mapping[str, Any]], best: int) -> list[Mapping[str, Any]]:
    """The candidates that differ from the best one in numbers alone."""
    wanted = _rest(grid[best])
    return [params for params in grid if _rest(params) == wanted]


def _axes(grid: Sequence[Mapping[str, Any]], best: int) -> dict[Axis, list[float]]:
    """The values of each axis, rising."""
    places = [coordinates(params) for params in _alike(grid, best)]
    return {axis: sorted({place[axis] for place in places}) for axis in coordinates(grid[best])}


def _rest(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a candidate is beside its coordinates, to be compared."""
    axes, found = coordinates(params), []
    for name, value in params.items():
        if isinstance(value, Kernel):
            inner = value.get_params(deep=False).items()
            value = value.name, [(key, repr(given)) for key, given in inner if (name, key) not in axes]
        elif (name, "") in axes:
            value = ""
        found.append((name, value.tobytes() if isinstance(value, np.ndarray) else repr(value)))
    return tuple(found)


def _beyond(values: Sequence[float], place: float) -> float | None:
    """The value a step beyond an end, or None where there is none to be had."""
    inner = values[1] if place == values[0] else values[-2]
    positive = values[0] > 0
    further = place * (place / inner) if positive else 2 * place - inner
    if all(isinstance(value, int | np.integer) for value in values):
        further = max(1, round(further)) if positive else round(further)
    elif values[0] >= 0 > further or (values[0] == place == 0):
        return None  # penalties and widths end at zero
    return further if math.isfinite(further) and (further != 0 or not positive) else None

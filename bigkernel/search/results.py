"""The results of a search: `cv_results_`, the choice of the best, and the ends of the grid.

Tests: search/test_manners.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard, cast

import numpy as np
from scipy.stats import rankdata

from bigkernel.arrays import Array
from bigkernel.errors import AccuracyWarning, DataError
from bigkernel.estimators.ridge import KernelRidge
from bigkernel.kernels.algebra import Kernel
from bigkernel.search.scoring import Scoring, Tested
from bigkernel.search.sweeps import Candidate
from bigkernel.solvers.residuals import ENOUGH, PROMISE

_TIE = 8 * float(np.finfo(np.float64).eps)  # means that differ by less are equal up to rounding


Results = dict[str, Array]


def cv_table(
    everyone: Sequence[Candidate],
    tested: Mapping[tuple[int, int], Tested],
    seconds: Mapping[int, float],
    scoring: Scoring,
    splits: int,
) -> Results:
    """Return `cv_results_`.

    Parameters
    ----------
    everyone : the candidates, in order
    tested : by index of the candidate and of the split
    seconds : each candidate's share of the time

    Raises
    ------
    DataError
        A score is not finite.
    """
    k = len(everyone)
    # the time of a search is shared, so that candidates differ in their mean alone
    results: Results = {"mean_fit_time": np.array([seconds[i] / splits for i in range(k)])}
    results |= {name: np.zeros(k) for name in ("std_fit_time", "mean_score_time", "std_score_time")}
    # a masked column of each parameter, of numbers where all are
    for name in sorted({name for candidate in everyone for name in candidate.params}):
        there = [candidate for candidate in everyone if name in candidate.params]
        kinds = {type(candidate.params[name]) for candidate in there}
        numbers = len(kinds) == 1 and all(issubclass(kind, bool | int | float | np.number) for kind in kinds)
        dtype = np.asarray([candidate.params[name] for candidate in there]).dtype if numbers else object
        column = np.ma.MaskedArray(np.zeros(k, dtype), mask=True)
        for candidate in there:
            column[candidate.index] = candidate.params[name]
        results[f"param_{name}"] = column
    results["params"] = cast(Array, [candidate.params for candidate in everyone])  # a list, as scikit-learn has it
    # the worst error over splits, and whether conjugate gradients converged on all of them
    by_split = [[tested[i, j] for j in range(splits)] for i in range(k)]
    results["prediction_error"] = np.array([[one.error for one in row] for row in by_split]).max(axis=1)
    ends = [[one.ended for one in row] for row in by_split]
    ended = np.array([False not in of_one for of_one in ends])
    if any(end is not None for of_one in ends for end in of_one):
        results["converged"] = ended
    # each score on each split, their mean, deviation, standard error and rank
    for label in scoring.names:
        values = np.array([[scoring.of(label, one) for one in row] for row in by_split])
        _require_finite(values, everyone, scoring.names[label])
        results |= {f"split{j}_test_{label}": values[:, j] for j in range(splits)}
        results |= {f"mean_test_{label}": values.mean(axis=1), f"std_test_{label}": values.std(axis=1)}
        error = values.std(axis=1, ddof=1) / np.sqrt(splits) if splits > 1 else np.zeros(k)
        results[f"sem_test_{label}"] = error
        results[f"rank_test_{label}"] = _ranks(values.mean(axis=1), ended)
    return results


def _require_finite(values: Array, everyone: Sequence[Candidate], name: str) -> None:
    """Raise `DataError` unless all scores (k, splits) are finite."""
    finite = np.isfinite(values)
    if not finite.all():
        i, j = np.argwhere(~finite)[0]
        raise DataError(
            f"scoring: {name} of candidate {everyone[i].params} on split {j} is {values[i, j]}; use a larger alpha, "
            "or scale the targets"
        )


def _ranks(mean: Array, ended: Array) -> Array:
    """Rank by descending mean from 1, with ties; candidates that have not converged come after all others."""
    ranks = np.zeros(len(mean), np.int32)
    ranks[ended] = rankdata(-mean[ended], method="min")
    ranks[~ended] = ended.sum() + rankdata(-mean[~ended], method="min")
    return ranks


def doubtful(results: Mapping[str, Array]) -> Array:
    """Return the candidates whose scores may be wrong, (k,) bool, from `cv_results_`."""
    if "converged" in results:  # an error within `tol` does not count
        return ~results["converged"]
    return np.asarray(results["prediction_error"] > ENOUGH)


def choose(
    results: Results, label: str, everyone: Sequence[Candidate], *, one_standard_error: bool, given: int | None
) -> int:
    """Return the index of the best candidate, or of the simplest one within a standard error of it.

    Of candidates that differ only by rounding, the simplest one is taken too. The candidate `given` is left only for a
    gain above its standard error over the splits, and above half the standard deviation of the scores of all.
    """
    mean, error = results[f"mean_test_{label}"], results[f"sem_test_{label}"]
    best = int(results[f"rank_test_{label}"].argmin())
    if given is not None:
        splits = [name for name in results if name.startswith("split") and name.endswith(f"_test_{label}")]
        gains = np.array([results[name][best] - results[name][given] for name in splits])
        spread = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        if not gains.mean() > max(spread, mean.std() / 2):
            return given
    slack = error[best] if one_standard_error else _TIE * abs(mean[best])
    ended = results.get("converged", np.ones(len(mean), bool))
    near = np.flatnonzero((mean >= mean[best] - slack) & (ended if ended[best] else True))
    return int(max(near, key=lambda i: (*_simplicity(everyone[int(i)]), mean[i]), default=best))


def _simplicity(candidate: Candidate) -> tuple[float, float, float]:
    """Return a key that is large for simple models: large α, then few components, then a wide kernel."""
    kernel = getattr(candidate.basis, "kernel", None)
    params = {} if kernel is None else kernel.get_params()
    width = params.get("sigma", 0.0)
    if params.get("gamma") is not None:
        width = 1 / params["gamma"]
    alpha, components = candidate.solve_settings.alpha, float(candidate.solve_settings.n_components or 0)
    return 0.0 if isinstance(alpha, str) else float(np.mean(alpha)), -components, float(np.mean(width))


def warn_of_errors(
    results: Mapping[str, Array],
    everyone: Sequence[Candidate],
    tested: Mapping[tuple[int, int], Tested],
    ends: Sequence[Edge],
    best: int | None,
) -> None:
    """Warn of candidates whose scores may be wrong, and of those that have not converged; not against the `ends`."""
    # no advice goes against an end of the grid where the best candidate lies
    errors, off = results["prediction_error"], {i for (i, _), one in tested.items() if one.is_off}
    if off:
        opposed = {_INEXACT.get(end.direction, "") for end in ends}
        advice = [text for text in ("larger alphas", "narrower kernels") if text not in opposed]
        warnings.warn(
            f"scores of {len(off)} of {len(errors)} candidates{' with the best one' * (best in off)} are unreliable: "
            f"their predictions may differ from least squares in float64 by more than {PROMISE:g} of their norm "
            f"(cv_results_['prediction_error'], right to a factor of three: above {ENOUGH:.1g}, at most "
            f"{max(errors[i] for i in off):.1g}); use {', '.join([*advice, 'or fewer landmarks or columns'])}"
            + ", or compare the best few by cross_val_score of scikit-learn, whose fits are precise"
            * (best in off),
            AccuracyWarning,
            stacklevel=4,
        )
    if open_ := int((~results.get("converged", np.ones(1, bool))).sum()):
        lasts = [cast(KernelRidge, candidate.last) for candidate in everyone if candidate.choice]
        warnings.warn(
            f"conjugate gradients of {open_} of {len(errors)} candidates did not converge within "
            f"{max(last.max_iter for last in lasts)} steps (tol={min(last.tol for last in lasts):g}; "
            "cv_results_['converged']), and these cannot be selected: increase max_iter, or use larger alphas or "
            "solver='direct'",
            AccuracyWarning,
            stacklevel=4,
        )


NO_AXES = {"n_landmarks", "random_state", "tol", "max_iter", "nu", "n_rounds", "n_neighbors"}
COUNTS = {"n_components", "degree"}  # whole numbers of at least 1
# directions in which predictions lose digits, and the advice against each
_INEXACT = {
    ("alpha", "smallest"): "larger alphas",
    ("sigma", "largest"): "narrower kernels",
    ("gamma", "smallest"): "narrower kernels",
}
LEAST_VALUES = 3  # of an axis with meaningful ends: of two values each is an end
Axis = tuple[str, str]  # name of the parameter, and of the parameter of its kernel or ""


@dataclass(frozen=True)
class Edge:
    """An end of an axis of the grid at which the best candidate lies.

    Attributes
    ----------
    parameter : its name
    side : "smallest" or "largest"
    value, further : the best value, and the next one beyond the grid
    count : number of values of the axis
    """

    parameter: str
    side: str
    value: float
    further: float
    count: int

    @property
    def direction(self) -> tuple[str, str]:
        """The last name of the parameter, and the side."""
        return self.parameter.rpartition("__")[2], self.side

    def __str__(self) -> str:
        direction = "smaller" if self.side == "smallest" else "larger"
        return (
            f"{self.parameter}: the best value {self.value:.4g} is the {self.side} of {self.count}; add {direction} "
            f"values, such as {self.further:.3g}"
        )


def coordinates(params: Mapping[str, object]) -> dict[Axis, float]:
    """Return the numbers of a candidate by axis."""
    numbers: dict[Axis, float] = {}
    for name, value in params.items():
        if isinstance(value, Kernel):
            inner = value.get_params(deep=False).items()
            numbers |= {(name, key): number for key, number in inner if key not in NO_AXES and _is_number(number)}
        elif name.rpartition("__")[2] not in NO_AXES and _is_number(value):
            numbers[name, ""] = value
    return numbers


def edges(grid: Sequence[Mapping[str, object]], best: int, *, inexact: bool = False) -> list[Edge]:
    """Find the ends of the grid at which the best candidate lies.

    `inexact`: its score may be wrong by rounding, so ends beyond which rounding grows do not count.
    """
    ends = []
    for (name, inner), values in _axes(grid, best).items():
        place = coordinates(grid[best])[name, inner]
        if len(values) < LEAST_VALUES or place not in (values[0], values[-1]):
            continue
        parameter = "__".join(filter(None, (name.removeprefix("model__"), inner)))
        further = _beyond(values, place, counts=parameter.rpartition("__")[2] in COUNTS)
        if further is not None and further != place:
            side = "smallest" if place == values[0] else "largest"
            ends.append(Edge(parameter, side, place, further, len(values)))
    return [end for end in ends if not (inexact and end.direction in _INEXACT)]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)


def _axes(grid: Sequence[Mapping[str, object]], best: int) -> dict[Axis, list[float]]:
    """Return the ascending values of each axis, of candidates that differ from the best one only in numbers."""
    rest = _without_coordinates(grid[best])
    places = [coordinates(params) for params in grid if _without_coordinates(params) == rest]
    return {axis: sorted({place[axis] for place in places}) for axis in coordinates(grid[best])}


def _without_coordinates(params: Mapping[str, object]) -> tuple[object, ...]:
    """Return all of a candidate but its coordinates, for comparison."""
    axes, rest = coordinates(params), []
    for name, value in params.items():
        if isinstance(value, Kernel):
            inner = value.get_params(deep=False).items()
            value = value.name, [(key, repr(given)) for key, given in inner if (name, key) not in axes]
        elif (name, "") in axes:
            value = ""
        rest.append((name, value.tobytes() if isinstance(value, np.ndarray) else repr(value)))
    return tuple(rest)


def _beyond(values: Sequence[float], place: float, *, counts: bool) -> float | None:
    """Return the value a step beyond an end, or None if there is none; of a parameter that counts, a whole number."""
    inner = values[1] if place == values[0] else values[-2]
    positive = values[0] > 0
    further = place * (place / inner) if positive else 2 * place - inner
    if counts:
        further = max(1, round(further))
    elif values[0] >= 0 > further or (values[0] == place == 0):
        return None  # penalties and widths end at zero
    return further if math.isfinite(further) and (further != 0 or not positive) else None

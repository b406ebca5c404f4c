"""Checks of settings, rows, the size of exact forms, and the range of numbers; errors name what is wrong.

Sums are computed with overflow ignored (a square of 1e200 is infinite) and checked here once they are complete.
Tests: estimators/test_inputs.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Protocol, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions

from bigkernel.arrays import Array
from bigkernel.engine.cards import limited
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import device_here
from bigkernel.errors import BigKernelError, ColumnScaleWarning, ConfigError, DataError, PlanTooLargeError
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import KERNELS, SCALES
from bigkernel.kernels.given import PAIRWISE, Precomputed
from bigkernel.kernels.on_device import solving_on
from bigkernel.solvers.ridge import require_alpha

EXACT_BYTES = 2**33  # of the n×n matrix of the exact form
KERNEL_CONSTRAINTS: dict[str, list[object]] = {
    "kernel": [Kernel, callable, StrOptions({"rbf", "poly", Precomputed.name, *KERNELS, *PAIRWISE})],
    "gamma": [Interval(Real, 0, None, closed="neither"), StrOptions(set(SCALES))],
    "degree": [Interval(Integral, 1, None, closed="left")],
    "coef0": [Interval(Real, None, None, closed="neither")],
    "alpha": [Real],
    "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
    "landmarks": [str, "array-like"],
    "dtype": [StrOptions({"auto", "float32", "float64"})],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}
RULES = {"cv", "gcv"}  # that choose a penalty
PER_TARGET = "cv-per-target"  # the rule of folds for each target by itself
# of the regressors that take a penalty for each target
PENALTIES: dict[str, list[object]] = {"alpha": [Real, StrOptions({*RULES, PER_TARGET}), "array-like"]}


def require_some(rows: Rows, skipped: int) -> int:
    """Return `skipped`, the number of bad rows that were left out; `DataError` if there are no others."""
    if skipped and skipped == len(rows):
        raise DataError(f"{rows.name}: all {skipped} rows contain NaN or infinity; expected at least one finite row")
    return skipped


def require_labelled(rows: float, weight: float) -> None:
    """Raise `DataError` unless a labelled row has a weight above zero."""
    if not rows or not weight > 0:
        raise DataError("y: expected a labelled row with a positive weight, found none")


def require_exact(name: str, n: int) -> None:
    """Raise `PlanTooLargeError` where the n×n matrix of the exact form of the estimator `name` would be too large."""
    if 8 * n * n > EXACT_BYTES:
        raise PlanTooLargeError(
            f"{name} without n_landmarks: the exact {n:,}×{n:,} kernel matrix would take {8e-9 * n * n:,.0f} GB, "
            f"more than {EXACT_BYTES / 1e9:,.0f} GB; set n_landmarks (1,000 to 10,000)"
        )


def penalty_of(alpha: float | str | Array) -> float | str | Array:
    """Read a penalty as it was given: a rule, a float, or an array (c,) of several."""
    if isinstance(alpha, str):
        return alpha
    require_alpha(alpha)
    given = np.asarray(alpha, np.float64)
    return float(given.item()) if given.size == 1 else given


def chosen_by_folds(alpha: object) -> bool:
    """Return whether a penalty is chosen on folds."""
    return isinstance(alpha, str) and alpha in ("cv", PER_TARGET)


def number(alpha: object) -> float:
    """Return a penalty that is one number."""
    assert isinstance(alpha, Real)
    return float(alpha)


def one_penalty(alpha: object) -> float | str:
    """Return a penalty that is one number, or the name of the rule that chooses it."""
    return alpha if isinstance(alpha, str) else number(alpha)


def require_valid(estimator: BaseEstimator, what: str) -> None:
    """Raise `ConfigError`, prefixed by `what`, if a parameter of the estimator is invalid."""
    try:
        estimator._validate_params()
    except InvalidParameterError as error:
        raise ConfigError(f"{what}: {error}") from error


T = TypeVar("T")
_TINY = float(np.finfo(np.float64).tiny)
_NARROW = float(np.finfo(np.float32).tiny)


def require_targets(y: Array) -> None:
    """Raise `DataError` for targets so small that float32, in which a sweep may sum them, rounds them to zero."""
    largest = float(np.abs(y).max(initial=0, where=np.isfinite(y)))
    if 0 < largest < _NARROW:
        raise DataError(f"y: the largest target is {largest:.2g}, too small for float32 sums; scale the targets")


def require_squares(name: str, squares: Array, sums: Array) -> None:
    """Raise `DataError` for sums of squares (c,) out of range; `sums` (…, c) are not 0 where values are not."""
    with np.errstate(invalid="ignore"):
        large = not (np.isfinite(squares).all() and np.isfinite(sums).all())
        lost = (squares < _TINY) & (np.abs(sums).reshape(-1, len(squares)).max(axis=0, initial=0) > 0)
    if large or lost.any():
        what, how = "the targets" if name == "y" else "the rows", "large" if large else "small"
        raise DataError(f"{name}: squares of its values exceed the range of float64; scale {what}, which are too {how}")


def require_row_squares(squares: Array, sums: Array, shift: Array, n: float) -> None:
    """Call `require_squares` for the rows X, from sums (d,) of x − shift over n rows."""
    with np.errstate(over="ignore"):
        require_squares("X", squares + n * shift**2, np.vstack([sums, shift]))


def require_sums(statistics: Mapping[str, Array]) -> None:
    """Raise `DataError` for moments (`statistics.moments`) out of range."""
    G, C, s, t, q = (statistics[name] for name in ("G", "C", "s", "t", "q"))
    if not (np.isfinite(G).all() and np.isfinite(s).all()):
        raise DataError("X: sums of its kernel values exceed the range of float64; scale the rows")
    for squares, cross, total in zip(q, C, t, strict=True):
        require_squares("y", squares, np.vstack([cross, total[None]]))


LARGEST_RATIO = 100  # of standard deviations; among pixels of images that vary it is below 10


def warn_of_scales(kernel: Kernel, points: Array, names: Sequence[str] = ()) -> None:
    """Warn if one column of points (m, d) decides the distances of a kernel that has one width for all columns.

    `names` are those of the columns, if they have any. A width of exactly 1 says that rows are in its units already, as
    `LearnedMetric` maps them.
    """
    parameters = kernel.get_params(deep=False)
    if not kernel.of_distance or any(map(np.ndim, parameters.values())) or parameters.get("sigma") == 1.0:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        scales = np.std(points[:: -(-len(points) // 256)], axis=0, dtype=np.float64)  # 256 rows at most
    varying = np.sort(scales[scales > 0])
    if len(varying) < 2:
        return
    smallest, middle, largest = varying[[0, (len(varying) - 1) // 2, -1]]
    if largest > LARGEST_RATIO * middle:
        place = int(np.argmax(scales))
        column = repr(names[place]) if names else place
        warnings.warn(
            f"columns differ {largest / smallest:,.0f}-fold in scale: column {column} has "
            f"{largest / middle:,.0f} times the standard deviation of the median column, and decides all distances; "
            "standardize the columns (Standardizer in a Pipeline, --transform standardize)",
            ColumnScaleWarning,
            stacklevel=2,
        )


class Solver(Protocol):
    """The attributes of a `Method` that messages name."""

    @property
    def name(self) -> str: ...

    @property
    def alpha(self) -> object: ...


@contextmanager
def solving(method: Solver) -> Iterator[None]:
    """Turn a factorisation that breaks down within the block into a `DataError` with advice.

    A device works on its large matrices. Wrap solves alone: a `ValueError` of a row source must arrive as itself.
    """
    try:
        own = limited(device_here().name, 0, f"{method.name}: the solve")
        with np.errstate(all="ignore"), own, solving_on(device_here):  # `finite` checks the result
            yield
    except BigKernelError:
        raise
    except (np.linalg.LinAlgError, ValueError, OverflowError) as error:  # SciPy's: singular, or not finite; Python's
        raise DataError(_advice(method, f"the factorisation failed: {error}")) from error


def finite(method: Solver, solution: T) -> T:
    """Return a solution (a dataclass); `DataError` if one of its arrays is not finite."""
    for name, value in vars(solution).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise DataError(_advice(method, f"{name} has values beyond its range"))
    return solution


def _advice(method: Solver, what: str) -> str:
    return (
        f"{method.name}: the equations cannot be solved in float64 with alpha={method.alpha!r} ({what}); use an "
        "alpha closer to 1, or scale rows and targets"
    )

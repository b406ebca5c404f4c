"""Refusals of the kernel estimators: settings of the wrong kind, no rows at all, more memory than there is."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import psutil
from distributed.system import MEMORY_LIMIT
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions

from bigkernel.engine.rows import Rows
from bigkernel.errors import ConfigError, DataError, PlanTooLarge
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import KERNELS, SCALES
from bigkernel.kernels.given import PAIRWISE, Precomputed
from bigkernel.solvers.ridge import require_alpha

EXACT_BYTES = 2**33  # of the n×n matrix of the exact form
KERNEL_CONSTRAINTS: dict[str, list[Any]] = {
    "kernel": [Kernel, callable, StrOptions({"rbf", "poly", Precomputed.name, *KERNELS, *PAIRWISE})],
    "gamma": [Interval(Real, 0, None, closed="neither"), StrOptions(set(SCALES))],
    "degree": [Interval(Integral, 1, None, closed="left")],
    "coef0": [Interval(Real, None, None, closed="neither")],
    "alpha": [Real],
    "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
    "landmarks": [str, "array-like"],
    "dtype": [StrOptions({"auto", "float32", "float64"})],
    "random_state": ["random_state"],
}
# of the regressors that take a penalty for each target
PENALTIES: dict[str, list[Any]] = {"alpha": [Real, StrOptions({"gcv"}), "array-like"]}


def keeps_statistics(estimator: Any) -> bool:
    """True where a fit keeps what `partial_fit` adds to."""
    return not estimator.exact and getattr(estimator, "solver", None) != "cg"


def require_some(rows: Rows, skipped: int) -> int:
    """Return `skipped`, the number of bad rows that were left out; `DataError` where no other is there."""
    if skipped and skipped == len(rows):
        raise DataError(f"{rows.name}: every one of {skipped} rows contains NaN or infinity; none is left to fit")
    return skipped


def require_labelled(rows: float, weight: float) -> None:
    """Raise `DataError` unless a labelled row weighs something."""
    if not rows or not weight > 0:
        raise DataError("y: no labelled row with a weight above zero")


def require_exact(name: str, n: int) -> None:
    """Raise `PlanTooLarge` where the n×n matrix of the exact form of the estimator `name` would be too large."""
    if 8 * n * n > EXACT_BYTES:
        raise PlanTooLarge(
            f"{name} without n_landmarks is exact: its {n:,}×{n:,} kernel matrix would take "
            f"{8e-9 * n * n:,.0f} GB, more than {EXACT_BYTES / 1e9:,.0f} GB; set n_landmarks (1,000 to 10,000)"
        )


def free_bytes() -> int:
    """Return the memory that this process may still take, within what its machine or its container has."""
    left = MEMORY_LIMIT - psutil.Process().memory_info().rss
    return max(0, int(min(psutil.virtual_memory().available, left)))


def penalty_of(alpha: Any) -> Any:
    """Read a penalty as it was given: "gcv", a float, or an array (c,) of several."""
    if isinstance(alpha, str):
        return alpha
    require_alpha(alpha)
    given = np.asarray(alpha, np.float64)
    return float(given.item()) if given.size == 1 else given


def require_valid(estimator: Any, what: str) -> None:
    """Raise `ConfigError`, which says `what` asked for it, where a parameter is none that the estimator takes."""
    try:
        estimator._validate_params()
    except InvalidParameterError as error:
        raise ConfigError(f"{what}: {error}") from error

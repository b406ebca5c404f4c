"""Whether the penalty of generalised cross-validation can be trusted.

GCV takes all rows to have the same leverage hᵢ = ∂fᵢ/∂yᵢ, the mean tr H/n. Rows far from all others may have one near
1: the fit passes through their targets, which GCV takes for a small error. Leaving out row i, with all landmarks kept,
gives the residual (yᵢ − fᵢ)/(1 − hᵢ) at it. The mean square of some rows is compared with those of larger penalties.
Tests: estimators/test_alpha_cv.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from bigkernel.errors import PenaltyWarning
from bigkernel.estimators.fit.basis import LandmarkBasis
from bigkernel.estimators.fit.state import R, RidgeSolution, Solved
from bigkernel.estimators.inputs.training import Training
from bigkernel.kernels.landmarks import uniform
from bigkernel.solvers.gcv import LARGER, left_out
from bigkernel.solvers.ridge import RidgeSystem
from bigkernel.solvers.whitening import reduce_and_centre
from bigkernel.statistics.moments import Moments, unshift_targets
from bigkernel.streaming.chunk import Chunk

_ROWS = 1024  # that are left out, one by one
_MOST = 1.2, 4.0  # times the error of a larger penalty, and by how much more the fewer rows there are


def warn_of_leverage(name: str, errors: Sequence[float], rows: int) -> None:
    """Warn if so many rows, left out, have a far larger mean squared error than with one of the `LARGER` penalties."""
    found, least = errors[0], min(errors[1:])
    if found > (_MOST[0] + _MOST[1] / rows**0.5) * least:
        warnings.warn(
            f"{name}: rows that are left out are predicted {min(found / max(least, 1e-300), 1e9) ** 0.5:,.1f} times "
            "worse than with a larger penalty than that of alpha='gcv', which single rows far from all others may "
            "mislead; use alpha='cv'",
            PenaltyWarning,
            stacklevel=2,
        )


def check_leverage(name: str, solved: Solved[R, RidgeSolution], data: Training) -> None:
    """Leave out some rows of a fit on landmarks, which are none of these, and warn where its penalty is too small."""
    problem, whitening, rows, flag = solved.problem, solved.whitening, data.rows, solved.solution.with_intercept
    basis, shift = problem.basis, problem.inputs.shift
    if not isinstance(basis, LandmarkBasis) or whitening is None:
        return
    # some labelled rows that are no landmarks, and their targets
    sound = rows.sound if rows.bad_rows == "skip" else None
    ids = uniform(len(rows), min(_ROWS, len(rows)), np.random.RandomState(0), usable=sound)
    ids = ids if basis.ids is None else np.setdiff1d(ids, basis.ids)
    y = rows.take_column("y", ids)
    weight = np.ones(len(ids)) if "weight" not in rows.columns else rows.take_column("weight", ids).astype(np.float64)
    some = np.flatnonzero(data.labels.labelled(y, 0) & (weight > 0))
    if not len(some):
        return
    targets, weight = np.empty((len(some), data.labels.width)), weight[some]
    data.labels.encode(y[some], targets)
    # φ of these rows in the coordinates of the solve, about the means of the fit
    sums = problem.statistics if flag else unshift_targets(problem.statistics, shift)
    *_, small = reduce_and_centre(Moments.of(sums, shift=problem.centre), whitening, fit_intercept=flag)
    block = basis.features().block(Chunk(rows.take(ids[some]).astype(basis.dtype)), slice(None))
    phi = whitening.reduce(block.T.astype(np.float64)) - small.mean[:, None]
    targets += (0 if flag else shift) - small.target_mean
    # the error of rows left out is (y − f)/(1 − h), h = w φᵀH⁻¹φ, for this penalty and larger ones
    system, errors = RidgeSystem(small, problem.moments.rows, whitening.condition, shared=True), []
    for larger in LARGER:
        fit = system.solve(larger * float(solved.solution.alpha))
        own = phi if fit.factor.basis is None else fit.factor.basis.T @ phi
        leverage = weight * ((own * fit.factor.solve(own)).sum(axis=0) + flag / small.n)
        errors.append(left_out(targets - phi.T @ fit.w, leverage, weight))
    warn_of_leverage(name, errors, len(some))

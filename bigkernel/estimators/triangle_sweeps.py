"""The last resort of a fit whose moments lose too much: one sweep more, which factors the rows and squares nothing.

Shapes: p columns of the map, c targets, q = 1 + p + c.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import PlanTooLarge
from bigkernel.events.kinds import Note
from bigkernel.events.scope import emit
from bigkernel.solvers.accuracy import ENOUGH, Errors
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.triangle_ridge import EPS, nystrom_ridge_of
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.triangle import MOST_COLUMNS, TriangleStatistic, moved

Array = NDArray[Any]
_STEP = 2.0**-30  # relative, by which points are moved to see how their rounding moves values
_POINTS = 64


def worth_factoring(errors: Errors | None, columns: int) -> bool:
    """Whether rows of p + c columns should be factored: not where moments will do, nor where blocks are too coarse."""
    if errors is None or columns >= MOST_COLUMNS:
        return False
    return not max(errors.total, errors.doubt) <= ENOUGH and errors.blocks <= ENOUGH


def factor_rows(
    whose: Any,
    problem: Any,
    rows: Rows,
    targets: Targets,
    centre: Array | None,
    before: Certificates,
    notes: list[str],
) -> tuple[Any, dict[str, Any]] | None:
    """A problem with the triangle of its rows, and the report of their sweep; None where that does not fit.

    Parameters
    ----------
    whose : the estimator
    centre : (p,) what the columns are taken about, or None: 0
    before : of the solve from moments, which take a note where it does not fit
    notes : take why the rows are swept again
    """
    features = problem.basis.centred()
    off, doubt = before.errors.total, before.errors.doubt
    note = f"predictions would be off by {off:.1g}" if not off <= ENOUGH else f"predictions may be off by {doubt:.1g}"
    try:
        emit(Note(f"{type(whose).__name__}: {note}: the rows are swept again, for a QR factorisation"))
        swept = sweep(rows, TriangleStatistic(features, targets), what="triangle")
    except PlanTooLarge as error:
        before.notes.append(f"{note}, and a QR factorisation of the rows does not fit: {error}")
        return None
    notes.append(f"{note}: swept again for a QR factorisation of the rows")
    zero = np.zeros(features.width)
    further = (zero if features.shift is None else features.shift) - (zero if centre is None else centre)
    return replace(problem, triangle=moved(swept.total["R"], further)), swept.report()


def triangle_of(problem: Any, *, fit_intercept: bool) -> Array:
    """R (q, q) of a problem; without an intercept of targets that nothing was taken off."""
    shift, R = problem.inputs.shift, problem.triangle
    return np.asarray(R if fit_intercept or not np.ndim(shift) else moved(R, None, shift))


def solve_triangle(
    problem: Any, whitening: Whitening, alpha: Any, certificates: Certificates, *, fit_intercept: bool
) -> tuple[Array, Array, Array, Any]:
    """Coefficients, intercept, training squared errors and α of ridge, from the triangle: see `nystrom_ridge_of`."""
    found = nystrom_ridge_of(
        triangle_of(problem, fit_intercept=fit_intercept),
        problem.centre,
        whitening,
        alpha,
        fit_intercept=fit_intercept,
        rows=float(problem.statistics["rows"].sum()),
        noise=block_noise(problem.basis),
        certificates=certificates,
    )
    if certificates.errors is not None:
        certificates.errors = replace(certificates.errors, widest=problem.basis.dtype == "float64")
    return found


def block_noise(basis: Any) -> float:
    """The standard deviation of the rounding of a kernel value: as float32 blocks show it, or as ε in points makes it.

    Kernels of the distance see points about the mean of the landmarks, as blocks do.
    """
    seen = basis.noise()
    if seen is not None:
        return float(np.sqrt(np.mean(seen**2)))
    Z = getattr(basis, "landmarks", None)
    if Z is None or basis.kernel.precomputed:
        return 2 * EPS
    points, mean = Z[:_POINTS], Z.mean(axis=0)
    signs = np.where(np.random.default_rng(0).random(points.shape) < 0.5, -1.0, 1.0)
    values = basis.kernel(points, Z)
    change = basis.kernel(points + _STEP * signs * (points - mean), Z) - values
    return EPS * float(np.sqrt(np.mean(values**2) + np.mean((change / _STEP) ** 2)))

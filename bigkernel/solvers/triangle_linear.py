"""Ridge regression on rows themselves from the triangle R of [1, X − a, Y], which squares no condition.

As in `solvers.linear`, columns are centred, and scaled to be of one length with their penalty. Without an intercept the
first row of R is √n (μᵀ, ȳ), and may be far larger than all others. Multiples of the column that it is largest in are
taken off the others, so that they are 0 in that row,
    w = Tu,   u ↦ (√n μᵀTu = u_j for that column j, and the rows about the mean of columns of ordinary length),
and no direction of the rest counts as null beside the mean.
Shapes: d columns, c targets, k rows of the triangle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.accuracy import Errors
from bigkernel.solvers.gcv import best_of_rows
from bigkernel.solvers.linear import ADVICE, FLAT, least_norm, scale_of
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.target_penalties import Columns, by_penalty
from bigkernel.solvers.triangle_ridge import EPS, Roundings, Stacked, errors_of
from bigkernel.statistics.triangle import TriangularRows

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class _Scaled:
    """The coordinates u of coefficients v = DTu.

    Attributes
    ----------
    scale : (d,) the diagonal of D
    top : (d,) what the row of the mean is in scaled columns, or None where it needs no care: T = I
    """

    scale: Array
    top: Array | None

    def reduce(self, X: Array) -> Array:
        """TᵀDX, of X (d, ·)."""
        out: Array = self.scale[:, None] * X
        if self.top is not None:
            j = int(np.abs(self.top).argmax())
            met = out[j] / self.top[j]
            out -= np.outer(self.top, met)
            out[j] = met
        return out

    def expand(self, u: Array) -> Array:
        """DTu, of u (d, ·)."""
        w: Array = u.copy()
        if self.top is not None:
            j = int(np.abs(self.top).argmax())
            w[j] = 0
            w[j] = (u[j] - self.top @ w) / self.top[j]
        return np.asarray(self.scale[:, None] * w)


def linear_ridge_of(
    R: Array,
    shift: Array,
    alpha: float | Array | str,
    *,
    fit_intercept: bool,
    rows: float,
    certificates: Certificates,
) -> tuple[Array, Array, Array, Any]:
    """Coefficients (d, c), level at `shift` (c,), training squared errors (c,), as of `linear_ridge`, from R; and α.

    Parameters
    ----------
    R : (1 + d + c, 1 + d + c), about `shift` (d,) in the columns and, without an intercept, about 0 in the targets
    alpha : "gcv": chosen from the same rows
    rows : that weigh something
    certificates : take the condition, the effective degrees of freedom and the errors of predictions
    """
    part, penalty = TriangularRows.of(R, None, len(shift), centred=True), alpha
    if isinstance(penalty, str):
        about = part if fit_intercept else TriangularRows.of(R, shift, len(shift), centred=False)
        penalty = best_of_rows(about.columns, about.targets, rows, fit_intercept=fit_intercept)

    def solve(value: float, columns: Columns, noted: Certificates | None) -> tuple[Array, ...]:
        return _solve(part, columns, shift, value, fit_intercept, rows, noted)

    v, level, error = by_penalty(penalty, part.targets.shape[1], certificates, solve)
    return v, level, error, penalty


def _solve(
    part: TriangularRows,
    chosen: Columns,
    shift: Array,
    alpha: float,
    fit_intercept: bool,
    rows: float,
    noted: Certificates | None,
) -> tuple[Array, Array, Array]:
    """Coefficients, level and squared errors of the targets that are chosen."""
    root, mean = np.sqrt(part.n), part.mean + shift
    lengths = np.linalg.norm(part.columns, axis=0)
    flat = lengths <= FLAT * EPS * part.lengths  # rounding of the factorisation
    columns, Y = np.where(flat, 0, part.columns), part.targets[:, chosen]
    scale = scale_of(np.where(flat, 0, lengths**2), root * np.abs(mean), alpha)
    top = root * scale * mean
    taken = not fit_intercept and float(np.abs(top).max(initial=0)) > 1
    to = _Scaled(scale, top if taken else None)
    F, P = to.reduce(columns.T).T, to.reduce(np.sqrt(alpha) * np.eye(len(scale))).T
    if not fit_intercept:
        first = top[None].copy()
        if taken:
            first[:], first[0, np.abs(top).argmax()] = 0, 1
        F, Y = np.vstack([first, F]), np.vstack([root * part.target_mean[None, chosen], Y])
    stacked = Stacked.of(F, Y, P, float(np.linalg.norm(np.where(flat, 0, part.lengths) * scale)))
    u = stacked.solution()
    w, whole = to.expand(u) / scale[:, None], np.vstack([top * (not fit_intercept), columns * scale])
    null = np.linalg.qr(to.expand(stacked.null))[0]
    v = least_norm(null, w, scale, lambda moved: float(((whole @ moved) ** 2).sum()))
    error = ((F @ u - Y) ** 2).sum(axis=0)
    level = part.target_mean[chosen] if fit_intercept else F[0] @ u / root
    if noted is not None:
        stacked.figures(F, noted)
        rounds = Roundings(np.where(flat, 0, part.lengths), np.zeros(len(v)), rows, part.n)
        found = errors_of(F, Y, stacked, u, v, alpha, rounds, to.reduce, ADVICE)
        noted.errors = found if fit_intercept else _about_the_mean(found, F @ u)
    return v, level - part.mean @ v, error


def _about_the_mean(found: Errors, predicted: Array) -> Errors:
    """Errors relative to the norm of predictions (1 + k, c) about their mean, which the first row is."""
    rest = float(np.linalg.norm(predicted[1:]))
    ratio = float(np.linalg.norm(predicted)) / rest if rest else 0.0
    return replace(found, sums=ratio * found.sums, solve=ratio * found.solve)

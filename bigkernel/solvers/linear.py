"""Ridge regression on rows themselves, from their moments about a point near the mean, or from R of their QR.

Columns are centred, and scaled to length one together with their penalty, before factoring, so that neither an offset
nor a unit costs digits. With G and C about the mean μ of the rows and H = G + αI, the
solution with an intercept is v = H⁻¹C. Without one, (H + nμμᵀ)w = C + nμȳ changes it along one direction,
    w = v + u (ȳ − ⟨μ, v⟩) n/(1 + n⟨μ, u⟩),  u = H⁻¹μ;
if H is singular and μ has a component in its null space, the mean of the targets is fitted there at no cost. A model is
(x − a)ᵀw + b with its level b at a, the point that moments are about: about 0 an offset would cost digits.

The factor R of [1, X − a, Y] does not square the condition. Without an intercept its first row is √n (μᵀ, ȳ), and may
be far larger than all others. Multiples of the column in which it is largest are subtracted from the others, which are
then 0 in that row,
    w = Tu,   u ↦ (√n μᵀTu = u_j for that column j, and the rows about the mean of columns of ordinary length),
and no other direction counts as null against the mean.
Shapes: d columns, c targets, k rows of R.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bigkernel.arrays import Array, Index
from bigkernel.solvers import gcv
from bigkernel.solvers.qr_ridge import EPS, RowSystem
from bigkernel.solvers.residuals import VECTORS, Errors, SolveDiagnostics, dof_vectors, probes
from bigkernel.solvers.ridge import Factor, Penalties, by_penalty, factorize, quadratic, squared_error
from bigkernel.solvers.whitening import Reduced, Whitening, centre
from bigkernel.statistics.moments import Moments
from bigkernel.statistics.qr import FactoredRows

FLAT = 100.0  # least ratio of the spread of a column to the rounding of its sums
_ALONG = 1e-10  # share of Σ w x² of scaled columns along directions that are null about the mean
ADVICE = "nearly collinear columns; remove some, or use Ridge with a larger alpha"
_SAME = 1e-12  # relative difference of ‖predictions‖² that counts as equal
_STANDS_OUT = 30.0  # ratio to the rounding of a sum; at most 8 as measured, for columns that depend on others
_ROUNDING = 2.0 * EPS  # of an entry of the moments of scaled columns, as measured


def linear_ridge(
    moments: Moments, shift: Array, alpha: float, *, fit_intercept: bool, diagnostics: SolveDiagnostics
) -> tuple[Array, Array, Array]:
    """Solve min ‖XW + 1b − Y‖² + α‖W‖²; return coefficients (d, c), level at `shift` and squared errors (c,).

    The solution has least norm if columns are dependent and α = 0. Moments are of the rows less `shift` (d,), a point
    near their mean.
    """
    # G and C about the mean μ of the rows; columns that vary less than their rounding are left out
    small = centre(moments, fit_intercept=True)
    mean = small.mean + shift
    squares = np.diagonal(small.G).copy()
    flat = squares <= FLAT * EPS * small.n * small.mean**2
    small.G[flat], small.G[:, flat], small.C[flat] = 0, 0, 0
    # D (G + αI) D with columns of length one, penalty included
    scale = scale_of(np.where(flat, 0, squares), np.sqrt(small.n) * np.abs(mean), alpha)
    scaled = replace(small, G=scale[:, None] * small.G * scale, C=scale[:, None] * small.C)
    lengths, stored = np.sqrt(np.diagonal(moments.G)), np.sqrt(small.n) * np.abs(mean)
    rounding = _Rounding(moments, scale * lengths, scale * stored, flat & (lengths > FLAT * EPS * stored))

    whole = scaled.G + np.diag(alpha * scale**2)
    # v = H⁻¹C, of scaled columns
    factor = factorize(whole, 0.0)
    w = factor.solve(scaled.C)
    factor.diagnose(whole, factor.ratios(whole, scaled.C, 0.0, w), 0.0, diagnostics)
    V = dof_vectors(len(w))  # tr G(G + αI)⁻¹
    dof = float((V * factor.solve(scaled.G @ V)).sum()) * len(w) / max(float((V * V).sum()), 1.0)
    diagnostics.figures["effective_dof"] = dof
    # of all solutions along null directions that of least norm
    null = np.linalg.qr(scale[:, None] * factor.dropped)[0] if factor.dropped is not None else np.zeros((len(w), 0))
    squares_of = lambda w: float(quadratic(scaled.G, w).sum())  # noqa: E731
    v = least_norm(null, w, scale, squares_of)
    if fit_intercept:
        predicted = quadratic(small.G, v)
        error = squared_error(small.q, small.C, v, predicted)
        diagnostics.errors = _errors(scaled, factor, w, rounding, error, predicted)
        return v, small.target_mean - small.mean @ v, error
    # without an intercept v does not meet the mean of the targets: ȳ − ⟨μ, v⟩ is missed
    missed = small.target_mean - mean @ v
    along = null @ (null.T @ mean)
    if factor.dropped is not None and small.n * np.sum((factor.dropped.T @ (scale * mean)) ** 2) > _ALONG:
        # μ has a null component: along it the mean is met, and nothing else changes
        v += np.outer(along, missed) / (along @ along)
        met = small.target_mean
    else:
        # else w = v + u (ȳ − ⟨μ, v⟩) n/(1 + n⟨μ, u⟩) along u = H⁻¹μ, the only direction that μμᵀ changes
        u = least_norm(null, factor.solve((scale * mean)[:, None]), scale, squares_of)[:, 0]
        size = max(float(np.abs(u).max(initial=0)), 1e-300)  # 1/α and more, whose products could overflow
        u /= size
        pull = small.n * (mean @ u)  # ⟨μ, w⟩ = (⟨μ, v⟩ + n⟨μ, u⟩ȳ)/(1 + n⟨μ, u⟩)
        met = ((mean @ v) / size + pull * small.target_mean) / (1 / size + pull)
        v += np.outer(u, missed) * (small.n / (1 / size + pull))
        rounding = replace(rounding, of_mean=np.outer(scale * mean, small.n * small.target_mean))
    # targets uncorrelated with all columns, except for rounding, with both about 0
    of_mean = small.n * np.outer(mean, small.target_mean)
    sizes = np.sqrt(np.outer(squares, np.maximum(small.q, 0))) + np.abs(of_mean)
    none = (np.abs(small.C + of_mean) <= _STANDS_OUT * EPS * sizes).all(axis=0)
    v[:, none], met = 0, np.where(none, 0, met)
    predicted = quadratic(small.G, v)
    error = squared_error(small.q, small.C, v, predicted) + small.n * (small.target_mean - met) ** 2
    diagnostics.errors = _errors(scaled, factor, v / scale[:, None], rounding, error, predicted)
    return v, met - small.mean @ v, error


@dataclass(frozen=True, eq=False)
class _Rounding:
    """Sizes of the rounding of moments."""

    moments: Moments  # about the point of their sums
    lengths: Array  # (d,) of the scaled columns about that point: 1, or more if it is far from their mean
    stored: Array  # (d,) of the scaled columns about 0, where their values are rounded
    flat: Array  # (d,) whether a column was dropped although it may vary by less than rounding
    # (d, c) the difference of C about 0 and about the mean, if null directions must not fit a mean; or None
    of_mean: Array | None = None


def scale_of(squares: Array, raw_lengths: Array, alpha: float) -> Array:
    """Return the factors that scale columns, of `squares` (d,) about the mean, and their penalty to length one."""
    lengths = np.sqrt(squares + alpha)
    lengths = np.where(lengths > 0, lengths, raw_lengths)
    return 1 / np.where(lengths > 0, lengths, 1)


def least_norm(null: Array, w: Array, scale: Array, squares: Callable[[Array], float]) -> Array:
    """Return coefficients of least norm, orthogonal to the null space, from those of scaled columns.

    If their units differ so much that this would change predictions, whose ‖·‖² is `squares`, the norm is that of
    scaled columns.
    """
    v = np.asarray(scale[:, None] * w)
    if not null.size:
        return v
    least = v - null @ (null.T @ v)
    same = squares((least - v) / scale[:, None]) <= _SAME * squares(w)
    return np.asarray(least if same else v)


def _errors(scaled: Reduced, factor: Factor, w: Array, rounding: _Rounding, error: Array, squares: Array) -> Errors:
    """Estimate the error of predictions by rounding of the moments, relative to their norm about the mean.

    Moments of columns of lengths l have rounding errors E of size ε lᵢlⱼ and δ of size ε lᵢ‖y‖, so that H⁻¹(δ − Ew)
    is the image of independent entries of variances ε² lᵢ²(‖y‖² + Σ lⱼ²wⱼ²). `error`, `squares` (c,): Σ(y − f)², Σf².
    """
    predicted, targets = float(squares.sum()), float(rounding.moments.q.sum())
    left, rows = float(error.sum()), max(float(rounding.moments.rows), 1.0)
    missed = [_missed(scaled, factor, rounding, stored) for stored in (rounding.stored, 0 * rounding.stored)]
    # along a direction of noise least squares explains a chance share of the residual
    lost = left if missed[0] or rounding.flat.any() else left / rows * (factor.unresolved + missed[1])
    if not predicted > (FLAT * EPS) ** 2 * targets:  # targets are constant, except for rounding
        return Errors(0.0, np.inf if lost > (FLAT * EPS) ** 2 * targets else 0.0, 0.0, ADVICE)
    moves = factor.solve(rounding.lengths[:, None] * probes(len(w), VECTORS))
    power = float(np.abs(quadratic(scaled.G, moves)).sum()) / VECTORS
    of_sums = power * _ROUNDING**2 * (targets + float(((rounding.lengths[:, None] * w) ** 2).sum()))
    # smaller components of C in directions with singular values above ε·max(n, d) are below its rounding
    unresolved = 0 if factor.dropped is None else factor.dropped.shape[1] - missed[1]
    doubt = min(left, unresolved * (_STANDS_OUT / max(rows, len(w))) ** 2 * targets)
    sums, solve, doubt = (float(np.sqrt(one / predicted)) for one in (of_sums, lost, doubt))
    return Errors(sums, solve, 0.0, ADVICE, doubt=doubt)


def _missed(scaled: Reduced, factor: Factor, rounding: _Rounding, stored: Array) -> int:
    """Count the directions that were dropped as null although targets vary along them.

    For dependent columns C is rounding along null directions: of the sums, and of the `stored` (d,) values. A direction
    that is not resolved may explain the whole residual.
    """
    if factor.dropped is None:
        return 0
    lengths = np.linalg.norm(factor.dropped * rounding.lengths[:, None], axis=0) + np.abs(factor.dropped.T) @ stored
    varies = np.abs(factor.null_coordinates(scaled.C)) > _STANDS_OUT * EPS * np.outer(lengths, np.sqrt(scaled.q))
    if rounding.of_mean is not None:
        lengths = lengths + np.abs(factor.dropped.T) @ rounding.stored
        sizes = np.sqrt(scaled.n) * np.abs(scaled.target_mean)
        varies |= np.abs(factor.null_coordinates(rounding.of_mean)) > _STANDS_OUT * EPS * np.outer(lengths, sizes)
    return int(varies.any(axis=1).sum())


def linear_fit(
    moments: Moments, shift: Array, alpha: Penalties | str, *, fit_intercept: bool, diagnostics: SolveDiagnostics
) -> tuple[Array, Array, Array, Penalties]:
    """Solve `linear_ridge` for one or more penalties; return also α, as chosen by "gcv"."""
    if isinstance(alpha, str):
        shifted = moments if fit_intercept else replace(moments, shift=shift)
        alpha = gcv.best_alpha(shifted, Whitening(len(shift), len(shift)), fit_intercept=fit_intercept)

    def solve(value: float, columns: Index, noted: SolveDiagnostics) -> tuple[Array, ...]:
        own = replace(moments, C=moments.C[:, columns], t=moments.t[columns], q=moments.q[columns])
        return linear_ridge(own, shift, value, fit_intercept=fit_intercept, diagnostics=noted)

    v, level, error = by_penalty(alpha, len(moments.t), diagnostics, solve)
    return v, level, error, alpha


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Coordinates u of coefficients v = DTu."""

    scale: Array  # (d,) the diagonal of D
    top: Array | None  # (d,) the row of the mean in scaled columns; None: it is not large, T = I

    def reduce(self, X: Array) -> Array:
        """Compute TᵀDX, of X (d, ·)."""
        out: Array = self.scale[:, None] * X
        if self.top is not None:
            j = int(np.abs(self.top).argmax())
            met = out[j] / self.top[j]
            out -= np.outer(self.top, met)
            out[j] = met
        return out

    def expand(self, u: Array) -> Array:
        """Compute DTu, of u (d, ·)."""
        w: Array = u.copy()
        if self.top is not None:
            j = int(np.abs(self.top).argmax())
            w[j] = 0
            w[j] = (u[j] - self.top @ w) / self.top[j]
        return np.asarray(self.scale[:, None] * w)


def linear_ridge_of(
    R: Array, shift: Array, alpha: Penalties | str, *, fit_intercept: bool, rows: float, diagnostics: SolveDiagnostics
) -> tuple[Array, Array, Array, Penalties]:
    """Solve `linear_ridge` from R; return coefficients (d, c), level at `shift` and squared errors (c,), and α.

    R (1 + d + c, 1 + d + c) is about `shift` (d,) in the columns and, without an intercept, about 0 in the targets;
    `rows` is the number of rows of positive weight. "gcv" chooses α from the same rows.
    """
    small, penalty = FactoredRows.of(R, None, len(shift), centred=True), alpha
    if isinstance(penalty, str):
        shifted = small if fit_intercept else FactoredRows.of(R, shift, len(shift), centred=False)
        penalty = gcv.best_of_rows(shifted.columns, shifted.targets, rows, fit_intercept=fit_intercept)

    solve = partial(_solve_rows, small, shift, fit_intercept, rows)
    v, level, error = by_penalty(penalty, small.targets.shape[1], diagnostics, solve)
    return v, level, error, penalty


def _solve_rows(
    small: FactoredRows,
    shift: Array,
    fit_intercept: bool,
    rows: float,
    alpha: float,
    chosen: Index,
    noted: SolveDiagnostics,
) -> tuple[Array, Array, Array]:
    """Solve for coefficients, level and squared errors of the chosen targets."""
    root, mean = np.sqrt(small.n), small.mean + shift
    lengths = np.linalg.norm(small.columns, axis=0)
    flat = lengths <= FLAT * EPS * small.lengths  # rounding of the factorisation
    columns, Y = np.where(flat, 0, small.columns), small.targets[:, chosen]
    # columns of length one, penalty included, and T where the row of the mean is far larger than all others
    scale = scale_of(np.where(flat, 0, lengths**2), root * np.abs(mean), alpha)
    top = root * scale * mean
    taken = not fit_intercept and float(np.abs(top).max(initial=0)) > 1
    to = _Scaled(scale, top if taken else None)
    F, P = to.reduce(columns.T).T, to.reduce(np.sqrt(alpha) * np.eye(len(scale))).T
    if not fit_intercept:
        # the row of the mean, √n μᵀTu, has a single entry where T takes it
        first = top[None].copy()
        if taken:
            first[:], first[0, np.abs(top).argmax()] = 0, 1
        F, Y = np.vstack([first, F]), np.vstack([root * small.target_mean[None, chosen], Y])
    # least squares of [F; P], and of all its solutions that of least norm
    rounded = np.where(flat, 0, small.lengths)
    system = RowSystem(F, Y, rounded, np.zeros(len(scale)), rows, small.n, to.reduce, to.expand, ADVICE)
    solution = system.solve(alpha, penalty=P, noise=float(np.linalg.norm(rounded * scale)))
    u = solution.w
    w, whole = to.expand(u) / scale[:, None], np.vstack([top * (not fit_intercept), columns * scale])
    null = np.linalg.qr(to.expand(solution.null))[0]
    v = least_norm(null, w, scale, lambda x: float(((whole @ x) ** 2).sum()))
    level = small.target_mean[chosen] if fit_intercept else F[0] @ u / root
    system.diagnose(solution, noted, v)
    if not fit_intercept and (errors := noted.errors) is not None:
        # relative to the norm of predictions about their mean, which is the first row
        rest = float(np.linalg.norm((F @ u)[1:]))
        ratio = float(np.linalg.norm(F @ u)) / rest if rest else 0.0
        noted.errors = replace(errors, sums=ratio * errors.sums, solve=ratio * errors.solve)
    return v, level - small.mean @ v, solution.squares

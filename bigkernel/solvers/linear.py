"""Ridge regression on rows themselves, from their moments about a point near the mean, or from R of their QR.

Columns are centred, and scaled to be of one length with their penalty, before anything is factored, and this is undone
after it: neither an offset nor a unit costs digits. With G and C about the mean μ of the rows and H = G + αI, the
solution with an intercept is v = H⁻¹C. Without one, (H + nμμᵀ)w = C + nμȳ moves it along one direction,
    w = v + u (ȳ − ⟨μ, v⟩) n/(1 + n⟨μ, u⟩),  u = H⁻¹μ;
where H is singular and μ has a part in its null space, the mean of the targets is met there at no cost. A model is
(x − a)ᵀw + b with its level b at a, the point that moments are about: about 0 it would lose the digits of an offset.

The factor R of [1, X − a, Y] squares no condition. Without an intercept its first row is √n (μᵀ, ȳ), and may be far
larger than all others. Multiples of the column that it is largest in are taken off the others, so that they are 0 in
that row,
    w = Tu,   u ↦ (√n μᵀTu = u_j for that column j, and the rows about the mean of columns of ordinary length),
and no direction of the rest counts as null beside the mean.
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

FLAT = 100.0  # times the rounding of its sums, that the spread of a column must exceed
_ALONG = 1e-10  # of Σ w (x − 0)² of scaled columns, along directions that count as null about the mean
ADVICE = "columns that nearly depend on others: leave some out, or take Ridge with a larger alpha"
_SAME = 1e-12  # of ‖predictions‖², by which they may differ
_STANDS_OUT = 30.0  # times the rounding of a sum: at most 8 as measured, of columns that do depend on others
_ROUNDING = 2.0 * EPS  # of an entry of the moments of scaled columns, as measured


def linear_ridge(
    moments: Moments, shift: Array, alpha: float, *, fit_intercept: bool, diagnostics: SolveDiagnostics
) -> tuple[Array, Array, Array]:
    """Coefficients (d, c), level at `shift` (c,) and training squared errors (c,) of min ‖XW + 1b − Y‖² + α‖W‖².

    The solution of least norm where columns are dependent and α = 0. Moments are of the rows less `shift` (d,), a point
    near their mean.
    """
    small = centre(moments, fit_intercept=True)
    mean = small.mean + shift
    squares = np.diagonal(small.G).copy()
    flat = squares <= FLAT * EPS * small.n * small.mean**2
    small.G[flat], small.G[:, flat], small.C[flat] = 0, 0, 0
    scale = scale_of(np.where(flat, 0, squares), np.sqrt(small.n) * np.abs(mean), alpha)
    scaled = replace(small, G=scale[:, None] * small.G * scale, C=scale[:, None] * small.C)
    lengths, stored = np.sqrt(np.diagonal(moments.G)), np.sqrt(small.n) * np.abs(mean)
    known = _Sums(moments, scale * lengths, scale * stored, flat & (lengths > FLAT * EPS * stored))

    whole = scaled.G + np.diag(alpha * scale**2)
    factor = factorize(whole, 0.0)
    w = factor.solve(scaled.C)
    factor.diagnose(whole, factor.ratios(whole, scaled.C, 0.0, w), 0.0, diagnostics)
    V = dof_vectors(len(w))  # tr G(G + αI)⁻¹
    dof = float((V * factor.solve(scaled.G @ V)).sum()) * len(w) / max(float((V * V).sum()), 1.0)
    diagnostics.figures["effective_dof"] = dof
    null = np.linalg.qr(scale[:, None] * factor.dropped)[0] if factor.dropped is not None else np.zeros((len(w), 0))
    squares_of = lambda w: float(quadratic(scaled.G, w).sum())  # noqa: E731
    v = least_norm(null, w, scale, squares_of)
    if fit_intercept:
        error = squared_error(small.q, small.C, v, quadratic(small.G, v))
        diagnostics.errors = _errors(scaled, factor, w, known, error)
        return v, small.target_mean - small.mean @ v, error
    missed = small.target_mean - mean @ v
    along = null @ (null.T @ mean)
    if factor.dropped is not None and small.n * np.sum((factor.dropped.T @ (scale * mean)) ** 2) > _ALONG:
        v += np.outer(along, missed) / (along @ along)
        met = small.target_mean
    else:
        u = least_norm(null, factor.solve((scale * mean)[:, None]), scale, squares_of)[:, 0]
        size = max(float(np.abs(u).max(initial=0)), 1e-300)  # 1/α and more, whose products would leave the range
        u /= size
        pull = small.n * (mean @ u)  # ⟨μ, w⟩ = (⟨μ, v⟩ + n⟨μ, u⟩ȳ)/(1 + n⟨μ, u⟩)
        met = ((mean @ v) / size + pull * small.target_mean) / (1 / size + pull)
        v += np.outer(u, missed) * (small.n / (1 / size + pull))
        known = replace(known, of_mean=np.outer(scale * mean, small.n * small.target_mean))
    # targets that have nothing in common with any column, but for rounding, where both are about 0
    of_mean = small.n * np.outer(mean, small.target_mean)
    sizes = np.sqrt(np.outer(squares, np.maximum(small.q, 0))) + np.abs(of_mean)
    none = (np.abs(small.C + of_mean) <= _STANDS_OUT * EPS * sizes).all(axis=0)
    v[:, none], met = 0, np.where(none, 0, met)
    error = squared_error(small.q, small.C, v, quadratic(small.G, v)) + small.n * (small.target_mean - met) ** 2
    diagnostics.errors = _errors(scaled, factor, v / scale[:, None], known, error)
    return v, met - small.mean @ v, error


@dataclass(frozen=True, eq=False)
class _Sums:
    """What is known of the rounding of moments."""

    moments: Moments  # about the point that they were summed about
    lengths: Array  # (d,) of the scaled columns there: 1, or more where that is far from their mean
    stored: Array  # (d,) of the scaled columns about 0, where their values are rounded
    flat: Array  # (d,) whether a column may vary by less than rounding shows, so that it was left out
    # (d, c) what C has more of about 0, where directions that count as null are to meet no mean; or None
    of_mean: Array | None = None


def scale_of(squares: Array, about_zero: Array, alpha: float) -> Array:
    """What makes columns, of `squares` (d,) about their mean or else 0, and their penalty of length one together."""
    lengths = np.sqrt(squares + alpha)
    lengths = np.where(lengths > 0, lengths, about_zero)
    return 1 / np.where(lengths > 0, lengths, 1)


def least_norm(null: Array, w: Array, scale: Array, squares: Callable[[Array], float]) -> Array:
    """Coefficients of the columns, outside the null space and so of least norm, from those of scaled columns.

    Where their units are so unlike that rounding would move predictions, whose ‖·‖² `squares` gives, of least norm for
    scaled columns.
    """
    v = scale[:, None] * w
    least = v - null @ (null.T @ v)
    same = squares((least - v) / scale[:, None]) <= _SAME * squares(w)
    return np.asarray(least if same else v)


def _errors(scaled: Reduced, factor: Factor, w: Array, known: _Sums, error: Array) -> Errors:
    """How far rounding of the moments moves predictions, relative to their norm about the mean.

    Entries of the moments of columns of lengths l are rounded by ε: E by ε lᵢlⱼ and δ by ε lᵢ‖y‖, so that H⁻¹(δ − Ew)
    is the image of independent entries of variances ε² lᵢ²(‖y‖² + Σ lⱼ²wⱼ²). `error` (c,) is that of training.
    """
    predicted, targets = float((w * (scaled.G @ w)).sum()), float(known.moments.q.sum())
    left, rows = float(error.sum()), max(float(known.moments.rows), 1.0)
    missed = [_missed(scaled, factor, known, stored) for stored in (known.stored, 0 * known.stored)]
    # along a direction of noise least squares fits as much of the residual as chance has it
    lost = left if missed[0] or known.flat.any() else left / rows * (factor.unresolved + missed[1])
    if not predicted > (FLAT * EPS) ** 2 * targets:  # targets are a constant, but for the rounding of their values
        hides = lost > (FLAT * EPS) ** 2 * targets
        return Errors(0.0, np.inf if hides else 0.0, 0.0, ADVICE)
    moves = factor.solve(known.lengths[:, None] * probes(len(w), VECTORS))
    power = float(np.abs(quadratic(scaled.G, moves)).sum()) / VECTORS
    of_sums = power * _ROUNDING**2 * (targets + float(((known.lengths[:, None] * w) ** 2).sum()))
    # of directions of singular values from ε·max(n, d) on, which float64 has, C does not show less than this
    unseen = 0 if factor.dropped is None else factor.dropped.shape[1] - missed[1]
    doubt = min(left, unseen * (_STANDS_OUT / max(rows, len(w))) ** 2 * targets)
    sums, solve, doubt = (float(np.sqrt(part / predicted)) for part in (of_sums, lost, doubt))
    return Errors(sums, solve, 0.0, ADVICE, doubt=doubt)


def _missed(scaled: Reduced, factor: Factor, known: _Sums, stored: Array) -> int:
    """Along how many directions that were dropped as null targets vary: then they are not null.

    Of columns that depend on each other C is rounding along such directions: of the sums, and of the values, `stored`
    (d,). An unresolved direction may hold all that is left of the targets.
    """
    if factor.dropped is None:
        return 0
    lengths = np.linalg.norm(factor.dropped * known.lengths[:, None], axis=0) + np.abs(factor.dropped.T) @ stored
    found = np.abs(factor.unseen(scaled.C)) > _STANDS_OUT * EPS * np.outer(lengths, np.sqrt(scaled.q))
    if known.of_mean is not None:
        lengths = lengths + np.abs(factor.dropped.T) @ known.stored
        sizes = np.sqrt(scaled.n) * np.abs(scaled.target_mean)
        found |= np.abs(factor.unseen(known.of_mean)) > _STANDS_OUT * EPS * np.outer(lengths, sizes)
    return int(found.any(axis=1).sum())


def linear_fit(
    moments: Moments, shift: Array, alpha: Penalties | str, *, fit_intercept: bool, diagnostics: SolveDiagnostics
) -> tuple[Array, Array, Array, Penalties]:
    """Coefficients, level at `shift` and squared errors as of `linear_ridge`, and α, which "gcv" has chosen."""
    if isinstance(alpha, str):
        about = moments if fit_intercept else replace(moments, shift=shift)
        alpha = gcv.best_alpha(about, Whitening(len(shift), len(shift)), fit_intercept=fit_intercept)

    def solve(value: float, columns: Index, noted: SolveDiagnostics) -> tuple[Array, ...]:
        part = replace(moments, C=moments.C[:, columns], t=moments.t[columns], q=moments.q[columns])
        return linear_ridge(part, shift, value, fit_intercept=fit_intercept, diagnostics=noted)

    v, level, error = by_penalty(alpha, len(moments.t), diagnostics, solve)
    return v, level, error, alpha


@dataclass(frozen=True, eq=False)
class _Scaled:
    """The coordinates u of coefficients v = DTu."""

    scale: Array  # (d,) the diagonal of D
    top: Array | None  # (d,) what the row of the mean is in scaled columns, or None where it needs no care: T = I

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
    R: Array, shift: Array, alpha: Penalties | str, *, fit_intercept: bool, rows: float, diagnostics: SolveDiagnostics
) -> tuple[Array, Array, Array, Penalties]:
    """Coefficients (d, c), level at `shift` (c,), training squared errors (c,), as of `linear_ridge`, from R; and α.

    R (1 + d + c, 1 + d + c) is about `shift` (d,) in the columns and, without an intercept, about 0 in the targets, of
    `rows` that weigh something; "gcv" chooses α from the same rows.
    """
    part, penalty = FactoredRows.of(R, None, len(shift), centred=True), alpha
    if isinstance(penalty, str):
        about = part if fit_intercept else FactoredRows.of(R, shift, len(shift), centred=False)
        penalty = gcv.best_of_rows(about.columns, about.targets, rows, fit_intercept=fit_intercept)

    solve = partial(_solve_rows, part, shift, fit_intercept, rows)
    v, level, error = by_penalty(penalty, part.targets.shape[1], diagnostics, solve)
    return v, level, error, penalty


def _solve_rows(
    part: FactoredRows,
    shift: Array,
    fit_intercept: bool,
    rows: float,
    alpha: float,
    chosen: Index,
    noted: SolveDiagnostics,
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
    rounded = np.where(flat, 0, part.lengths)
    system = RowSystem(F, Y, rounded, np.zeros(len(scale)), rows, part.n, to.reduce, to.expand, ADVICE)
    solution = system.solve(alpha, penalty=P, noise=float(np.linalg.norm(rounded * scale)))
    u = solution.w
    w, whole = to.expand(u) / scale[:, None], np.vstack([top * (not fit_intercept), columns * scale])
    null = np.linalg.qr(to.expand(solution.null))[0]
    v = least_norm(null, w, scale, lambda moved: float(((whole @ moved) ** 2).sum()))
    level = part.target_mean[chosen] if fit_intercept else F[0] @ u / root
    system.diagnose(solution, noted, v)
    if not fit_intercept and (found := noted.errors) is not None:
        # relative to the norm of predictions about their mean, which the first row is
        rest = float(np.linalg.norm((F @ u)[1:]))
        ratio = float(np.linalg.norm(F @ u)) / rest if rest else 0.0
        noted.errors = replace(found, sums=ratio * found.sums, solve=ratio * found.solve)
    return v, level - part.mean @ v, solution.squares

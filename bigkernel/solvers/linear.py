"""Ridge regression on rows themselves, from their moments about a point near the mean.

Columns are centred, and scaled to be of one length with their penalty, before anything is factored, and this is undone
after it: neither an offset nor a unit costs digits. With G and C about the mean μ of the rows and H = G + αI, the
solution with an intercept is v = H⁻¹C. Without one, (H + nμμᵀ)w = C + nμȳ moves it along one direction,
    w = v + u (ȳ − ⟨μ, v⟩) n/(1 + n⟨μ, u⟩),  u = H⁻¹μ;
where H is singular and μ has a part in its null space, the mean of the targets is met there at no cost. A model is
(x − a)ᵀw + b with its level b at a, the point that moments are about: about 0 it would lose the digits of an offset.
Shapes: d columns, c targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.solvers.accuracy import VECTORS, Errors
from bigkernel.solvers.factors import Factor, factorize
from bigkernel.solvers.residuals import DOF_PROBES, EXACT_DOF, Certificates, probes
from bigkernel.solvers.ridge import Reduced, centre, squared_error
from bigkernel.statistics.moments import Moments

Array = NDArray[Any]
_EPS = float(np.finfo(np.float64).eps)
FLAT = 100.0  # times the rounding of its sums, that the spread of a column must exceed
_ALONG = 1e-10  # of Σ w (x − 0)² of scaled columns, along directions that count as null about the mean
ADVICE = "columns that nearly depend on others: leave some out, or take Ridge with a larger alpha"
_SAME = 1e-12  # of ‖predictions‖², by which they may differ
_STANDS_OUT = 30.0  # times the rounding of a sum: at most 8 as measured, of columns that do depend on others
_ROUNDING = 2.0 * _EPS  # of an entry of the moments of scaled columns, as measured


def linear_ridge(
    moments: Moments, shift: Array, alpha: float, *, fit_intercept: bool, certificates: Certificates
) -> tuple[Array, Array, Array]:
    """Coefficients (d, c), level at `shift` (c,) and training squared errors (c,) of min ‖XW + 1b − Y‖² + α‖W‖².

    The solution of least norm where columns are dependent and α = 0.

    Parameters
    ----------
    moments : of the rows less `shift` (d,), a point near their mean
    certificates : take the residual, the condition, the effective degrees of freedom and the errors of predictions
    """
    small = centre(moments, fit_intercept=True)
    mean = small.mean + shift
    squares = np.diagonal(small.G).copy()
    flat = squares <= FLAT * _EPS * small.n * small.mean**2
    small.G[flat], small.G[:, flat], small.C[flat] = 0, 0, 0
    scale = scale_of(np.where(flat, 0, squares), np.sqrt(small.n) * np.abs(mean), alpha)
    scaled = Reduced(
        small.n,
        G=scale[:, None] * small.G * scale,
        C=scale[:, None] * small.C,
        q=small.q,
        mean=small.mean,
        target_mean=small.target_mean,
    )
    lengths, stored = np.sqrt(np.diagonal(moments.G)), np.sqrt(small.n) * np.abs(mean)
    known = _Sums(moments, scale * lengths, scale * stored, flat & (lengths > FLAT * _EPS * stored))

    def squares_of(w: Array) -> float:
        return float((w * (scaled.G @ w)).sum())

    whole = scaled.G + np.diag(alpha * scale**2)
    factor = factorize(whole, 0.0)
    w = factor.certified(whole, scaled.C, 0.0, certificates)
    certificates.figures["effective_dof"] = _effective_dof(scaled.G, factor)
    null = np.linalg.qr(scale[:, None] * factor.dropped)[0] if factor.dropped is not None else np.zeros((len(w), 0))
    v = least_norm(null, w, scale, squares_of)
    if fit_intercept:
        error = squared_error(small, v)
        certificates.errors = _errors(scaled, factor, w, known, error)
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
    none = _unrelated(small, mean, squares)
    v[:, none], met = 0, np.where(none, 0, met)
    error = squared_error(small, v) + small.n * (small.target_mean - met) ** 2
    certificates.errors = _errors(scaled, factor, v / scale[:, None], known, error)
    return v, met - small.mean @ v, error


def _unrelated(small: Reduced, mean: Array, squares: Array) -> Array:
    """Which targets have nothing in common with any column, but for rounding, where both are about 0: (c,) bool."""
    of_mean = small.n * np.outer(mean, small.target_mean)
    sizes = np.sqrt(np.outer(squares, np.maximum(small.q, 0))) + np.abs(of_mean)
    return np.asarray((np.abs(small.C + of_mean) <= _STANDS_OUT * _EPS * sizes).all(axis=0))


@dataclass(frozen=True, eq=False)
class _Sums:
    """What is known of the rounding of moments.

    Attributes
    ----------
    moments : about the point that they were summed about
    lengths : (d,) of the scaled columns there: 1, or more where that is far from their mean
    stored : (d,) of the scaled columns about 0, where their values are rounded
    flat : (d,) whether a column may vary by less than rounding shows, so that it was left out
    of_mean : (d, c) what C has more of about 0, where directions that count as null are to meet no mean; or None
    """

    moments: Moments
    lengths: Array
    stored: Array
    flat: Array
    of_mean: Array | None = None


def scale_of(squares: Array, about_zero: Array, alpha: float) -> Array:
    """What makes columns, of `squares` (d,) about their mean, and their penalty of length one together, (d,).

    Columns that have neither: by their length about 0.
    """
    lengths = np.sqrt(squares + alpha)
    lengths = np.where(lengths > 0, lengths, about_zero)
    return 1 / np.where(lengths > 0, lengths, 1)


def least_norm(null: Array, w: Array, scale: Array, squares: Callable[[Array], float]) -> Array:
    """Of the coefficients of scaled columns, those of the columns themselves outside the null space: of least norm.

    Where their units are so unlike that rounding would move predictions, of least norm for scaled columns. `squares`
    gives ‖predictions‖² of coefficients of scaled columns.
    """
    v = scale[:, None] * w
    least = v - null @ (null.T @ v)
    same = squares((least - v) / scale[:, None]) <= _SAME * squares(w)
    return np.asarray(least if same else v)


def _effective_dof(G: Array, factor: Factor) -> float:
    """tr(G(G + αI)⁻¹), of scaled columns: exact up to 512, beyond the mean over a few vectors."""
    V = np.eye(len(G)) if len(G) <= EXACT_DOF else probes(len(G), DOF_PROBES)
    return float((V * factor.solve(G @ V)).sum()) * len(G) / max(float((V * V).sum()), 1.0)


def _errors(scaled: Reduced, factor: Factor, w: Array, known: _Sums, error: Array) -> Errors:
    """How far rounding of the moments moves predictions, relative to their norm about the mean.

    Entries of the moments of columns of lengths l are rounded by ε: E by ε lᵢlⱼ and δ by ε lᵢ‖y‖, so that H⁻¹(δ − Ew)
    is the image of independent entries of variances ε² lᵢ²(‖y‖² + Σ lⱼ²wⱼ²). `error` (c,) is that of training.
    """
    predicted, targets = float((w * (scaled.G @ w)).sum()), float(known.moments.q.sum())
    left, rows = float(error.sum()), max(float(known.moments.rows), 1.0)
    missed = [_missed(scaled, factor, known, stored) for stored in (known.stored, 0 * known.stored)]
    # along a direction of noise least squares fits as much of the residual as chance has it
    lost = left if missed[0] or known.flat.any() else left / rows * (factor.hidden + missed[1])
    if not predicted > (FLAT * _EPS) ** 2 * targets:  # targets are a constant, but for the rounding of their values
        hides = lost > (FLAT * _EPS) ** 2 * targets
        return Errors(0.0, np.inf if hides else 0.0, 0.0, ADVICE)
    x = factor.solve(known.lengths[:, None] * probes(len(w), VECTORS))
    power = float(np.abs((x * (scaled.G @ x)).sum(axis=0)).sum()) / VECTORS
    of_sums = power * _ROUNDING**2 * (targets + float(((known.lengths[:, None] * w) ** 2).sum()))
    # of directions of singular values from ε·max(n, d) on, which float64 has, C does not show less than this
    unseen = 0 if factor.dropped is None else factor.dropped.shape[1] - missed[1]
    doubt = min(left, unseen * (_STANDS_OUT / max(rows, len(w))) ** 2 * targets)
    sums, solve, doubt = (float(np.sqrt(part / predicted)) for part in (of_sums, lost, doubt))
    return Errors(sums, solve, 0.0, ADVICE, doubt=doubt)


def _missed(scaled: Reduced, factor: Factor, known: _Sums, stored: Array) -> int:
    """Along how many directions that were dropped as null targets vary: then they are none, and rounding hides them.

    Of columns that depend on each other the sums with targets, C, are rounding along such directions: of the sums, and
    of the values, `stored` (d,). No more is known of a direction that is hidden, even from values, than that it may
    hold all that is left of the targets.
    """
    if factor.dropped is None:
        return 0
    lengths = np.linalg.norm(factor.dropped * known.lengths[:, None], axis=0) + np.abs(factor.dropped.T) @ stored
    found = np.abs(factor.unseen(scaled.C)) > _STANDS_OUT * _EPS * np.outer(lengths, np.sqrt(scaled.q))
    if known.of_mean is not None:
        lengths = lengths + np.abs(factor.dropped.T) @ known.stored
        sizes = np.sqrt(scaled.n) * np.abs(scaled.target_mean)
        found |= np.abs(factor.unseen(known.of_mean)) > _STANDS_OUT * _EPS * np.outer(lengths, sizes)
    return int(found.any(axis=1).sum())

"""Ridge regression on rows themselves, from their moments about a point near the mean.

Columns are centred, and scaled to be of one length with their penalty, before anything is factored, and this is undone
after it: neither an offset nor a unit costs digits. With G and C about the mean μ of the rows and H = G + αI, the
solution with an intercept is v = H⁻¹C. Without one, (H + nμμᵀ)w = C + nμȳ moves it along one direction,
    w = v + u (ȳ − ⟨μ, v⟩) n/(1 + n⟨μ, u⟩),  u = H⁻¹μ;
where H is singular and μ has a part in its null space, the mean of the targets is met there at no cost.
Shapes: d columns, c targets.
"""

from __future__ import annotations

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
_FLAT = 100.0  # times the rounding of its values, that the spread of a column must exceed
_ALONG = 1e-10  # of Σ w (x − 0)² of scaled columns, along directions that count as null about the mean
_ADVICE = "columns that nearly depend on others: leave some out, or take Ridge with a larger alpha"
_SAME = 1e-12  # of ‖predictions‖², by which they may differ
_STANDS_OUT = 30.0  # times the rounding of a sum: at most 8 as measured, of columns that do depend on others
_ROUNDING = 2.0 * _EPS  # of an entry of the moments of scaled columns, as measured


def linear_ridge(
    moments: Moments, shift: Array, alpha: float, *, fit_intercept: bool, certificates: Certificates
) -> tuple[Array, Array, Array]:
    """Coefficients (d, c), intercept (c,) and training squared errors (c,) of min ‖XW + 1b − Y‖² + α‖W‖².

    The solution of least norm where columns are dependent and α = 0.

    Parameters
    ----------
    moments : of the rows less `shift` (d,), a point near their mean
    certificates : take the residual, the condition, the effective degrees of freedom and the errors of predictions
    """
    small = centre(moments, fit_intercept=True)
    mean = small.mean + shift
    scale = _scale(small, shift, alpha)
    blur = np.sqrt(small.n) * np.abs(mean) * scale
    scaled = Reduced(
        small.n,
        G=scale[:, None] * small.G * scale,
        C=scale[:, None] * small.C,
        q=small.q,
        mean=small.mean,
        target_mean=small.target_mean,
    )
    whole = scaled.G + np.diag(alpha * scale**2)
    factor = factorize(whole, 0.0)
    w = factor.certified(whole, scaled.C, 0.0, certificates)
    certificates.figures["effective_dof"] = _effective_dof(scaled.G, factor)
    null = np.linalg.qr(scale[:, None] * factor.dropped)[0] if factor.dropped is not None else np.zeros((len(w), 0))
    v = _least(null, w, scale, scaled.G)
    missed = small.target_mean - mean @ v
    if fit_intercept:
        certificates.errors = _errors(scaled, factor, w, moments.rows, blur)
        return v, missed, squared_error(small, v)
    along = null @ (null.T @ mean)
    if factor.dropped is not None and small.n * np.sum((factor.dropped.T @ (scale * mean)) ** 2) > _ALONG:
        v += np.outer(along, missed) / (along @ along)
        error = squared_error(small, v)
    else:
        u = _least(null, factor.solve((scale * mean)[:, None]), scale, scaled.G)[:, 0]
        size = max(float(np.abs(u).max(initial=0)), 1e-300)  # 1/α and more, whose products would leave the range
        u /= size
        v += np.outer(u, missed) * (small.n / (1 / size + small.n * (mean @ u)))
        error = squared_error(small, v) + small.n * (small.target_mean - mean @ v) ** 2
    certificates.errors = _errors(scaled, factor, v / scale[:, None], moments.rows, blur)
    return v, np.zeros_like(missed), error


def _scale(small: Reduced, shift: Array, alpha: float) -> Array:
    """What makes the diagonal of G + αI one, (d,), or for columns that do not vary that about 0, where α = 0."""
    squares = np.diagonal(small.G).copy()
    blur = small.n * (_FLAT * _EPS) ** 2 * shift**2 + _FLAT * _EPS * small.n * small.mean**2
    flat = squares <= blur
    small.G[flat], small.G[:, flat], small.C[flat] = 0, 0, 0
    lengths = np.sqrt(np.where(flat, 0, squares) + alpha)
    about_zero = np.sqrt(small.n) * np.abs(small.mean + shift)  # of columns that have no other length
    lengths = np.where(lengths > 0, lengths, about_zero)
    return 1 / np.where(lengths > 0, lengths, 1)


def _least(null: Array, w: Array, scale: Array, G: Array) -> Array:
    """Of the coefficients of scaled columns, those of the columns themselves outside the null space: of least norm.

    Where their units are so unlike that rounding would move predictions, of least norm for scaled columns.
    """
    v = scale[:, None] * w
    least = v - null @ (null.T @ v)
    moved = (least - v) / scale[:, None]
    same = (moved * (G @ moved)).sum() <= _SAME * (w * (G @ w)).sum()
    return np.asarray(least if same else v)


def _effective_dof(G: Array, factor: Factor) -> float:
    """tr(G(G + αI)⁻¹), of scaled columns: exact up to 512, beyond the mean over a few vectors."""
    V = np.eye(len(G)) if len(G) <= EXACT_DOF else probes(len(G), DOF_PROBES)
    return float((V * factor.solve(G @ V)).sum()) * len(G) / max(float((V * V).sum()), 1.0)


def _errors(scaled: Reduced, factor: Factor, w: Array, rows: float, blur: Array) -> Errors:
    """How far rounding of the moments moves predictions, relative to their norm about the mean.

    Every entry of the moments of columns of unit length is rounded alike, E by ε and δ by ε‖y‖, so that H⁻¹(δ − Ew)
    is the image of independent entries of variance ε²(‖y‖² + ‖w‖²).
    """
    predicted = float((w * (scaled.G @ w)).sum())
    if not w.any() or not predicted > 0:
        return Errors(0.0, 0.0, 0.0)
    x = factor.solve(probes(len(w), VECTORS))
    power = float(np.abs((x * (scaled.G @ x)).sum(axis=0)).sum()) / VECTORS
    of_sums = power * _ROUNDING**2 * float((scaled.q + (w**2).sum(axis=0)).sum())
    left = float(squared_error(scaled, w).sum())
    lost = left if _misses(scaled, factor, blur) else factor.hidden * left / max(rows, 1.0)
    return Errors(float(np.sqrt(of_sums / predicted)), float(np.sqrt(lost / predicted)), 0.0, _ADVICE)


def _misses(scaled: Reduced, factor: Factor, blur: Array) -> bool:
    """Whether targets vary along a direction that was dropped as null: then it is none, and rounding hides it.

    Of columns that depend on each other the sums with targets, C, are rounding along such directions: of the sums, and
    of the values themselves, which are stored about 0, blur (d,) in units of their column's length. No more is known of
    a direction that is hidden than that it may hold all that is left of the targets.
    """
    if factor.dropped is None:
        return False
    sizes = np.sqrt(scaled.q)
    rounding = _STANDS_OUT * _EPS * np.outer(1 + np.abs(factor.dropped.T) @ blur, sizes)
    return bool((np.abs(factor.unseen(scaled.C)) > rounding).any())

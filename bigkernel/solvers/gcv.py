"""Generalised cross-validation from moments: an estimate of the error of a ridge fit on new rows.

GCV(α) = (SSE(α)/n) / (1 − tr H(α)/n)², H the matrix that takes targets to fits (Golub, Heath & Wahba 1979). With
G = VΛVᵀ of centred moments, tr H = Σ Λ/(Λ+α), one more for an intercept. Weights are in SSE and H, but n is the number
of rows: with Σw instead, which rows that are repeated have, a row would predict its copies. Shapes: r coordinates, c
targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy.optimize import minimize_scalar

from bigkernel.arrays import Array
from bigkernel.solvers.exact import weigh, without_constant
from bigkernel.solvers.ridge import RidgeSystem
from bigkernel.solvers.whitening import Whitening, reduce_and_centre
from bigkernel.statistics.moments import Moments

LARGER = (1.0, 10.0, 1e2, 1e3, 1e5, 1e7, 1e9, 1e11)  # times the α of least GCV
_STEPS = 120  # of the coarse search over log α


@dataclass(frozen=True, eq=False)
class Spectral:
    """A ridge problem in the coordinates of its eigenvectors, without null directions."""

    values: Array  # (r,) eigenvalues of G, above rounding
    explained: Array  # (r,) squared projection of the targets on each direction, summed over the targets
    rest: float  # squared error of least squares
    n: float  # rows
    fixed: float  # degrees of freedom that α does not shrink: 1 with an intercept, else 0
    # relative to the largest eigenvalue; a smaller α has no effect
    rounding: float = float(np.finfo(np.float64).eps)

    def gcv(self, alpha: float) -> float:
        """Compute GCV(α), summed over the targets; infinite if the fit has as many degrees of freedom as rows."""
        # without differences of nearly equal numbers: SSE = rest + Σ u²(α/(Λ+α))², n − tr H = n − fixed − r + Σ α/(Λ+α)
        left_out = alpha / np.maximum(self.values + alpha, 1e-300)
        error = self.rest + float((self.explained * left_out**2).sum())
        left = (self.n - self.fixed - len(self.values) + float(left_out.sum())) / self.n
        return error / self.n / left**2 if left > 1e-12 else np.inf

    def best(self) -> float:
        """Return the α of least GCV, between the rounding and 10 times the largest eigenvalue."""
        largest = float(self.values.max(initial=0.0))
        if not largest > 0:
            return 1.0
        low, high = np.log(self.rounding * largest), np.log(10 * largest)
        grid = np.linspace(low, high, _STEPS)
        scores = np.array([self.gcv(float(np.exp(step))) for step in grid])
        place = int(np.argmin(scores))
        around = (grid[max(place - 1, 0)], grid[min(place + 1, _STEPS - 1)])
        result = minimize_scalar(lambda step: self.gcv(float(np.exp(step))), bounds=around, method="bounded")
        return float(np.exp(result.x if result.fun <= scores[place] else grid[place]))


def _spectral(values: Array, explained: Array, q: float, n: float, fixed: float) -> Spectral:
    """Build from eigenvalues (r,), ascending, and what they explain of q = Σ w y², at most n − fixed above rounding."""
    keep = values > max(len(values), n) * np.finfo(np.float64).eps * max(float(values.max(initial=0.0)), 1e-300)
    keep[: max(0, len(values) - int(n - fixed))] = False
    values, explained = values[keep], explained[keep]
    rounding = len(values) * float(np.finfo(np.float64).eps)
    return Spectral(values, explained, max(q - float(explained.sum()), 0.0), n, fixed, rounding)


def of_system(system: RidgeSystem, *, fit_intercept: bool) -> Spectral:
    """Return the spectral form of a system of centred moments (whitened, for a landmark map)."""
    (values, vectors), small, rows = system.spectrum, system.small, system.rows
    # C = Φᵀy, so that the projection of y on the direction j of Φ is (VᵀC)_j / √λ_j
    explained = (vectors.T @ small.C) ** 2 / np.maximum(values, 1e-300)[:, None]
    return _spectral(values, explained.sum(axis=1), float(small.q.sum()), rows, float(fit_intercept))


def best_alpha(moments: Moments, whitening: Whitening, *, fit_intercept: bool) -> float:
    """Choose α for ridge on a whitened map."""
    *_, small = reduce_and_centre(moments, whitening, fit_intercept=fit_intercept)
    return of_system(RidgeSystem(small, float(moments.rows)), fit_intercept=fit_intercept).best()


def best_of_rows(F: Array, Y: Array, n: float, *, fit_intercept: bool) -> float:
    """Choose α from centred rows F (k, r), Y (k, c) that represent n rows, without squaring the condition."""
    U, s, _ = linalg.svd(F, full_matrices=False, check_finite=False)
    rounding, fixed = max(len(s), n) * float(np.finfo(np.float64).eps), float(fit_intercept)
    kept = min(np.count_nonzero(s > rounding * s.max(initial=0.0)), max(0, int(n - fixed)))
    values, U = s[:kept] ** 2, U[:, :kept]
    along = U.T @ Y
    rest = float(((Y - U @ along) ** 2).sum(axis=0).sum())
    return Spectral(values, (along**2).sum(axis=1), rest, n, fixed, rounding**2).best()


def best_alpha_exact(
    K: Array, Y: Array, *, fit_intercept: bool, weight: Array | None = None
) -> tuple[float, list[float]]:
    """Choose α for the exact form, from the kernel matrix (n, n) and targets (n, c).

    Return also the mean squared errors of rows that are left out (`left_out`) with each of the `LARGER` penalties.
    """
    scaled, root = weigh(K, weight)
    target, fixed = root[:, None] * Y, np.zeros(len(K))
    if fit_intercept:
        scaled, target, unit = without_constant(scaled, target, root)
        fixed = unit**2
    values, vectors = linalg.eigh((scaled + scaled.T) / 2, driver="evd")
    along, count, values = vectors.T @ target, float(np.count_nonzero(root)), np.maximum(values, 0)
    squares = (along**2).sum(axis=1), float((target**2).sum(axis=0).sum())
    alpha, errors = _spectral(values, *squares, count, float(fit_intercept)).best(), []
    for larger in LARGER:
        kept = values / (values + larger * alpha)  # H = V·kept·Vᵀ, and the constant
        residuals, leverage = target - vectors @ (kept[:, None] * along), vectors**2 @ kept + fixed
        # weights enter by their roots in the targets
        errors.append(left_out(residuals, leverage, np.ones(len(K))))
    return alpha, errors


def left_out(residuals: Array, leverage: Array, weight: Array) -> float:
    """Compute the mean squared error of rows left out one by one, summed over targets, from residuals (n, c).

    Without row i its residual is (yᵢ − fᵢ)/(1 − hᵢ), with the leverage hᵢ = ∂fᵢ/∂yᵢ (n,).
    """
    apart = residuals / np.maximum(1 - leverage, 1e-3)[:, None]
    return float(weight @ (apart**2).sum(axis=1) / weight.sum())

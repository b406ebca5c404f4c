"""Kernel ridge regression on every row: the n×n kernel matrix, for some thousands of rows.

K (n, n) is the kernel matrix of the rows, Y (n, c) are targets, a (n, c) dual coefficients, λ the penalty alpha.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.kernels import blas, positive_definite
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import SolveDiagnostics, regularise
from bigkernel.solvers.ridge import ridge


def exact_krr(
    K: Array,
    Y: Array,
    alpha: float,
    *,
    fit_intercept: bool = False,
    weight: Array | None = None,
    indefinite: str = "",
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Array, Array]:
    """Solve (K + λI)a = Y by Cholesky; return dual coefficients (n, c) and intercept (c,).

    Row weights enter as in scikit-learn's KernelRidge: √w on rows and columns of K and on Y. `indefinite` is the name
    of a kernel that need not be positive; a negative part is dropped with a warning.
    """
    n = len(K)
    if indefinite:
        shifted = regularise(K, n * float(np.finfo(np.float64).eps) * float(np.abs(K).max(initial=0.0)))
        if blas.cholesky(shifted, lower=True):
            values, vectors = linalg.eigh(K)
            if note := positive_definite.negative_note(values, indefinite):
                residuals.warn_or_note(note, True, diagnostics)
                # the Nyström form with every row a landmark: K = UDUᵀ keeps its positive part, φ = D^{-1/2}Uᵀk(X, x)
                keep = values > n * np.finfo(np.float64).eps * np.abs(values).max()
                roots, basis = np.sqrt(values[keep]), vectors[:, keep]
                phi, weights = basis * roots, np.ones(n) if weight is None else weight
                # ridge on φ, about the means with an intercept
                share = weights / weights.sum() if fit_intercept else np.zeros(n)
                mean, target_mean = share @ phi, share @ Y
                phi, target = phi - mean, Y - target_mean
                weighted = weights[:, None] * phi
                w = ridge(phi.T @ weighted, weighted.T @ target, alpha, n_rows=n, diagnostics=diagnostics)
                return basis @ (w / roots[:, None]), target_mean - mean @ w
    scaled, root = weigh(K, weight)
    target = root[:, None] * Y
    # without an intercept (√W K √W + λI)u = √W y and a = √W u
    if not fit_intercept:
        dual = ridge(scaled, target, alpha, n_rows=n, diagnostics=diagnostics)
        return root[:, None] * dual, np.zeros(Y.shape[1])
    # [[1ᵀW1, 1ᵀWK], [1, K + λW⁻¹]] (b; a) = (1ᵀWy; y). With a = W^{1/2}u, r = W^{1/2}1 and rᵀu = 0 at the optimum, the
    # projection P along r leaves (PSP + λI)u = P W^{1/2}y, S = W^{1/2}KW^{1/2}
    projected, target_, unit = without_constant(scaled, target, root)
    if np.abs(projected).max() <= 10 * np.finfo(np.float64).eps * np.abs(scaled).max():
        projected[:] = 0  # the kernel does not distinguish the rows: the rest is rounding
    u = ridge(projected, target_, alpha, n_rows=n, diagnostics=diagnostics)
    u -= np.outer(unit, unit @ u)
    intercept = (root @ (target - scaled @ u)) / (root @ root)
    return root[:, None] * u, intercept


def without_constant(scaled: Array, target: Array, root: Array) -> tuple[Array, Array, Array]:
    """Return PSP, Py and the unit vector along `root` (n,), with P the projection orthogonal to it."""
    unit = root / np.linalg.norm(root)
    half = scaled - np.outer(unit, unit @ scaled)
    return half - np.outer(half @ unit, unit), target - np.outer(unit, unit @ target), unit


def weigh(K: Array, weight: Array | None) -> tuple[Array, Array]:
    """Return W^{1/2}KW^{1/2} (K itself without weights) and the roots of the weights, (n,)."""
    if weight is None:
        return K, np.ones(len(K))
    root: Array = np.sqrt(weight)
    return K * np.outer(root, root), root

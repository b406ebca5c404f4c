"""Exact kernel ridge regression with a kernel that is not positive: what is negative in its matrix is dropped.

Notation: K (n, n) the kernel matrix of the rows, Y (n, c) targets, a (n, c) dual coefficients, λ the penalty alpha.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.kernels import blas, positive_definite
from bigkernel.solvers import residuals
from bigkernel.solvers.exact import exact_krr
from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import ridge
from bigkernel.solvers.triangles import regularised

Array = NDArray[Any]


def indefinite_krr(
    K: Array,
    Y: Array,
    alpha: float,
    *,
    fit_intercept: bool = False,
    weight: Array | None = None,
    kernel: str = "",
    certificates: Certificates | None = None,
) -> tuple[Array, Array]:
    """`exact_krr` for a kernel that need not be positive: the Nyström form with every row a landmark.

    K = UDUᵀ keeps its positive part, φ = D^{-1/2}Uᵀk(X, x), and a `RankDeficient` warning tells the mass dropped; where
    there is no negative part this is `exact_krr`.
    """
    tolerance = len(K) * float(np.finfo(np.float64).eps)
    shifted = regularised(K, tolerance * float(np.abs(K).max(initial=0.0)))
    positive = blas.cholesky(shifted, lower=True) == 0
    values, vectors = (np.zeros(0), K) if positive else linalg.eigh(K)
    note = "" if positive else positive_definite.negative_note(values, kernel)
    if not note:
        return exact_krr(K, Y, alpha, fit_intercept=fit_intercept, weight=weight, certificates=certificates)
    residuals.warn_or_note(note, True, certificates)
    keep = values > tolerance * np.abs(values).max()
    roots, basis = np.sqrt(values[keep]), vectors[:, keep]
    phi, weights = basis * roots, np.ones(len(K)) if weight is None else weight
    share = weights / weights.sum() if fit_intercept else np.zeros(len(K))
    mean, target_mean = share @ phi, share @ Y
    phi, target = phi - mean, Y - target_mean
    weighted = weights[:, None] * phi
    w = ridge(phi.T @ weighted, weighted.T @ target, alpha, n_rows=len(K), certificates=certificates)
    return basis @ (w / roots[:, None]), target_mean - mean @ w

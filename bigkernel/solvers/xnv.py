"""Correlated Nyström views as small problems: canonical correlations of two views, and ridge in their coordinates.

McWilliams, Balduzzi & Buhmann, "Correlated random features for fast semi-supervised learning" (NIPS 2013, arXiv
1306.5554). Two sets of landmarks give two views of every row, labelled or not; what both views agree on is worth
fitting. Notation: p₁, p₂ columns of the views, r canonical directions with correlations ρ, c targets, N rows in all,
n_l labelled ones. Nothing here sees a row: the moments of [φ¹, φ²] are all that is needed.

The paper's features are φ = K_mm^{-1/2}k(Z, x). Canonical correlations, and with them the canonical norm, are the same
for any invertible map of a view, so that φ = k(Z, x) does as well: it needs no core, and what rounding leaves of it is
the same in all directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.solvers.residuals import Certificates
from bigkernel.solvers.ridge import centre, ridge
from bigkernel.statistics.moments import Moments

Array = NDArray[Any]
_UNCORRELATED = 1e-10  # correlations up to this are 0: the penalty (1 − ρ)/ρ leaves nothing of their directions


@dataclass(frozen=True)
class Canonical:
    """The canonical coordinates of the first view, z(x) = Bᵀφ¹(x) − o: of mean 0 and variance 1 over all rows.

    Attributes
    ----------
    basis : B (p₁, r)
    offset : o (r,)
    correlations : ρ (r,) with the coordinates of the second view, falling, in (0, 1]
    ranks : directions kept of either view
    """

    basis: Array
    offset: Array
    correlations: Array
    ranks: tuple[int, int]

    @property
    def penalty(self) -> Array:
        """(1 − ρ)/ρ (r,): what the canonical norm of the paper charges for each direction."""
        charged: Array = (1 - self.correlations) / self.correlations
        return charged

    def reduce(self, moments: Moments) -> Moments:
        """Moments of z from those of φ¹, (p₁) columns."""
        B, o, n = self.basis, self.offset, moments.n
        G, C, s = B.T @ moments.G @ B, B.T @ moments.C, B.T @ moments.s
        cross = np.outer(s, o)
        G = G - cross - cross.T + n * np.outer(o, o)
        return replace(moments, G=(G + G.T) / 2, C=C - np.outer(o, moments.t), s=s - n * o)


def canonical_views(everything: Moments, width: int) -> Canonical:
    """Canonical correlations of two views from the moments of all rows.

    Parameters
    ----------
    everything : moments of [φ¹, φ²] over all rows, labelled or not
    width : p₁, columns of the first view, which come first

    Directions of a view whose variance is rounding are left out, and so are those without correlation.
    """
    mean = everything.s / everything.n
    C = everything.G / everything.n - np.outer(mean, mean)
    W1, W2 = _inverse_root(C[:width, :width]), _inverse_root(C[width:, width:])
    # C11^{-1/2} C12 C22^{-1/2} = U diag(ρ) Vᵀ
    U, correlations, _ = linalg.svd(W1.T @ C[:width, width:] @ W2, full_matrices=False, check_finite=False)
    kept = correlations > _UNCORRELATED
    basis = W1 @ U[:, kept]
    ranks = (W1.shape[1], W2.shape[1])
    return Canonical(basis, basis.T @ mean[:width], np.minimum(correlations[kept], 1.0), ranks)


def _inverse_root(C: Array) -> Array:
    """W (p, k) with WᵀCW = I on the k eigenvectors of a covariance that stand above rounding."""
    values, vectors = linalg.eigh(C, driver="evd", check_finite=False)
    # a covariance has no negative eigenvalues: those found tell the rounding of the moments
    rounding = max(-float(values[0]), len(C) * float(np.finfo(np.float64).eps) * float(values[-1]), 1e-300)
    kept = values > 10 * rounding
    inverse: Array = vectors[:, kept] / np.sqrt(values[kept])
    return inverse


def canonical_ridge(
    labelled: Moments,
    views: Canonical,
    alpha: float,
    *,
    fit_intercept: bool = True,
    certificates: Certificates | None = None,
) -> tuple[Array, Array]:
    """Coefficients over the first view (p₁, c) and intercept (c,) of ridge with the canonical norm.

    min (1/n_l) Σ (βᵀz_i + b − y_i)² + Σ_j ((1 − ρ_j)/ρ_j) β_j² + α‖β‖² over the labelled rows (Algorithm 1 of the
    paper, whose γ is α; it has no b).

    Parameters
    ----------
    labelled : moments of φ¹ over the labelled rows, (p₁) columns
    alpha : ≥ 0
    fit_intercept : b, without penalty; False: b = 0
    """
    small = centre(views.reduce(labelled), fit_intercept=fit_intercept)
    # (ZᵀZ + n_l diag((1 − ρ)/ρ) + n_l α I) β = ZᵀY
    G = small.G + np.diag(small.n * views.penalty)
    beta = ridge(G, small.C, small.n * alpha, n_rows=labelled.rows, certificates=certificates)
    b = small.target_mean - small.mean @ beta
    return views.basis @ beta, b - views.offset @ beta

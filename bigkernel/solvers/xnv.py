"""Correlated Nyström views from moments: canonical correlations of two views, and ridge in their coordinates.

McWilliams, Balduzzi & Buhmann, "Correlated random features for fast semi-supervised learning" (NIPS 2013, arXiv
1306.5554). Two sets of landmarks give two views of every row, labelled or not; directions are penalised by how little
the views agree. Notation: p₁, p₂ columns of the views, r canonical directions with correlations ρ, c targets, N rows in
total, n_l labelled ones. Only the moments of [φ¹, φ²] are read, no rows.

The paper's features are φ = K_mm^{-1/2}k(Z, x). Canonical correlations, and so the canonical norm, are invariant under
invertible maps of a view, so that φ = k(Z, x) serves as well, whose rounding is the same in all directions; a ridge α
on those features is αK_mm here (the canonical ridge of Vinod, Journal of Econometrics 4, 1976). The paper has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.solvers.penalty_grid import Coordinates, Fit, SolveSettings
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import RoundingEstimate, ridge
from bigkernel.solvers.whitening import centre
from bigkernel.statistics.moments import Moments

_UNCORRELATED = 1e-10  # correlations up to this count as 0; the penalty (1 − ρ)/ρ suppresses their directions


@dataclass(frozen=True, kw_only=True)
class CanonicalCoordinates(Coordinates):
    """The canonical coordinates of the first view, z(x) = Bᵀφ¹(x) − o: of mean 0 over all rows, and variance 1 at most.

    Candidates of a grid differ in α and the intercept. Moments may be of both views; coefficients are of the first.
    """

    basis: Array  # B (p₁, r)
    offset: Array  # o (r,)
    correlations: Array  # ρ (r,) with the coordinates of the second view, falling, in (0, 1]
    ranks: tuple[int, int]  # directions kept of either view
    shift: Array | None = None  # (p₁,) of the moments, see `Moments.shift`

    @property
    def penalty(self) -> Array:
        """(1 − ρ)/ρ (r,), the penalties of the directions in the canonical norm of the paper."""
        return np.asarray((1 - self.correlations) / self.correlations)

    def reduce(self, moments: Moments) -> Moments:
        B, o, n, moments = self.basis, self.offset, moments.n, first_view(moments, len(self.basis))
        G, C, s = B.T @ moments.G @ B, B.T @ moments.C, B.T @ moments.s
        cross = np.outer(s, o)
        G = G - cross - cross.T + n * np.outer(o, o)
        return replace(moments, G=(G + G.T) / 2, C=C - np.outer(o, moments.t), s=s - n * o, shift=None)

    def intercepts(self, w: Array, b: Array) -> Array:
        offset = self.offset if self.shift is None else self.offset + self.basis.T @ self.shift
        return np.asarray(b - offset @ w)

    @property
    def unresolved(self) -> bool:
        return min(self.ranks) < len(self.basis)

    def each(self, train: Moments, grid: Sequence[SolveSettings], estimate: RoundingEstimate | None) -> Iterator[Fit]:
        for p in grid:
            yield *self.solve(train, float(p.alpha), fit_intercept=p.fit_intercept), None

    def solve(
        self, z: Moments, alpha: float, *, fit_intercept: bool, diagnostics: SolveDiagnostics | None = None
    ) -> tuple[Array, Array]:
        """Solve for β (r, c) and b (c,) from the moments of z over the labelled rows."""
        small = centre(z, fit_intercept=fit_intercept)
        # (ZᵀZ + n_l diag((1 − ρ)/ρ) + n_l α I) β = ZᵀY
        G = small.G + np.diag(small.n * self.penalty)
        beta = ridge(G, small.C, small.n * alpha, n_rows=z.rows, diagnostics=diagnostics)
        return beta, small.target_mean - small.mean @ beta


def canonical_views(everything: Moments, width: int, penalty: Array | float = 0.0) -> CanonicalCoordinates:
    """Compute canonical coordinates from the moments of [φ¹, φ²] over all rows; φ¹ has `width` columns.

    `penalty`: αK of the landmarks of both views, which keeps directions of little variance from looking correlated.
    Directions whose variance is below rounding, or that are uncorrelated, are left out.
    """
    mean = everything.s / everything.n
    C = everything.G / everything.n - np.outer(mean, mean)
    R = C + penalty / everything.n
    W1, W2 = _inverse_root(R[:width, :width]), _inverse_root(R[width:, width:])
    # (C11 + αK1/N)^{-1/2} C12 (C22 + αK2/N)^{-1/2} = U diag(ρ) Vᵀ
    U, correlations, _ = linalg.svd(W1.T @ C[:width, width:] @ W2, full_matrices=False, check_finite=False)
    kept = correlations > _UNCORRELATED
    basis, shift = W1 @ U[:, kept], None if everything.shift is None else everything.shift[:width]
    return CanonicalCoordinates(
        basis=basis,
        offset=basis.T @ mean[:width],
        correlations=np.minimum(correlations[kept], 1.0),
        ranks=(W1.shape[1], W2.shape[1]),
        shift=shift,
    )


def _inverse_root(C: Array) -> Array:
    """Compute W (p, k) with WᵀCW = I on the k eigenvectors of a covariance above rounding."""
    values, vectors = linalg.eigh(C, driver="evd", check_finite=False)
    # a covariance has no negative eigenvalues: these show the rounding of the moments
    rounding = max(-float(values[0]), len(C) * float(np.finfo(np.float64).eps) * float(values[-1]), 1e-300)
    kept = values > 10 * rounding
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def canonical_ridge(
    labelled: Moments,
    views: CanonicalCoordinates,
    alpha: float,
    *,
    fit_intercept: bool = True,
    diagnostics: SolveDiagnostics | None = None,
) -> tuple[Array, Array]:
    """Solve ridge with the canonical norm; return coefficients over the first view (p₁, c) and intercept (c,).

    min (1/n_l) Σ (βᵀz_i + b − y_i)² + Σ_j ((1 − ρ_j)/ρ_j) β_j² + α‖β‖² over the labelled rows, whose moments of φ¹ are
    given (Algorithm 1 of the paper, whose γ is α; it has no b).
    """
    beta, b = views.solve(views.reduce(labelled), alpha, fit_intercept=fit_intercept, diagnostics=diagnostics)
    return views.basis @ beta, b - views.offset @ beta


def first_view(both: Moments, width: int) -> Moments:
    """Return the moments of the first `width` columns."""
    shift = None if both.shift is None else both.shift[:width]
    return replace(both, G=both.G[:width, :width], C=both.C[:width], s=both.s[:width], shift=shift)

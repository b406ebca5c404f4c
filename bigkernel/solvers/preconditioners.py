"""Preconditioners of A = Σ w bbᵀ + αK (m×m): matrices near A that are quickly solved, each in one m×m array.

    SampleFactor   P = ω Σ_S w bbᵀ + αK of some rows S: κ(P⁻¹A) ≤ ((1 + a^−½)/(1 − a^−½))² for a·m rows of even
                   leverage, whatever the size of the problem
    FalkonFactor   P = (n/m) K² + αK, from the landmarks alone (Rudi, Carratino & Rosasco, NIPS 2017)

Only the pace depends on them, not what is solved: rounding and jitter in P cost steps at most. Shapes: m landmarks, c
targets. Matrices are in column order, as LAPACK wants them, and are overwritten. Of both kinds
    rows           that the normal matrix is of; 0: of the landmarks alone
    least          about the smallest eigenvalue of P⁻¹A
    jitter, floor  that was added to the diagonal, relative to its largest entry, and as it is: directions in which A is
                   smaller are not solved for
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels import blas
from bigkernel.kernels.blas import mirror

_PROBES = 16  # vectors of random signs that estimate a trace


@dataclass(frozen=True, eq=False)
class SampleFactor:
    """P = LLᵀ of the normal matrix of some rows, L in the lower triangle of `lower` (m, m)."""

    lower: Array
    rows: int
    jitter: float
    floor: float

    @property
    def least(self) -> float:
        """See above, where rows were drawn by leverage (Marchenko & Pastur)."""
        return float((1 + (len(self.lower) / self.rows) ** 0.5) ** -2)

    def solve(self, R: Array) -> Array:
        """Compute P⁻¹R, (m, c) float64."""
        return np.asarray(linalg.cho_solve((self.lower, True), R.astype(self.lower.dtype), check_finite=False), float)


@dataclass(frozen=True, eq=False)
class FalkonFactor:
    """P = (n/m) Tᵀ(TTᵀ + (αm/n)I)T with K = TᵀT.

    Attributes
    ----------
    factors : (m, m); below the diagonal and on it L with LLᵀ = TTᵀ + (αm/n)I, above it T
    diagonal : (m,) of T
    ratio : n/m
    """

    factors: Array
    diagonal: Array
    ratio: float
    jitter: float
    floor: float = 0.0
    rows: int = 0
    least: float = 0.25  # of as many rows as landmarks

    def solve(self, R: Array) -> Array:
        """Compute P⁻¹R, (m, c) float64."""
        x = self._solve_core(R.astype(self.factors.dtype), transposed=True)
        x = linalg.cho_solve((self.factors, True), x, check_finite=False)
        return np.asarray(self._solve_core(x, transposed=False), np.float64) / self.ratio

    def half_solve(self, R: Array) -> Array:
        """Compute SR, (m, c) float64, with SSᵀ = P⁻¹."""
        x: Array = R.astype(self.factors.dtype)
        x = linalg.solve_triangular(self.factors, x, lower=True, trans=1, check_finite=False)
        return np.asarray(self._solve_core(x, transposed=False) / np.sqrt(self.ratio), np.float64)

    def _solve_core(self, R: Array, *, transposed: bool) -> Array:
        """Compute T⁻ᵀR or T⁻¹R; T borrows the diagonal of the array meanwhile."""
        places = np.diag_indices(len(R))
        lent = self.factors[places]
        self.factors[places] = self.diagonal
        try:
            return np.asarray(
                linalg.solve_triangular(self.factors, R, lower=False, trans=int(transposed), check_finite=False)
            )
        finally:
            self.factors[places] = lent


Factor = SampleFactor | FalkonFactor


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """A factor for the columns of each decade of penalties.

    Attributes
    ----------
    factors : one a decade
    which : (columns,) the factor of each column
    least : (columns,) about the smallest eigenvalue of P⁻¹A of each
    lost : (columns,) about how many directions of each are lost to rounding
    """

    factors: Sequence[Factor]
    which: Array
    least: Array
    lost: Array

    def solve(self, R: Array) -> Array:
        """Compute P⁻¹R of all columns, (m, columns) float64."""
        out = np.empty(R.shape)
        for number, factor in enumerate(self.factors):
            own = self.which == number
            if own.any():
                out[:, own] = factor.solve(R[:, own])
        return out

    def select(self, columns: Array) -> Preconditioner:
        """Select some columns."""
        return replace(self, which=self.which[columns], least=self.least[columns], lost=self.lost[columns])


def describe_preconditioner(rows: int) -> str:
    """Describe the preconditioner of so many rows, or with 0 of the landmarks alone."""
    return f"normal matrix of {rows:,} rows" if rows else "factors of the core"


def factor_sample(A: Array, rows: int) -> SampleFactor:
    """Factor a matrix A (m, m) of the normal equations of so many rows, which is overwritten."""
    largest = float(A.diagonal().max())
    jitter = _factor_in_place(A, lower=True)
    return SampleFactor(A, rows, jitter, jitter * largest)


def factor_core(K: Array, alpha: float, n: float, *, intercept: bool = False) -> FalkonFactor:
    """Factor the core K (m, m), which is overwritten, for n rows (or the sum of their weights).

    With an intercept, landmarks stand for rows about their mean: K(I − 11ᵀ/m)K takes the place of K².
    """
    jitter = _factor_in_place(K, lower=False)
    diagonal, ratio = K.diagonal().copy(), n / len(K)
    mirror(K)
    along = linalg.get_blas_funcs("trmv", (K,))(K, np.ones(len(K), K.dtype))  # T1
    blas.times_transposed(K)  # TTᵀ = (Tᵀ)ᵀTᵀ
    if intercept:
        linalg.get_blas_funcs("syr", (K,))(-1 / len(K), along, lower=1, a=K, overwrite_a=1)
    K[np.diag_indices(len(K))] += alpha / ratio
    # above the diagonal stands T, which cannot restore a failed factor: a jitter beyond the rounding of TTᵀ
    K[np.diag_indices(len(K))] += 10 * np.finfo(K.dtype).eps * float(K.diagonal().max())
    if blas.cholesky(K, lower=True):
        raise DataError(f"the core of {len(K):,} landmarks cannot be factored in {K.dtype}: landmarks repeat others")
    return FalkonFactor(K, diagonal, ratio, jitter)


def estimate_trace(P: Factor, width: int, times: Callable[[Array], Array]) -> float:
    """Estimate tr P⁻¹F from vectors of random signs (Hutchinson 1989); `times` gives FR of R (m, c)."""
    signs = np.random.RandomState(0).choice([-1.0, 1.0], size=(width, _PROBES))
    return float((P.solve(signs) * times(signs)).sum()) / _PROBES


def _factor_in_place(A: Array, *, lower: bool) -> float:
    """Factor A + δI into one triangle of A; returns the jitter δ, in decades, relative to the largest diagonal entry.

    The other triangle stays as it is, so that A can be restored where the jitter was too small.
    """
    diagonal, places = A.diagonal().copy(), np.diag_indices(len(A))
    scale, jitter = float(diagonal.max()), 10 * float(np.finfo(A.dtype).eps)
    while True:
        A[places] = diagonal + jitter * scale
        if not blas.cholesky(A, lower=lower):
            return jitter
        if jitter > 1 or not scale > 0:
            raise DataError(f"a matrix of {len(A):,} landmarks is not positive definite, with any jitter")
        mirror(A if lower else A.T)
        jitter *= 10

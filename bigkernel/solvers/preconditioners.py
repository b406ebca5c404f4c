"""Preconditioners of A = Σ w bbᵀ + αK (m×m): matrices near A that are quickly solved, each in one m×m array.

    SubSample   P = ω Σ_S w bbᵀ + αK of some rows S: κ(P⁻¹A) ≤ ((1 + a^−½)/(1 − a^−½))² for a·m rows of even leverage,
                whatever the size of the problem
    Falkon      P = (n/m) K² + αK, from the landmarks alone (Rudi, Carratino & Rosasco, NIPS 2017)

Only the pace depends on them, not what is solved: rounding and jitter in P cost steps at most. Matrices are in
column order, as LAPACK wants them, and are overwritten.

Which one, or sums of m×m, is chosen by the cost of a fit before it runs, counted in products of float32 numbers, of
which float64 ones take twice as long; k(x, z) takes about twenty beside its 2d.
Shapes: n rows, d features, m landmarks, c targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.errors import DataError
from bigkernel.kernels import blas
from bigkernel.kernels.blas import mirror

Array = NDArray[Any]
_PROBES = 16  # vectors of random signs that estimate a trace
AUTO_LEAST = 4096  # landmarks below which the sums, which more rows and another alpha go on from, are worth their cost
CORE_BYTES = 2**32  # of the core that is kept; beyond, it is made again for each product
FACTOR_BYTES = 2**33  # of the factors of a whole grid of penalties, one for each decade
WIDE = 16_384  # landmarks from which float64 factors would take more than 2 GB
SHARES = (4, 6, 8, 12, 16)  # rows of the sub-sample a landmark
PACE = 0.75  # a step lowers the excess by about so much of that number of times, as measured
MOST_OF_ROWS = 0.5  # of the rows in a sub-sample; beyond, it is a direct fit in disguise
SAMPLE_BYTES = 2**30  # of the rows of the sub-sample
FALKON_PACE = 1.7  # with factors of the core
_KERNEL = 20.0  # operations of a kernel value beside the product
_WIDE = 2.0  # float64 against float32
_SOLVE = 3.5  # m³ of whitening, solving and telling the errors, as measured
_NARROW = 5000  # landmarks beyond which float32 sums seldom keep what is promised, so that they are float64


def named(rows: int) -> str:
    """The preconditioner of so many rows, for people; 0: that of the landmarks alone."""
    return f"normal matrix of {rows:,} rows" if rows else "factors of the core"


@dataclass(frozen=True, eq=False)
class SubSample:
    """P = LLᵀ of the normal matrix of some rows."""

    lower: Array  # (m, m) with L in its lower triangle
    jitter: float  # that was added to the diagonal, relative to its largest entry
    floor: float  # the same as it is: directions in which A is smaller are not solved for
    rows: int  # how many there are

    @property
    def name(self) -> str:
        """What it is, for people."""
        return named(self.rows)

    @property
    def least(self) -> float:
        """About the smallest eigenvalue of P⁻¹A, where rows were drawn by leverage (Marchenko & Pastur)."""
        return float((1 + (len(self.lower) / self.rows) ** 0.5) ** -2)

    def solve(self, R: Array) -> Array:
        """P⁻¹R, (m, c) float64."""
        return np.asarray(linalg.cho_solve((self.lower, True), R.astype(self.lower.dtype), check_finite=False), float)


@dataclass(frozen=True, eq=False)
class Falkon:
    """P = (n/m) Tᵀ(TTᵀ + (αm/n)I)T with K = TᵀT."""

    factors: Array  # (m, m); below the diagonal and on it L with LLᵀ = TTᵀ + (αm/n)I, above it T
    diagonal: Array  # (m,) of T
    ratio: float  # n/m
    jitter: float  # that was added to the diagonal of K, relative to its largest entry
    floor: float = 0.0  # nothing, but for the square of that

    @property
    def name(self) -> str:
        return named(0)

    @property
    def least(self) -> float:
        """See `SubSample`: that of as many rows as landmarks."""
        return 0.25

    def solve(self, R: Array) -> Array:
        x = self._by_core(R.astype(self.factors.dtype), transposed=True)
        x = linalg.cho_solve((self.factors, True), x, check_finite=False)
        return np.asarray(self._by_core(x, transposed=False), np.float64) / self.ratio

    def half_solve(self, R: Array) -> Array:
        """SR, (m, c) float64, with SSᵀ = P⁻¹."""
        x: Array = R.astype(self.factors.dtype)
        x = linalg.solve_triangular(self.factors, x, lower=True, trans=1, check_finite=False)
        return np.asarray(self._by_core(x, transposed=False) / np.sqrt(self.ratio), np.float64)

    def _by_core(self, R: Array, *, transposed: bool) -> Array:
        """T⁻ᵀR or T⁻¹R; T borrows the diagonal of the array meanwhile."""
        places = np.diag_indices(len(R))
        lent = self.factors[places]
        self.factors[places] = self.diagonal
        try:
            return np.asarray(linalg.solve_triangular(self.factors, R, trans=int(transposed), check_finite=False))
        finally:
            self.factors[places] = lent


Preconditioner = SubSample | Falkon


def sub_sample(A: Array, rows: int) -> SubSample:
    """The preconditioner of a matrix A (m, m) of the normal equations of so many rows, which is overwritten."""
    largest, jitter = float(A.diagonal().max()), _factor_in_place(A, lower=True)
    return SubSample(A, jitter, jitter * largest, rows)


def estimate_trace(P: Preconditioner, width: int, of: Callable[[Array], Array]) -> float:
    """About tr P⁻¹F of P (m, m), where `of` gives FR of R (m, c), from vectors of random signs (Hutchinson 1989)."""
    signs = np.random.RandomState(0).choice([-1.0, 1.0], size=(width, _PROBES))
    return float((P.solve(signs) * of(signs)).sum()) / _PROBES


def falkon(K: Array, alpha: float, n: float, *, intercept: bool = False) -> Falkon:
    """The preconditioner of the core K (m, m), which is overwritten, for n rows (or the sum of their weights).

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
    return Falkon(K, diagonal, ratio, jitter)


def _factor_in_place(A: Array, *, lower: bool) -> float:
    """Cholesky of A + δI into one triangle of A; the jitter δ, in decades, relative to the largest diagonal entry.

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


@dataclass(frozen=True)
class PreconditionerChoice:
    """`rows` of a sub-sample, or 0: factors of the core; and the sweeps that are expected."""

    rows: int
    sweeps: int
    flops: float


def preconditioner_itemsize(m: int) -> int:
    """Of FALKON's factors: beyond `WIDE` landmarks float32, which serves as well and takes half the memory."""
    return 4 if m >= WIDE else 8


def decades(alphas: Array) -> tuple[list[float], Array]:
    """One penalty for those within a decade of each other, rising, and which of them is for each of alphas (columns,).

    Examples
    --------
    >>> decades(np.array([1.0, 100.0, 4.0]))
    ([2.0, 100.0], array([0, 1, 0]))
    """
    groups: list[list[float]] = []
    for alpha in np.unique(alphas):
        if groups and alpha <= 10.1 * groups[-1][0]:
            groups[-1].append(float(alpha))
        else:
            groups.append([float(alpha)])
    which = [next(place for place, group in enumerate(groups) if alpha in group) for alpha in alphas.tolist()]
    return [group[0] if len(group) == 1 else math.sqrt(group[0] * group[-1]) for group in groups], np.array(which)


def driver_bytes(m: int, choice: PreconditionerChoice | None, factors: int = 1) -> int:
    """Most memory that m×m arrays take on the driver, at once; `None`: of a direct fit, about."""
    if choice is None:
        # sums as they are merged, a factor of the core, rotated moments, the same centred, and factored
        return 8 * 8 * m * m
    # beside the factors the sums of a block, or a factor of the core in float64 that tells what rounding hides
    made = (factors * (8 if choice.rows else preconditioner_itemsize(m)) + 8) * m * m
    return made + (8 * m * m if 8 * m * m <= CORE_BYTES else 0)


def sweep_flops(n: float, d: int, m: int, c: int) -> float:
    """Of one product of the normal matrix with c vectors."""
    return n * m * (2 * d + _KERNEL + _WIDE * 4 * c)


def direct_flops(n: float, d: int, m: int, *, float64: bool = False) -> float:
    """Of a fit from sums of m×m, in float64 where many landmarks call for it; `float64`: of rows in it.

    The error that float32 sums cause in predictions grows about threefold with twice the landmarks: 3e-5, 8e-5, 3e-4
    and 1e-3 at m = 1,000, 2,000, 4,000 and 8,000 (200,000 deformed digits, σ = 0.6, α = 0.1).
    """
    gram = _WIDE if m > _NARROW and not float64 else 1.0
    return n * m * (gram * m + 2 * d + _KERNEL) + _WIDE * _SOLVE * float(m) ** 3


def solve_flops(m: int) -> float:
    """Of one more solve from the same sums."""
    return _WIDE * float(m) ** 3 / 3


def choose_preconditioner(
    n: int, d: int, m: int, c: int, tol: float, trained: float | None = None
) -> PreconditionerChoice:
    """The preconditioner whose fit is expected to be the sooner, to an excess of `tol`.

    Training sets of `trained` rows that it serves differ from it as draws of so many rows do.
    """
    each, made = sweep_flops(n, d, m, c), float(m) ** 2 * (2 * d + _KERNEL)

    def sweeps(pace: float) -> int:
        # steps, and a look at the residual before and after them
        return 2 + max(1, math.ceil(math.log(1 / tol) / math.log(pace)))

    factors = _WIDE * (made + float(m) ** 3)
    options = [PreconditionerChoice(0, sweeps(FALKON_PACE), factors)]
    for share in SHARES:
        # a sub-sample is not most of the rows, and has room on the driver
        if share * m <= MOST_OF_ROWS * n and 8 * share * m * d <= SAMPLE_BYTES:
            apart = 0.0 if trained is None else m / trained
            gram = share * m * m * (_WIDE * m + 2.0 * d + _KERNEL) + _WIDE * float(m) ** 3 / 3
            # one sweep more draws the rows by leverage, which the factors of the core tell
            drawn = 1 + sweeps(PACE / (1 / share + apart))
            options.append(PreconditionerChoice(share * m, drawn, factors + gram))
    whole = [replace(option, flops=option.flops + option.sweeps * each) for option in options]
    return min(whole, key=lambda option: option.flops)

"""Preconditioned conjugate gradients on Av = C, A = Σ w bbᵀ + αK (m×m): cost model, preconditioners and one step.

The caller computes the products with A, one sweep each; nothing here reads rows. Costs are estimated before a fit, in
float32 operations; a float64 operation counts twice, and k(x, z) about twenty beside its 2d.

Preconditioners are matrices near A that are quickly solved, each in one m×m array.
    SampleFactor   P = ω Σ_S w bbᵀ + αK of some rows S: κ(P⁻¹A) ≤ ((1 + a^−½)/(1 − a^−½))² for a·m rows of even
                   leverage, whatever the size of the problem
    FalkonFactor   P = (n/m) K² + αK, from the landmarks alone (Rudi, Carratino & Rosasco, NIPS 2017)
Only the number of steps depends on P, not the solution: rounding and jitter in P cost steps at most. Matrices are in
column order, as LAPACK expects, and are overwritten. Both have the attributes
    rows           rows of the normal matrix; 0: factors of the landmarks alone
    least          estimate of the smallest eigenvalue of P⁻¹A
    jitter, floor  what was added to the diagonal, relative to its largest entry and absolute: directions in which A is
                   smaller are not solved for

The excess of the objective over its least value is rᵀA⁻¹r, at most ρ/λ with ρ = rᵀP⁻¹r and λ the smallest eigenvalue
of P⁻¹A. The steps themselves estimate λ: their lengths η and the β of their directions are the entries of a Lanczos
matrix T of P⁻¹A, whose least eigenvalue θ, the smallest Ritz value, comes near λ from above (Meurant & Tichý, Numerical
Algorithms 2013).
    T_ii = 1/η_i + β_{i−1}/η_{i−1},   T_{i,i+1} = √β_i/η_i
Until T resolves λ, the preconditioner provides an estimate: θ is never above its `least`. β is that of Polak and
Ribière, which tolerates small changes of P by rounding from step to step.
Shapes: n rows, d features, m landmarks, c targets, k steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.errors import DataError
from bigkernel.kernels import blas
from bigkernel.kernels.blas import mirror

AUTO_LEAST = 4000  # landmarks below which the sums, which more rows and another alpha go on from, are worth their cost
CORE_BYTES = 2**32  # largest core that is kept; a larger one is recomputed for each product
FACTOR_BYTES = 2**33  # limit of the factors of a grid of penalties, one per decade
WIDE = 16_384  # landmarks from which float64 factors would take more than 2 GB
SHARES = (2, 3, 4, 6, 8, 12, 16)  # rows of the sub-sample per landmark; a step divides the excess by about as much
START = 3.0  # excess before the first step, relative to the objective, as measured
MOST_OF_ROWS = 0.5  # largest share of the rows in a sub-sample; beyond, a direct fit costs no more
SAMPLE_BYTES = 2**30  # limit of the rows of the sub-sample
FALKON_PACE = 1.7  # the same with factors of the core
_KERNEL = 20.0  # operations of a kernel value besides the product
_WIDE = 2.0  # cost of a float64 operation against a float32 one
_THIN = 5.0  # the same for a product of a block with a few vectors
KEPT_BYTES = 2**33  # blocks of which a choice assumes that memory holds them; it must not depend on the machine
_SOLVE = 3.5  # m³ of whitening, solving and estimating errors, as measured
_NARROW = 5000  # landmarks beyond which float32 sums seldom reach the promised accuracy, so that they are float64
_PROBES = 16  # vectors of random signs that estimate a trace
_SAFETY = 0.9  # factor of the smallest Ritz value, which is above the smallest eigenvalue


@dataclass(frozen=True)
class PreconditionerChoice:
    """Rows of the sub-sample (0: factors of the core), the expected number of sweeps and their flops."""

    rows: int
    sweeps: int
    flops: float


def preconditioner_itemsize(m: int) -> int:
    """Return the itemsize of FALKON's factors: float32 beyond `WIDE` landmarks, which converges as fast."""
    return 4 if m >= WIDE else 8


def decades(alphas: Array) -> tuple[list[float], Array]:
    """Merge penalties within a decade; return them, rising, and the index of the one for each of alphas (columns,).

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
    """Estimate the peak memory of m×m arrays on the driver; `None`: of a direct fit."""
    if choice is None:
        # sums while they are merged, a factor of the core, and moments rotated, centred and factored
        return 8 * 8 * m * m
    # besides the factors, the sums of a block or a float64 factor of the core that counts directions lost to rounding
    made = (factors * (8 if choice.rows else preconditioner_itemsize(m)) + 8) * m * m
    return made + (8 * m * m if 8 * m * m <= CORE_BYTES else 0)


def sweep_flops(n: float, d: int, m: int, c: int, kept: float = 0.0) -> float:
    """Count the flops of one product of the normal matrix with c vectors; a share `kept` of the blocks is in memory."""
    return n * m * ((1 - kept) * (2 * d + _KERNEL) + _THIN * 4 * c)


def kept_share(n: float, m: int, setting: int | str) -> float:
    """Return the share of the float32 blocks that memory is assumed to hold, for a setting of `block-cache`."""
    return min(1.0, (KEPT_BYTES if isinstance(setting, str) else setting) / (4 * n * m))


def direct_flops(n: float, d: int, m: int, *, float64: bool = False) -> float:
    """Count the flops of a direct fit; its sums are float64 where many landmarks require it or the rows are `float64`.

    The error that float32 sums cause in predictions grows about threefold with twice the landmarks: 3e-5, 8e-5, 3e-4
    and 1e-3 at m = 1,000, 2,000, 4,000 and 8,000 (200,000 deformed digits, σ = 0.6, α = 0.1).
    """
    gram = _WIDE if m > _NARROW and not float64 else 1.0
    return n * m * (gram * m + 2 * d + _KERNEL) + _WIDE * _SOLVE * float(m) ** 3


def solve_flops(m: int) -> float:
    """Count the flops of one more solve from the same sums."""
    return _WIDE * float(m) ** 3 / 3


def choose_preconditioner(
    n: int, d: int, m: int, c: int, tol: float, trained: float | None = None, kept: float = 0.0
) -> PreconditionerChoice:
    """Choose the preconditioner with which a fit reaches an excess of `tol` in the fewest flops.

    `trained`: rows of each training set where one preconditioner serves several, which differ as random samples do.
    `kept`: share of the blocks that stay in memory after the first sweep.
    """
    # rows of the sub-sample (0: factors of the core), pace, sweeps besides the steps, and flops to build it
    core = _WIDE * (float(m) ** 2 * (2 * d + _KERNEL) + float(m) ** 3)
    options = [(0, FALKON_PACE, 2, core)]
    for share in SHARES:
        if share * m <= MOST_OF_ROWS * n and 8 * share * m * d <= SAMPLE_BYTES:
            pace = 1 / (1 / share + (0.0 if trained is None else m / trained))
            gram = share * m * m * (_WIDE * m + 2.0 * d + _KERNEL) + _WIDE * float(m) ** 3 / 3
            # one more sweep samples rows by leverage, which the factors of the core estimate
            options.append((share * m, pace, 3, core + gram))
    choices = []
    for rows, pace, others, flops in options:
        steps = math.log(START / tol) / math.log(pace) if pace > 1 else math.inf
        sweeps = others + max(1, math.ceil(min(steps, 1000)))
        flops += sweep_flops(n, d, m, c) + (sweeps - 1) * sweep_flops(n, d, m, c, kept)
        choices.append(PreconditionerChoice(rows, sweeps, flops))
    return min(choices, key=lambda choice: choice.flops)


@dataclass(frozen=True, eq=False)
class SampleFactor:
    """P = LLᵀ of the normal matrix of some rows, L in the lower triangle of `lower` (m, m)."""

    lower: Array
    rows: int
    jitter: float
    floor: float

    @property
    def least(self) -> float:
        """Estimate for rows sampled by leverage (Marchenko & Pastur)."""
        return float((1 + (len(self.lower) / self.rows) ** 0.5) ** -2)

    def solve(self, R: Array) -> Array:
        """Compute P⁻¹R, (m, c) float64."""
        return np.asarray(linalg.cho_solve((self.lower, True), R.astype(self.lower.dtype), check_finite=False), float)


@dataclass(frozen=True, eq=False)
class FalkonFactor:
    """P = (n/m) Tᵀ(TTᵀ + (αm/n)I)T with K = TᵀT."""

    factors: Array  # (m, m): L with LLᵀ = TTᵀ + (αm/n)I below the diagonal and on it, T above it
    diagonal: Array  # (m,) of T
    ratio: float  # n/m
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
        """Compute T⁻ᵀR or T⁻¹R; meanwhile the diagonal of the array is that of T."""
        places = np.diag_indices(len(R))
        own = self.factors[places]
        self.factors[places] = self.diagonal
        try:
            return np.asarray(
                linalg.solve_triangular(self.factors, R, lower=False, trans=int(transposed), check_finite=False)
            )
        finally:
            self.factors[places] = own


PreconditionerFactor = SampleFactor | FalkonFactor


class WithoutLandmarks:
    """P without the rows and columns J of some landmarks: (P_SS)⁻¹ of the others, S, from P⁻¹.

    By blocks of the inverse, (P_SS)⁻¹ = (P⁻¹)_SS − (P⁻¹)_SJ ((P⁻¹)_JJ)⁻¹ (P⁻¹)_JS. Eigenvalues of (P_SS)⁻¹A_SS lie
    between those of P⁻¹A.
    """

    def __init__(self, factor: PreconditionerFactor, left_out: Array) -> None:
        self._factor, self._left_out = factor, left_out  # J, (j,)
        matrix = factor.lower if isinstance(factor, SampleFactor) else factor.factors
        unit = np.zeros((len(matrix), len(left_out)))
        unit[left_out, np.arange(len(left_out))] = 1.0
        self._columns = factor.solve(unit).astype(matrix.dtype)  # (m, j)
        self._columns[left_out], own = 0.0, self._columns[left_out].T.copy()
        _factor_in_place(own.T, lower=True)
        self._own = own.T

    def solve(self, R: Array) -> Array:
        """Compute (P_SS)⁻¹R_S, (m, c) float64, 0 in J."""
        R = R.copy()
        R[self._left_out] = 0.0
        z = self._factor.solve(R)
        between = linalg.cho_solve((self._own, True), z[self._left_out].astype(self._own.dtype), check_finite=False)
        z -= self._columns @ between
        z[self._left_out] = 0.0
        return z


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """A factor for the columns of each decade of penalties."""

    factors: Sequence[PreconditionerFactor]  # one per decade
    which: Array  # (columns,) index of the factor of each column
    least: Array  # (columns,) estimates of the smallest eigenvalue of P⁻¹A
    lost: Array  # (columns,) estimated number of directions lost to rounding
    folds: Array  # (columns,) index in `left_out` of each column
    left_out: Sequence[Array]  # landmarks that are left out of a fold

    @cached_property
    def _solvers(self) -> dict[tuple[int, int], PreconditionerFactor | WithoutLandmarks]:
        """What solves the columns of each factor and fold."""
        return {
            (number, fold): WithoutLandmarks(factor, landmarks) if len(landmarks) else factor
            for number, factor in enumerate(self.factors)
            for fold, landmarks in enumerate(self.left_out)
        }

    def solve(self, R: Array) -> Array:
        """Compute P⁻¹R of all columns, (m, columns) float64."""
        out = np.empty(R.shape)
        for (number, fold), solver in self._solvers.items():
            own = (self.which == number) & (self.folds == fold)
            if own.any():
                out[:, own] = solver.solve(R[:, own])
        return out

    def select(self, columns: Array) -> Preconditioner:
        """Return the state of some columns."""
        names = ("which", "least", "lost", "folds")
        some = replace(self, **{name: getattr(self, name)[columns] for name in names})
        some.__dict__["_solvers"] = self._solvers  # which are expensive
        return some


def describe_preconditioner(rows: int) -> str:
    """Describe a preconditioner of `rows` rows; 0: of the landmarks alone."""
    return f"normal matrix of {rows:,} rows" if rows else "factors of the kernel matrix of landmarks"


def factor_sample(A: Array, rows: int) -> SampleFactor:
    """Factor the normal matrix A (m, m) of `rows` rows, which is overwritten."""
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
    # T is above the diagonal, so that A cannot be restored for another try: a jitter beyond the rounding of TTᵀ
    K[np.diag_indices(len(K))] += 10 * np.finfo(K.dtype).eps * float(K.diagonal().max())
    if blas.cholesky(K, lower=True):
        raise DataError(
            f"the kernel matrix of {len(K):,} landmarks cannot be factored in {K.dtype}: some landmarks depend "
            "linearly on others"
        )
    return FalkonFactor(K, diagonal, ratio, jitter)


def estimate_trace(P: PreconditionerFactor, width: int, times: Callable[[Array], Array]) -> float:
    """Estimate tr P⁻¹F from vectors of random signs (Hutchinson 1989); `times` gives FR of R (m, c)."""
    signs = np.random.RandomState(0).choice([-1.0, 1.0], size=(width, _PROBES))
    return float((P.solve(signs) * times(signs)).sum()) / _PROBES


def _factor_in_place(A: Array, *, lower: bool) -> float:
    """Factor A + δI into one triangle of A; return the jitter δ relative to the largest diagonal entry.

    δ grows by decades until A + δI has a factor. The other triangle is kept, to restore A from.
    """
    diagonal, places = A.diagonal().copy(), np.diag_indices(len(A))
    scale, jitter = float(diagonal.max()), 10 * float(np.finfo(A.dtype).eps)
    while True:
        A[places] = diagonal + jitter * scale
        if not blas.cholesky(A, lower=lower):
            return jitter
        if jitter > 1 or not scale > 0:
            raise DataError(f"the kernel matrix of {len(A):,} landmarks is not positive definite, even with jitter")
        mirror(A if lower else A.T)
        jitter *= 10


@dataclass(frozen=True, eq=False)
class CGState:
    """The state between two steps."""

    coef: Array  # v, (m, c)
    residual: Array  # r = C − Av, (m, c)
    direction: Array  # p, (m, c)
    rho: Array  # ρ = ⟨r, P⁻¹r⟩, (c,)
    ritz: Array  # θ, the smallest Ritz value so far, (c,)
    stalled: Array  # (c,) columns in which rounding allows no further progress
    decrease: Array  # of the objective by the last step, (c,) (Hestenes & Stiefel 1952)
    eta: Array  # η of the steps so far, (k, c)
    beta: Array  # β of the steps so far, (k, c)

    def select(self, columns: Array) -> CGState:
        """Return the state of some columns."""
        return CGState(**{name: values[..., columns] for name, values in vars(self).items()})

    @property
    def excess(self) -> Array:
        """Bound on the objective minus its least value, (c,): ρ/(0.9 θ)."""
        return np.asarray(self.rho / (_SAFETY * self.ritz))


def start_cg(coef: Array, residual: Array, solve: Callable[[Array], Array], ritz: Array) -> CGState:
    """Return the state before the first step from v; `solve` gives P⁻¹R of R (m, c)."""
    z, c = solve(residual), coef.shape[1]
    # ρ of an exact P⁻¹ is never below 0, but rounding can make it so
    rho, none = np.maximum(_inner(residual, z), 0), np.zeros((0, c))
    return CGState(coef, residual, z, rho, ritz, np.zeros(c, bool), np.zeros(c), eta=none, beta=none)


def step_cg(state: CGState, product: Array, solve: Callable[[Array], Array]) -> CGState:
    """Take a step along the direction p; `product` is Ap."""
    curvature = _inner(state.direction, product)
    stalled = state.stalled | ~(curvature > 0) | ~(state.rho > 0)
    # ⟨p, r⟩ equals ρ except for rounding; with it the step ends at the minimum along p all the same
    along = _inner(state.direction, state.residual)
    eta = np.where(stalled, 0.0, along / np.where(stalled, 1.0, curvature))
    residual = state.residual - eta * product
    z = solve(residual)
    # Polak and Ribière's β, which stays right where rounding or the blocks change A a little
    beta = np.where(stalled, 0.0, _inner(residual - state.residual, z) / np.where(stalled, 1.0, state.rho))
    beta = np.maximum(beta, 0.0)
    etas = np.vstack([state.eta, eta])
    return CGState(
        coef=state.coef + eta * state.direction,
        residual=residual,
        direction=z + beta * state.direction,
        rho=np.maximum(_inner(residual, z), 0),
        ritz=np.minimum(state.ritz, _smallest_ritz(etas, state.beta, stalled)),
        stalled=stalled,
        decrease=eta * along,
        eta=etas,
        beta=np.vstack([state.beta, beta]),
    )


def _smallest_ritz(eta: Array, beta: Array, stalled: Array) -> Array:
    """Compute the smallest eigenvalue of the Lanczos matrix of η (k, c) and β (k − 1, c), (c,); ∞ where it stalls."""
    smallest = np.full(len(stalled), np.inf)
    for column in np.flatnonzero(~stalled & (eta > 0).all(axis=0)):
        lengths, betas = eta[:, column], beta[:, column]
        # T_jj = 1/η_j + β_{j−1}/η_{j−1} and T_{j,j+1} = √β_j/η_j, of Lanczos' process on P⁻¹A
        diagonal = 1 / lengths + np.append(0.0, betas / lengths[:-1])
        off_diagonal = np.sqrt(betas) / lengths[:-1]
        smallest[column] = linalg.eigvalsh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(0, 0))[0]
    # rounding can make an eigenvalue that is small against the others negative
    return np.asarray(np.maximum(smallest, 1e-300))


def _inner(a: Array, b: Array) -> Array:
    return np.asarray((a * b).sum(axis=0))

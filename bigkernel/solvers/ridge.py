"""The linear system of ridge regression, (G + αI)w = C in whitened coordinates, for one penalty or many.

`RidgeSystem` solves it, estimates the error of its predictions and counts its degrees of freedom, from moments only.
G + αI is factored by
    Cholesky      if α exceeds the rounding of G
    eigenvectors  otherwise, or if G + αI is singular
    tridiagonal   for many penalties: with G = QTQᵀ another penalty costs a product with Q, w = Q(T + αI)⁻¹QᵀC
    unrotated     for one penalty and a core K = ΠᵀLLᵀΠ of full rank: T = ΠᵀL⁻ᵀ is square, and for G in the columns of
                  the map
                      H = TᵀGT + αI = TᵀMT,   M = G + αK,   H⁻¹ = LᵀΠ M⁻¹ ΠᵀL,
                  which saves m³ for TᵀGT. M is factored about the mean μ of the columns, where its entries are
                  smallest; about 0 it is Mₒ = M + n μμᵀ, and with g = M⁻¹μ, Mₒ⁻¹B = M⁻¹B − g gᵀB / (1/n + μᵀg)
`qr_ridge.RowSystem` is the counterpart by QR, for rows whose moments float64 cannot represent.

Errors of predictions have a formula. In whitened coordinates φ = Tᵀb a fit is w = H⁻¹C with H = G + αI. Sums G + E
instead of G change it by −H⁻¹Ew. `statistics.moments` gives Ez for k random vectors z, whose entry i estimates the size
of row i of E,
    a_i = mean over z of (Ez)_i²,   Var E_ij ≈ a_i a_j / Σa,   hence Var (Ew)_i ≈ a_i Σ_j a_j w_j² / Σa.
Blocks b + δ instead of b, Var (Tᵀδ)_i = d_i, change it by H⁻¹(Σ Tᵀδ (y − f) − Σ φ δᵀTw − Σ TᵀδδᵀTw), hence
    Cov ≈ diag(d) SSE + G Σ_j d_j w_j²,   the last term being n d_i w_i in the mean,
and predictions use such blocks too, which adds n Σ_j d_j w_j². A change x of Hw changes predictions by H⁻¹x, whose
square on the rows of the fit is xᵀH⁻¹GH⁻¹x; for x of independent entries of variance v_i it is the mean of
(H⁻¹V^½ξ)ᵀG(H⁻¹V^½ξ) over vectors ξ of ±1, and for Σ φ ε of independent ε that of ‖GH⁻¹ξ‖²: O(r²) work besides the
factor. Errors are relative to wᵀGw.

Where E exceeds α, G + E says little of weak directions. For J(w) = Σ(y − f)² + α‖w‖² of exact sums and its gradient
2g, the square of the change is at most J(w), and at most ‖g‖²/(4α) because λ/(λ + α)² ≤ 1/(4α):
    J(w) ≤ its value from sums + |wᵀEw|,    ‖g‖ ≤ ‖C − Hw‖ + ‖Ew‖,    ‖Ew‖² ≈ Σ a_i w_i².
These bounds replace the formula where directions are unresolved or dropped, and limit it elsewhere. In 1,500 solves
(normal, mixed, heavy-tailed, discrete and one-dimensional rows, cores of condition 1 to 3e13, α from 1e-8 to 1) the
estimate was 0.47 to 474 times errors above 3e-4, median 3.3; with unresolved directions at least 0.85 times. Smaller
errors are overestimated further.

Shapes: n rows, p columns of the map, r whitened coordinates, c targets, k probe vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array, Index
from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels import blas, on_device
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import (
    PENALTY_LOST,
    VECTORS,
    Errors,
    SolveDiagnostics,
    clear_upper,
    dof_vectors,
    frobenius,
    probes,
    regularise,
    solve_factored,
    solve_lower,
    times_triangle,
)
from bigkernel.solvers.whitening import Reduced, Whitening, reduce_and_centre
from bigkernel.statistics.moments import Moments

Penalties = float | Array  # α, or one for each target
ALL = slice(None)
# columns of `RoundingEstimate.changes`
OF_SUMS, OF_SOLVE, OF_BLOCKS, SIGNS = (slice(at * VECTORS, (at + 1) * VECTORS) for at in range(4))
SHARED = 8  # least number of penalties for which a tridiagonal form costs less than Cholesky factors
_COARSE = 1e-4  # rounding of moments beyond this share of the largest eigenvalue is no threshold for eigenvalues
_SOLVED = 1e-8  # largest error of predictions by the unrotated factor; beyond, moments are rotated
_CLEAR = 10.0  # ratio of an eigenvalue to its rounding from which it is resolved
_STRIP = 128  # rows of M at a time
_POWERS = 4  # steps of the power iteration for the largest eigenvalue
_MARGIN = 2.0  # factor by which it may be underestimated


def require_alpha(alpha: object) -> None:
    """Raise `ConfigError` unless alpha is a finite number of at least 0, or a list of such."""
    try:
        given = np.asarray(alpha)
    except ValueError:  # rows of different lengths
        given = np.asarray(None)
    if given.ndim > 1 or not given.size or given.dtype.kind not in "iuf":
        raise ConfigError(f"alpha: expected a number, or one for each target, found {alpha!r}")
    if not np.isfinite(given).all() or given.min() < 0:
        raise ConfigError(f"alpha: expected a finite number of at least 0, found {alpha!r}")


def by_penalty(
    alpha: Penalties,
    count: int,
    diagnostics: SolveDiagnostics,
    solve: Callable[[float, Index, SolveDiagnostics], tuple[Array, ...]],
) -> tuple[Array, ...]:
    """Solve for the targets of each penalty together, and keep the worst of each figure.

    `alpha` is a number, or one for each of the `count` targets, else `DataError`. `solve` maps a penalty and the
    indices of its targets to arrays whose last axis are these targets.
    """
    if np.ndim(alpha) == 0:
        return solve(float(alpha), ALL, diagnostics)
    alphas = np.asarray(alpha, np.float64)
    if alphas.shape != (count,):
        raise DataError(f"alpha: expected a number, or one for each of {count} targets, found {len(alphas)} numbers")
    joined: list[Array] = []
    for value in np.unique(alphas):
        columns, own = np.flatnonzero(alphas == value), SolveDiagnostics()
        results = solve(float(value), columns, own)
        joined = joined or [np.zeros((*values.shape[:-1], count)) for values in results]
        for out, values in zip(joined, results, strict=True):
            out[..., columns] = values
        diagnostics.take_worst(own)
    return tuple(joined)


@dataclass(frozen=True, eq=False, kw_only=True)
class Factor(ABC):
    """A factorisation of H = G + αI."""

    condition: float = 1.0  # estimate for H without dropped directions
    rounding: float = 0.0  # size of the most negative eigenvalue of G; 0 if it is insignificant
    unresolved: int = 0  # number of directions whose eigenvalue is below rounding
    dropped: Array | None = None  # (r, r − k) directions dropped as null
    basis: Array | None = None  # Q (r, r), the basis of the coordinates

    @abstractmethod
    def solve(self, C: Array) -> Array:
        """Compute H⁻¹C, (r, c), of least norm if H is singular."""

    def quadratic(self, G: Gram, C: Array) -> Array:
        """Compute xᵀGx of every column x of H⁻¹C, (c,)."""
        return quadratic(G, self.solve(C))

    def image(self, G: Gram, C: Array) -> Array:
        """Compute GH⁻¹C, (r, c)."""
        return np.asarray(G @ self.solve(C))

    def effective_dof(self, G: Gram, alpha: float) -> float:
        """Estimate tr GH⁻¹ = r − α·tr H⁻¹, the effective degrees of freedom; see `dof_vectors`."""
        V, r = dof_vectors(len(G)), len(G)
        squares = float((V * V).sum())
        return max(float(r * (squares - alpha * (V * self.solve(V)).sum()) / max(squares, 1.0)), 0.0)

    def null_coordinates(self, C: Array) -> Array:
        """Return the coordinates of C in the dropped directions, (r − k, c)."""
        return np.zeros((0, C.shape[1])) if self.dropped is None else np.asarray(self.dropped.T @ C)

    def diagnose(self, G: Gram, ratios: dict[str, float], alpha: float, diagnostics: SolveDiagnostics) -> None:
        """Record the ratios of a solution, the condition and the effective degrees of freedom."""
        if len(G):
            diagnostics.ratios.update(ratios)
            diagnostics.figures["effective_dof"] = self.effective_dof(G, alpha)
        diagnostics.figures["solved_condition"] = self.condition
        diagnostics.rounding = max(diagnostics.rounding, self.rounding)
        diagnostics.penalty_lost |= self.rounding > PENALTY_LOST * alpha


@dataclass(frozen=True, eq=False)
class CholeskyFactor(Factor):
    """H = LLᵀ, `lower` L (r, r)."""

    lower: Array

    def solve(self, C: Array) -> Array:
        return solve_factored(self.lower, C, lower=True)

    def half(self, C: Array) -> Array:
        """Compute H^−½C, up to a rotation, (r, c)."""
        return solve_lower(self.lower, C)

    def ratios(self, G: Array, C: Array, alpha: float, w: Array) -> dict[str, float]:
        """Return the residual ratio of w for (G + αI)w = C."""
        return {"solution": residuals.solution(G, alpha, w, C)}


@dataclass(frozen=True, eq=False)
class SpectralFactor(Factor):
    """H by eigenvectors: its kept eigenpairs, (k,) and (r, k), and the eigenvalues of G, (k,)."""

    values: Array
    vectors: Array
    plain: Array

    def solve(self, C: Array) -> Array:
        return np.asarray(self.vectors @ ((self.vectors.T @ C) / self.values[:, None]))

    def half(self, C: Array) -> Array:
        """Compute H^−½C, up to a rotation, (k, c)."""
        return np.asarray((self.vectors.T @ C) / np.sqrt(self.values)[:, None])

    def quadratic(self, G: Gram, C: Array) -> Array:
        return np.asarray(((self.vectors.T @ C) ** 2 * (self.plain / self.values**2)[:, None]).sum(axis=0))

    def effective_dof(self, G: Gram, alpha: float) -> float:
        return float((np.maximum(self.plain, 0) / self.values).sum())

    def ratios(self, G: Array, C: Array, alpha: float, w: Array) -> dict[str, float]:
        """Return the residual ratios of w for (G + αI)w = C and of the eigenpairs."""
        if not len(G):
            return {}
        solution = residuals.solution(self.values, 0.0, self.vectors.T @ w, self.vectors.T @ C)
        eigen, orthogonality = residuals.eigen(G, self.plain, self.vectors)
        return {"solution": solution, "eigen": eigen, "orthogonality": orthogonality}


DenseFactor = CholeskyFactor | SpectralFactor


def factorize(
    G: Array,
    alpha: float,
    *,
    n_rows: float = 0.0,
    condition: float = 1.0,
    spectrum: Callable[[], tuple[Array, Array]] | None = None,
) -> DenseFactor:
    """Factor G + αI, G (r, r) positive semi-definite, alpha ≥ 0; see `ridge`. `spectrum()` returns eigh(G).

    If G has eigenvalues below −α/2, down to −ν, rounding exceeds the penalty: eigenvalues below ν are unreliable and
    are raised to at least ν/4 (without a penalty: they are null). Errors on digits, m = 4,000, σ = 1.4, α = 0.01,
    float32: 2.4 % with ν/4, as in float64; 2.7 % with ν, 2.9 % unchanged.
    """
    require_alpha(alpha)
    if not len(G):
        return SpectralFactor(np.zeros(0), np.zeros((0, 0)), np.zeros(0), dropped=np.zeros((0, 0)))
    regular = regularise(G, alpha)
    scale, norm = float(np.abs(np.diagonal(regular)).max()), float(linalg.lapack.dlange("1", regular))
    relative = _relative_rounding(len(G), n_rows)
    penalised = alpha > relative * scale
    # three cases. (1) α stands out of the rounding of G: Cholesky, if the least eigenvalue shows that
    # (2) α is below it: Cholesky if G + αI, or that scaled to unit diagonal, is far from singular
    # (3) else eigenvectors, of which those within rounding are null, or raised where rounding is coarse
    if not penalised:  # directions of rounding of the moments, amplified by whitening, are null
        relative = min(relative * condition, max(relative, 1e-8))
    if scale > 0:
        lower, info = clear_upper(regular), blas.cholesky(regular, lower=True)
        # Cholesky of a singular matrix may succeed: check its condition, or that its least eigenvalue is about α
        if info == 0 and penalised:
            least = residuals.smallest_eigenvalue(partial(solve_factored, lower, lower=True), len(lower))
            if least > alpha / 2:
                return CholeskyFactor(lower, condition=norm / least, rounding=max(alpha - least, 0.0))
        elif info == 0:
            reciprocal = float(linalg.lapack.dpocon(lower, norm, uplo="L")[0])
            if reciprocal <= relative and alpha > 0:
                # the condition of G + αI scaled to unit diagonal, which bounds the error of Cholesky too
                unit = 1 / np.sqrt(np.diagonal(G) + alpha)
                norm_ = float(linalg.lapack.dlange("1", regularise(G, alpha) * np.outer(unit, unit)))
                reciprocal = float(linalg.lapack.dpocon(lower * unit[:, None], norm_, uplo="L")[0])
            if reciprocal > relative:
                return CholeskyFactor(lower, condition=1 / reciprocal)
    plain, vectors = linalg.eigh(G, driver="evd") if spectrum is None else spectrum()
    largest = max(float(np.abs(plain + alpha).max(initial=0.0)), 1e-300)
    rounding, null, values = max(-float(plain[0]), 0.0), relative * largest, plain + alpha
    # ν above that threshold: without a penalty directions below ν are null, else eigenvalues are raised to ν/4
    if rounding <= null:
        rounding = 0.0
    elif rounding <= _COARSE * largest:
        null, values = (rounding, plain) if alpha == 0 else (null, np.maximum(plain, rounding / 4) + alpha)
    keep = values > null
    return SpectralFactor(
        values[keep],
        vectors[:, keep],
        plain[keep],
        dropped=vectors[:, ~keep],
        condition=float(values[-1] / values[keep][0]) if keep.any() else 1.0,
        rounding=rounding,
        unresolved=int((plain < rounding).sum()) if rounding > alpha else 0,
    )


def _relative_rounding(size: int, rows: float) -> float:
    return 10 * max(size, rows) * float(np.finfo(np.float64).eps)


def ridge(
    G: Array, C: Array, alpha: float, *, n_rows: float = 0.0, diagnostics: SolveDiagnostics | None = None
) -> Array:
    """Solve (G + αI)w = C by Cholesky; the minimum-norm solution if that matrix is singular.

    `n_rows`, the number of rows summed in G, sets the threshold of null directions; diagnostics take the residual, the
    condition, the effective degrees of freedom and the rounding of G.
    """
    factor = factorize(G, alpha, n_rows=n_rows)
    w = factor.solve(C)
    if diagnostics is not None:
        factor.diagnose(G, factor.ratios(G, C, alpha, w), alpha, diagnostics)
    return w


def quadratic(G: Gram, w: Array) -> Array:
    """Compute wᵀGw of every column of w (r, c), (c,)."""
    return np.asarray((w * (G @ w)).sum(axis=0))


def squared_error(q: Array, C: Array, w: Array, predicted: Array) -> Array:
    """Compute the training Σ w (y − f)² per target, (c,): q − 2⟨w, C⟩ + ⟨w, Gw⟩, the last given as `predicted`."""
    return np.asarray(np.maximum(q - 2 * (w * C).sum(axis=0) + predicted, 0))


@dataclass(frozen=True, eq=False)
class Tridiagonal:
    """T = QᵀGQ: its diagonal (r,) and off-diagonal (r − 1,), and Q (r, r)."""

    diagonal: Array
    off_diagonal: Array
    basis: Array

    def __len__(self) -> int:
        return len(self.diagonal)

    def __matmul__(self, x: Array) -> Array:
        out = self.diagonal[:, None] * x
        out[:-1] += self.off_diagonal[:, None] * x[1:]
        out[1:] += self.off_diagonal[:, None] * x[:-1]
        return out

    def factorize(self, alpha: float) -> Factor | None:
        """Factor T + αI = LDLᵀ; None if it is not positive definite."""
        d, e = self.diagonal + alpha, self.off_diagonal
        pivots, below, info = linalg.lapack.dpttrf(d, e) if e.size else (d, e, not d[0] > 0)
        return None if info else _TridiagonalFactor(pivots, below, basis=self.basis)


@dataclass(frozen=True, eq=False)
class _TridiagonalFactor(Factor):
    pivots: Array
    below: Array

    def solve(self, C: Array) -> Array:
        below = self.below
        return np.asarray(linalg.lapack.dpttrs(self.pivots, below, C)[0]) if below.size else C / self.pivots


@dataclass(frozen=True, eq=False)
class RoundingEstimate:
    """Estimated size of the rounding of sums, blocks and solve, in whitened coordinates."""

    sums: Array  # (r,) the a_i of the sums
    blocks: Array | None  # (r,) the d_i; None if blocks are as accurate as the rows
    widest: bool = False  # the blocks are float64, see `Errors`
    # (r,) of TᵀGT, or of the factor of G + αK if moments are not rotated, and the number of rows of the moments
    solve: Array = field(default_factory=lambda: np.zeros(0))
    rows: float = 0.0

    @classmethod
    def of_probe(
        cls, total: Mapping[str, Array], noise: Array | None, whitening: Whitening, *, widest: bool = False
    ) -> RoundingEstimate:
        """Estimate from the sums of a probe and the `noise` δ (·, p), the error of blocks against float64."""
        probed, rows = float(total["probed_rows"].sum()), float(total["rows"].sum())
        # rounding grows as the root of the number of rows
        of_sums = whitening.reduce(total["E"].sum(axis=0) * np.sqrt(max(rows / probed, 1.0)))
        blocks = None if noise is None else (whitening.reduce(noise.T) ** 2).mean(axis=1)
        return cls((of_sums**2).mean(axis=1), blocks, widest)

    def with_solve(self, of_solve: Array, rows: float) -> RoundingEstimate:
        """Return the estimate with probed rounding of the solve, (r, k), of moments of `rows` rows."""
        return replace(self, solve=(of_solve**2).mean(axis=1), rows=float(rows))

    @cached_property
    def changes(self) -> Array:
        """Changes of Hw of variances `sums`, `solve` and, if any, `blocks`, and signs, side by side, as slots say."""
        signs = probes(len(self.sums), VECTORS)
        changes = [np.sqrt(one)[:, None] * signs for one in (self.sums, self.solve, self.blocks) if one is not None]
        return np.hstack(changes if self.blocks is None else [*changes, signs])


def rounding_of_rotation(raw: Moments, rotated: Moments, whitening: Whitening) -> Array:
    """Compute the rounding of TᵀGT (`rotated`) times the vectors z of a probe, (r, k); `raw`: before the rotation."""
    reduce, z = whitening.reduce, probes(whitening.rank, VECTORS)
    error: Array = rotated.G @ z - reduce(raw.G @ whitening.expand(z))
    if raw.shift is not None:
        a, s = reduce(raw.shift), reduce(raw.s)
        error -= np.outer(s, a @ z) + np.outer(a, s @ z + raw.n * (a @ z))
    return error


@dataclass(frozen=True, eq=False)
class SystemSolution:
    """Weights w (r, c) and training squared errors (c,) of some targets."""

    w: Array
    squares: Array
    predicted: Array  # wᵀGw (c,)
    alpha: float
    n: float  # Σ w of the rows
    # G and C in the coordinates of the factor
    G: Gram
    C: Array
    factor: Factor


def prediction_errors(estimate: RoundingEstimate, solution: SystemSolution, changes: Array) -> Errors:
    """Estimate the errors of predictions of a fit, see the module; `changes` are in the coordinates of its factor."""
    w, G, n, solver, d = solution.w, solution.G, solution.n, solution.factor, estimate.blocks
    squares, predicted = float(solution.squares.sum()), float(solution.predicted.sum())
    if not w.any() or predicted == 0:
        # columns that are constant after rounding may have lost all that the targets depend on
        unresolved = d is not None and bool(d.any()) and squares > 0
        return Errors(0.0, 0.0, np.inf if unresolved else 0.0, widest=estimate.widest)
    if not predicted > 0:  # G is all rounding
        return Errors(np.inf, np.inf, 0.0 if d is None else np.inf)
    # all at once: a solve and a product with G are expensive
    shifts, signs = changes[:, : OF_SOLVE.stop], changes[:, :0]
    if d is not None:
        own = n * d[:, None] * w
        own = own if solver.basis is None else solver.basis.T @ own
        shifts, signs = np.hstack([changes[:, : OF_BLOCKS.stop], own]), changes[:, SIGNS]
    # ‖predictions‖² of the changes H⁻¹x; its magnitude if rounding makes G negative
    power = np.abs(solver.quadratic(G, shifts))
    of_sums, of_solve, of_values = (float(power[slot].sum()) for slot in (OF_SUMS, OF_SOLVE, OF_BLOCKS))

    def of_matrix(a: Array, changed: float) -> float:
        """Estimate ‖FH⁻¹Ew‖² for Var E_ij = aᵢaⱼ/Σa, given ‖FH⁻¹a^½ξ‖² of the signs ξ."""
        total = float(a.sum())
        # a may be near overflow
        return changed / VECTORS * (float((a @ w**2).sum()) / total) if total else 0.0

    blocks = 0.0
    if d is not None:
        noise, of_rows = float((d @ w**2).sum()), float((solver.image(G, signs) ** 2).sum())
        # δφ of a row: times its residual, through FH⁻¹φ of all rows, n diag(d)w on average, and δφᵀw itself
        own_changes = float(power[OF_BLOCKS.stop :].sum())
        blocks = (of_values * squares + noise * of_rows) / VECTORS + own_changes + n * noise
    squared = np.array([of_matrix(estimate.sums, of_sums), of_matrix(estimate.solve, of_solve)])
    doubt, V = 0.0, solver.dropped
    if solution.alpha > 0:
        bounds = _bounds(estimate, solution)
        lost = solver.unresolved > 0 or (V is not None and V.size > 0)
        squared = bounds if lost or bounds.sum() < squared.sum() else squared
    elif V is not None:
        # in unresolved directions least squares would explain a chance share of the residual, and in dropped directions
        # that the sums resolve, what it explains there
        chance, values = squares / max(estimate.rows, 1.0), (V * (G @ V)).sum(axis=0)
        clear = values > _CLEAR * np.sqrt((V**2 * (estimate.sums + estimate.solve)[:, None]).sum(axis=0))
        explained = float(((V[:, clear].T @ solution.C) ** 2 / values[clear, None]).sum())
        squared[1] += solver.unresolved * chance + explained
        # the whitening kept the others too: a QR factorisation decides whether they are null
        doubt = float(np.sqrt((~clear).sum() * chance / predicted))
    sums, solve, of_blocks = (float(np.sqrt(value / predicted)) for value in (*squared, blocks))
    return Errors(sums, solve, of_blocks, widest=estimate.widest, doubt=doubt)


def _bounds(estimate: RoundingEstimate, solution: SystemSolution) -> Array:
    """Bound ‖change of predictions‖² by the rounding of sums and of the solve, (2,), for α > 0; see the module."""
    w, alpha, a = solution.w, solution.alpha, np.stack([estimate.sums, estimate.solve])
    changed, total = a @ (w**2).sum(axis=1), np.maximum(a.sum(axis=1), 1e-300)  # ‖Ew‖², Σa
    rise = np.sqrt(((np.sqrt(a) @ np.abs(w)) ** 2).sum(axis=1) * changed / total).sum()
    gradient = float(np.sqrt(changed.sum()))
    if isinstance(solution.factor, SpectralFactor) and isinstance(solution.G, np.ndarray):
        gradient += frobenius(solution.C - solution.G @ w - alpha * w)
    objective = float(solution.squares.sum()) + alpha * float((w**2).sum()) + float(rise)
    shares = np.array([0.0, 1.0]) if not changed.any() else changed / changed.sum()
    return shares * min(objective, gradient**2 / (4 * alpha))


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """The system (G + αI)w = C for any α and some of the targets, from moments in the coordinates of the ridge."""

    small: Reduced
    rows: float  # number of rows of the moments
    condition: float = 1.0  # of the whitening, see `factorize`
    estimate: RoundingEstimate | None = None  # of the moments; None: no error estimates of predictions
    # use the tridiagonal form wherever α exceeds rounding, which pays from `SHARED` penalties on
    shared: bool = field(default=False, kw_only=True)

    def solve(self, alpha: float, columns: Index = ALL) -> SystemSolution:
        """Solve for the weights of some targets."""
        small, q = self.small, self.small.q[columns]
        if self.shared and (factor := self._tridiagonal_factor(alpha)):
            T, C = self._tridiagonal, self._rotated[0][:, columns]
            x = factor.solve(C)
            # q − 2⟨x, C⟩ + ⟨x, Tx⟩ with Tx = C − αx
            squares = np.maximum(q - (x * (C + alpha * x)).sum(axis=0), 0)
            return SystemSolution(T.basis @ x, squares, quadratic(T, x), alpha, small.n, T, small.C[:, columns], factor)
        # if Cholesky fails for one penalty it fails for others: they share one eigendecomposition
        dense = factorize(small.G, alpha, n_rows=self.rows, condition=self.condition, spectrum=lambda: self.spectrum)
        C = small.C[:, columns]
        w = dense.solve(C)
        predicted = quadratic(small.G, w)
        return SystemSolution(w, squared_error(q, C, w, predicted), predicted, alpha, small.n, small.G, C, dense)

    def error(self, solution: SystemSolution) -> Errors | None:
        """Estimate the error of predictions, if the errors of the moments are known."""
        if self.estimate is None:
            return None
        changes = self.estimate.changes if solution.factor.basis is None else self._rotated[1]
        return prediction_errors(self.estimate, solution, changes)

    def effective_dof(self, solution: SystemSolution) -> float:
        """Compute tr G(G + αI)⁻¹."""
        return solution.factor.effective_dof(solution.G, solution.alpha)

    def diagnose(self, solution: SystemSolution, diagnostics: SolveDiagnostics) -> None:
        """Record residual, condition, effective degrees of freedom and errors of predictions."""
        G, factor, alpha, ratios = solution.G, solution.factor, solution.alpha, {}
        if isinstance(G, np.ndarray) and isinstance(factor, DenseFactor):
            ratios = factor.ratios(G, solution.C, alpha, solution.w)
        factor.diagnose(G, ratios, alpha, diagnostics)
        if self.estimate is not None:
            diagnostics.errors = self.error(solution)

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues (r,), rising, and eigenvectors (r, r) of G."""
        # NumPy's routine releases the interpreter lock, SciPy's does not
        values, vectors = np.linalg.eigh(self.small.G)
        return values, vectors

    @cached_property
    def _tridiagonal(self) -> Tridiagonal:
        return Tridiagonal(*blas.tridiagonal(self.small.G))

    @cached_property
    def _rotated(self) -> tuple[Array, Array]:
        """QᵀC (r, c), and Qᵀ times the known changes of Hw."""
        c = self.small.C.shape[1]
        rotated = self._tridiagonal.basis.T @ np.hstack(
            [self.small.C, *([self.estimate.changes] if self.estimate else [])]
        )
        return rotated[:, :c], rotated[:, c:]

    def _tridiagonal_factor(self, alpha: float) -> Factor | None:
        """Factor T + αI if α exceeds rounding, so that `factorize` would use a Cholesky factor; else None."""
        G = self.small.G
        if not len(G):
            return None
        scale, relative = float(np.abs(np.diagonal(G) + alpha).max()), _relative_rounding(len(G), self.rows)
        # the least eigenvalue of G is above −α/2
        stands_out = alpha > relative * scale > 0 and self._tridiagonal.factorize(alpha / 2) is not None
        return self._tridiagonal.factorize(alpha) if stands_out else None


@dataclass(frozen=True, eq=False)
class WhitenedGram:
    """Products with TᵀGT (p, p) of centred moments, or of those about 0 if their mean μ (p,) is given.

    `moments` are about any point; `whitening` is of a core of full rank.
    """

    moments: Moments
    whitening: Whitening
    mean: Array | None

    def __len__(self) -> int:
        return int(self.whitening.rank)

    def __matmul__(self, w: Array) -> Array:
        return np.asarray(self.whitening.reduce(self.of_landmarks(self.whitening.expand(w))))

    def of_landmarks(self, B: Array) -> Array:
        """Compute GB of coefficients B over the landmarks, (p, c)."""
        G, s, n = self.moments.G, self.moments.s, self.moments.n
        own = on_device.placed(G)
        product = (B.T @ G).T if own is None else own.times(B)  # G is symmetric; BLAS is twice as fast this way
        out: Array = product - np.outer(s, (s @ B) / n)
        return out if self.mean is None else out + np.outer(self.mean, n * (self.mean @ B))

    def penalised_times(self, alpha: float, B: Array) -> Array:
        """Compute MB, about the mean."""
        assert self.whitening.core is not None
        return np.asarray(replace(self, mean=None).of_landmarks(B) + alpha * (self.whitening.core @ B))


@dataclass(frozen=True, eq=False)
class UnrotatedFactor(Factor):
    """H by M = RᵀR, R in the upper triangle of `upper` (p, p), in column order."""

    gram: WhitenedGram
    upper: Array
    along: Array | None = None  # g (p,); None: moments are centred
    pivot: float = 0.0  # 1/n + μᵀg

    def solve(self, C: Array) -> Array:
        return self.gram.whitening.weights(self._landmarks(C))

    def quadratic(self, G: Gram, C: Array) -> Array:
        B = self._landmarks(C)
        return np.asarray((B * self.gram.of_landmarks(B)).sum(axis=0))

    def image(self, G: Gram, C: Array) -> Array:
        return np.asarray(self.gram.whitening.reduce(self.gram.of_landmarks(self._landmarks(C))))

    def _landmarks(self, C: Array) -> Array:
        """Compute H⁻¹C as coefficients over the landmarks."""
        right = self.gram.whitening.restore(C)
        out = solve_factored(self.upper, right, lower=False)
        if self.along is not None:
            out -= np.outer(self.along, (self.along @ right) / self.pivot)
        return out


Gram = Array | Tridiagonal | WhitenedGram  # G (r, r), or what gives products with it


def factorize_unrotated(gram: WhitenedGram, alpha: float) -> UnrotatedFactor | None:
    """Factor gram + αI; None if `factorize` might not use a Cholesky factor.

    That is if the penalty does not exceed the rounding of moments, or these have eigenvalues below −α/2.
    """
    G, s, n, core = gram.moments.G, gram.moments.s, gram.moments.n, gram.whitening.core
    assert core is not None
    v, largest = probes(len(G), 1), 0.0
    for _ in range(_POWERS):  # estimates the largest eigenvalue from below
        v = gram @ (v / max(frobenius(v), 1e-300))
        largest = frobenius(v)
    if not alpha > _relative_rounding(len(G), gram.moments.rows) * (_MARGIN * largest + alpha) > 0:
        return None
    # the lower triangle of M, in row order; the upper one is undefined
    K, M, means = core.array.T, np.empty(G.shape), s / n
    for i in range(0, len(G), _STRIP):
        j = min(i + _STRIP, len(G))
        # G − ssᵀ/n + αK
        strip = np.multiply(K[i:j, :j], alpha, out=M[i:j, :j])
        strip += G[i:j, :j]
        strip -= np.outer(means[i:j], s[:j])
    M[np.diag_indices(len(M))] = np.diagonal(G) - means * s + alpha * core.diagonal
    if blas.cholesky(M, lower=True):
        return None
    factor = UnrotatedFactor(gram, M.T)
    # g = M⁻¹μ and 1/n + μᵀg, which take M to moments about 0
    if gram.mean is not None:
        along = solve_factored(factor.upper, gram.mean[:, None], lower=False)[:, 0]
        factor = replace(factor, along=along, pivot=float(1 / n + gram.mean @ along))
    # an eigenvalue of H far below α is rounding
    least = residuals.smallest_eigenvalue(factor.solve, len(G))
    if not least > alpha / 2:
        return None
    return replace(factor, condition=(largest + alpha) / least, rounding=max(alpha - least, 0.0))


def nystrom_ridge(
    moments: Moments,
    whitening: Whitening,
    alpha: Penalties,
    *,
    fit_intercept: bool = False,
    diagnostics: SolveDiagnostics | None = None,
    estimate: RoundingEstimate | None = None,
) -> tuple[Array, Array, Array]:
    """Solve ridge on the map; return coefficients over landmarks (p, c), intercept (c,), training squared error (c,).

    For a landmark map this is Nyström KRR, min ‖Ba + 1b − Y‖² + α aᵀK_mma (Williams & Seeger 2000). With an `estimate`
    of the errors of the moments, the diagnostics take those of predictions. Penalties (c,) share the whitening. A
    single penalty needs no whitened moments if it and the core exceed rounding.
    """
    diagnostics = diagnostics or SolveDiagnostics()
    if np.ndim(alpha) == 0 and whitening.core is not None and moments.n > 0:
        result = _unrotated_ridge(moments, whitening, float(alpha), fit_intercept, diagnostics, estimate)
        if result is not None:
            return result
    # (TᵀGT + αI)w = TᵀC, about the means with an intercept
    raw, rotated, small = reduce_and_centre(moments, whitening, fit_intercept=fit_intercept)
    rounding = None
    if estimate is not None:
        rounding = estimate.with_solve(rounding_of_rotation(raw, rotated, whitening), moments.rows)
    del rotated
    system = RidgeSystem(small, moments.rows, whitening.condition, rounding)

    def solve(value: float, columns: Index, noted: SolveDiagnostics) -> tuple[Array, ...]:
        solution = system.solve(value, columns)
        system.diagnose(solution, noted)
        return solution.w, solution.squares

    w, error = by_penalty(alpha, len(small.q), diagnostics, solve)
    return whitening.expand(w), small.target_mean - small.mean @ w, error


def _unrotated_ridge(
    moments: Moments,
    whitening: Whitening,
    alpha: float,
    fit_intercept: bool,
    diagnostics: SolveDiagnostics,
    estimate: RoundingEstimate | None,
) -> tuple[Array, Array, Array] | None:
    """Solve `nystrom_ridge` by one Cholesky factor of G + αK; None if its rounding is too large."""
    core, n, target_mean = whitening.core, moments.n, moments.t / moments.n
    assert core is not None
    mean = moments.s / n if moments.shift is None else moments.s / n + moments.shift
    gram = WhitenedGram(moments, whitening, None if fit_intercept else mean)
    factor = factorize_unrotated(gram, alpha)
    if factor is None:
        return None
    # MB = C − sȳᵀ about the means, B = Tw
    right = moments.C - np.outer(moments.s, target_mean)
    coef, C, of_mean = solve_factored(factor.upper, right, lower=False), whitening.reduce(right), whitening.reduce(mean)
    if factor.along is None:
        q = np.maximum(moments.q - n * target_mean**2, 0)
    else:
        # MₒB = C + n μȳᵀ is MB = C + μtᵀ: no sums about 0, which are large
        t = (target_mean - factor.along @ right) / factor.pivot
        coef, right = coef + np.outer(factor.along, t), right + np.outer(mean, t)
        C, q = C + np.outer(n * of_mean, target_mean), moments.q
    w, predicted = whitening.weights(coef), (coef * gram.of_landmarks(coef)).sum(axis=0)
    error = squared_error(q, C, w, predicted)
    # rounding of the factor is probed like that of a rotation, by (RᵀR − M)v for the vectors v = Tz of a probe
    v, upper = whitening.expand(probes(whitening.rank, VECTORS)), factor.upper
    product = times_triangle(upper, times_triangle(upper, v, lower=False), lower=False, transposed=True)
    error_z = whitening.reduce(product - gram.penalised_times(alpha, v))
    rounding = (estimate or RoundingEstimate(np.zeros(len(error_z)), None)).with_solve(error_z, moments.rows)
    errors = prediction_errors(
        rounding, SystemSolution(w, error, predicted, alpha, n, gram, C, factor), rounding.changes
    )
    # beyond that moments are rotated
    if not errors.solve <= _SOLVED:
        return None
    size = frobenius(moments.G) + alpha * frobenius(core.diagonal)  # at most ‖G‖ + α‖K‖
    left = gram.penalised_times(alpha, coef) - right
    factor.diagnose(gram, {"solution": residuals.of_residual(left, size, coef, right)}, alpha, diagnostics)
    diagnostics.errors = None if estimate is None else errors
    return coef, target_mean - of_mean @ w if fit_intercept else np.zeros_like(target_mean), error

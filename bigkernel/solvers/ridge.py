"""The linear system of ridge regression, (G + αI)w = C in whitened coordinates, for one penalty or many.

`RidgeSystem` solves it, estimates the error of its predictions and counts its degrees of freedom. How G + αI is
factored depends on what is asked:
    Cholesky      α stands out from the rounding of G
    eigenvectors  it does not, or G + αI is singular
    tridiagonal   many penalties: with G = QTQᵀ a penalty more costs a product with Q, w = Q(T + αI)⁻¹QᵀC
    unrotated     one penalty of a core K = ΠᵀLLᵀΠ kept whole: T = ΠᵀL⁻ᵀ is square, so that of columns of the map
                      H = TᵀGT + αI = TᵀMT,   M = G + αK,   H⁻¹ = LᵀΠ M⁻¹ ΠᵀL,
                  and no m³ goes into TᵀGT. M is factored about the mean μ of the columns, where its entries are
                  smallest; about 0 it is Mₒ = M + n μμᵀ, and with g = M⁻¹μ, Mₒ⁻¹B = M⁻¹B − g gᵀB / (1/n + μᵀg)
`triangle_ridge.RowSystem` is the same of rows whose moments float64 cannot carry, by QR.

Shapes: p columns of the map, r whitened coordinates, c targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels import blas
from bigkernel.solvers import residuals
from bigkernel.solvers.accuracy import (
    VECTORS,
    Errors,
    Evidence,
    Variances,
    directions,
    variances,
    variances_of,
)
from bigkernel.solvers.residuals import Certificates, frobenius, probes
from bigkernel.solvers.triangles import clear_upper, regularised, solve_factored, solve_lower, times_triangle
from bigkernel.solvers.whitening import Reduced, Whitening, centred
from bigkernel.statistics.moments import Moments

Columns = slice | Array
ALL = slice(None)
SHARED = 8  # penalties from which on a tridiagonal form costs less than their Cholesky factors
_COARSE = 1e-4  # rounding of moments beyond this share of their largest eigenvalue is no level to cut at
_SOLVED = 1e-8  # of predictions, that rounding may move before moments are rotated, if the other errors allow it
_CLEAR = 10.0  # times its rounding, that an eigenvalue must be to be known
_STRIP = 128  # rows of M that are made at a time
_POWERS = 4  # steps towards the largest eigenvalue
_MARGIN = 2.0  # by which they may stay below it


def require_alpha(alpha: Any) -> None:
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
    alpha: float | Array,
    count: int,
    certificates: Certificates | None,
    solve: Callable[[float, Columns, Certificates | None], tuple[Array, ...]],
) -> tuple[Array, ...]:
    """Solve for the targets of each penalty together, and keep the worst of each figure.

    `alpha` is a number, or one for each of the `count` targets, else `DataError`. `solve` goes from a penalty and the
    places of its targets to arrays whose last axis these are.
    """
    if np.ndim(alpha) == 0:
        return solve(float(alpha), ALL, certificates)
    alphas = np.asarray(alpha, np.float64)
    if alphas.shape != (count,):
        raise DataError(f"alpha: expected a number, or one for each of {count} targets, found {len(alphas)} of them")
    joined: list[Array] = []
    for value in np.unique(alphas):
        columns, own = np.flatnonzero(alphas == value), Certificates()
        parts = solve(float(value), columns, None if certificates is None else own)
        joined = joined or [np.zeros((*part.shape[:-1], count)) for part in parts]
        for whole, part in zip(joined, parts, strict=True):
            whole[..., columns] = part
        if certificates is not None:
            certificates.take_worst(own)
    return tuple(joined)


@dataclass(frozen=True, eq=False, kw_only=True)
class Factor(ABC):
    """H = G + αI factored."""

    condition: float = 1.0  # about that of H, of what is kept
    rounding: float = 0.0  # how far below 0 eigenvalues of G reach, which has none; 0 where that does not stand out
    hidden: int = 0  # in how many directions rounding hides the eigenvalue, so that another was taken or none
    dropped: Array | None = None  # (r, r − k) the directions left out as null
    basis: Array | None = None  # Q (r, r) of which these are the coordinates

    @abstractmethod
    def solve(self, C: Array) -> Array:
        """H⁻¹C, (r, c): of least norm where H is singular."""

    def quadratic(self, G: Any, C: Array) -> Array:
        """xᵀGx of every column x of H⁻¹C, (c,)."""
        return quadratic(G, self.solve(C))

    def image(self, G: Any, C: Array) -> Array:
        """GH⁻¹C, (r, c)."""
        return np.asarray(G @ self.solve(C))

    def effective_dof(self, G: Any, alpha: float) -> float:
        """tr GH⁻¹: how many parameters the data determine."""
        return residuals.effective_dof(len(G), alpha, self.solve)

    def unseen(self, C: Array) -> Array:
        """C along the directions that were dropped as null, (r − k, c)."""
        return np.zeros((0, C.shape[1])) if self.dropped is None else np.asarray(self.dropped.T @ C)

    def certify(self, G: Any, ratios: dict[str, float], alpha: float, certificates: Certificates) -> None:
        """Leave the ratios of a solution, the condition and the effective degrees of freedom."""
        if len(G):
            certificates.ratios.update(ratios)
            certificates.figures["effective_dof"] = self.effective_dof(G, alpha)
        certificates.figures["solved_condition"] = self.condition
        certificates.meet(self.rounding, alpha)


@dataclass(frozen=True, eq=False)
class CholeskyFactor(Factor):
    """H = LLᵀ, `lower` L (r, r)."""

    lower: Array

    def solve(self, C: Array) -> Array:
        return solve_factored(self.lower, C, lower=True)

    def half(self, C: Array) -> Array:
        """H^−½C, up to a rotation, (r, c)."""
        return solve_lower(self.lower, C)

    def ratios(self, G: Array, C: Array, alpha: float, w: Array) -> dict[str, float]:
        """How well w solves (G + αI)w = C."""
        return {"solution": residuals.solution(G, alpha, w, C)}


@dataclass(frozen=True, eq=False)
class SpectralFactor(Factor):
    """H by eigenvectors: its eigenpairs that are kept, (k,) and (r, k), and those values of G alone, (k,)."""

    values: Array
    vectors: Array
    plain: Array

    def solve(self, C: Array) -> Array:
        return np.asarray(self.vectors @ ((self.vectors.T @ C) / self.values[:, None]))

    def half(self, C: Array) -> Array:
        """H^−½C, up to a rotation, (k, c)."""
        return np.asarray((self.vectors.T @ C) / np.sqrt(self.values)[:, None])

    def quadratic(self, G: Array, C: Array) -> Array:
        return np.asarray(((self.vectors.T @ C) ** 2 * (self.plain / self.values**2)[:, None]).sum(axis=0))

    def effective_dof(self, G: Array, alpha: float) -> float:
        return float((np.maximum(self.plain, 0) / self.values).sum())

    def ratios(self, G: Array, C: Array, alpha: float, w: Array) -> dict[str, float]:
        """How well w solves (G + αI)w = C, and the eigenpairs."""
        if not len(G):
            return {}
        solution = residuals.solution(self.values, 0.0, self.vectors.T @ w, self.vectors.T @ C)
        eigen, orthogonality = residuals.eigen(G, self.plain, self.vectors)
        return {"solution": solution, "eigen": eigen, "orthogonality": orthogonality}


DenseFactor = CholeskyFactor | SpectralFactor


def factorize(
    G: Array, alpha: float, *, n_rows: float = 0.0, condition: float = 1.0, spectrum: Callable[[], Any] | None = None
) -> DenseFactor:
    """Factor G + αI, G (r, r) positive semi-definite, alpha ≥ 0; see `ridge`. `spectrum()` gives eigh(G).

    A G with eigenvalues below −α/2, down to −ν, is one whose rounding exceeds the penalty: little is known of what its
    eigenvalues below ν are, and none is taken to be less than ν/4 (without a penalty: they are null). Errors on digits,
    m = 4,000, σ = 1.4, α = 0.01, float32: 2.4 % with ν/4, as in float64; 2.7 % with ν, 2.9 % with nothing.
    """
    require_alpha(alpha)
    if not len(G):
        return SpectralFactor(np.zeros(0), np.zeros((0, 0)), np.zeros(0), dropped=np.zeros((0, 0)))
    regular = regularised(G, alpha)
    scale, norm = float(np.abs(np.diagonal(regular)).max()), float(linalg.lapack.dlange("1", regular))
    relative = _relative_rounding(len(G), n_rows)
    penalised = alpha > relative * scale
    if not penalised:  # rounding of the moments, which whitening amplifies, is not a direction
        relative = min(relative * condition, max(relative, 1e-8))
    if scale > 0:
        lower, info = clear_upper(regular), blas.cholesky(regular, lower=True)
        # pivots of rounding let a singular matrix pass: its condition tells, or its least eigenvalue, at least α
        if info == 0 and penalised:
            least = residuals.smallest_eigenvalue(lower)
            if least > alpha / 2:
                return CholeskyFactor(lower, condition=norm / least, rounding=max(alpha - least, 0.0))
        elif info == 0:
            reciprocal = float(linalg.lapack.dpocon(lower, norm, uplo="L")[0])
            if reciprocal <= relative and alpha > 0:
                # of G + αI scaled to a diagonal of ones: Cholesky loses no more, however its directions differ in size
                unit = 1 / np.sqrt(np.diagonal(G) + alpha)
                norm_ = float(linalg.lapack.dlange("1", regularised(G, alpha) * np.outer(unit, unit)))
                reciprocal = float(linalg.lapack.dpocon(lower * unit[:, None], norm_, uplo="L")[0])
            if reciprocal > relative:
                return CholeskyFactor(lower, condition=1 / reciprocal)
    plain, vectors = linalg.eigh(G, driver="evd") if spectrum is None else spectrum()
    largest = max(float(np.abs(plain + alpha).max(initial=0.0)), 1e-300)
    rounding, null, values = max(-float(plain[0]), 0.0), relative * largest, plain + alpha
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
        hidden=int((plain < rounding).sum()) if rounding > alpha else 0,
    )


def _relative_rounding(size: int, rows: float) -> float:
    return 10 * max(size, rows) * float(np.finfo(np.float64).eps)


def ridge(G: Array, C: Array, alpha: float, *, n_rows: float = 0.0, certificates: Certificates | None = None) -> Array:
    """w = (G + αI)⁻¹C by Cholesky; the minimum-norm solution where that matrix is singular.

    `n_rows` are behind G, for what counts as null; the certificates take the residual, the condition, the effective
    degrees of freedom and the rounding of G.
    """
    factor = factorize(G, alpha, n_rows=n_rows)
    w = factor.solve(C)
    if certificates is not None:
        factor.certify(G, factor.ratios(G, C, alpha, w), alpha, certificates)
    return w


def quadratic(G: Any, w: Array) -> Array:
    """wᵀGw of every column of w (r, c), (c,)."""
    return np.asarray((w * (G @ w)).sum(axis=0))


def squared_error(small: Reduced, w: Array, predicted: Array | None = None) -> Array:
    """Training Σ w (y − f)² per target, (c,): q − 2⟨w, C⟩ + ⟨w, Gw⟩; the last is `predicted` where it is known."""
    predicted = quadratic(small.G, w) if predicted is None else predicted
    return np.asarray(np.maximum(small.q - 2 * (w * small.C).sum(axis=0) + predicted, 0))


@dataclass(frozen=True, eq=False)
class Tridiagonal:
    """T = QᵀGQ: its diagonal (r,), what is beside it (r − 1,), and Q (r, r)."""

    diagonal: Array
    beside: Array
    basis: Array

    def __len__(self) -> int:
        return len(self.diagonal)

    def __matmul__(self, x: Array) -> Array:
        out = self.diagonal[:, None] * x
        out[:-1] += self.beside[:, None] * x[1:]
        out[1:] += self.beside[:, None] * x[:-1]
        return out

    def factorize(self, alpha: float) -> Factor | None:
        """T + αI = LDLᵀ; None where it is not positive definite."""
        d, e = self.diagonal + alpha, self.beside
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
class Solution:
    """Weights w (r, c) and training squared errors (c,) of some targets."""

    w: Array
    squares: Array
    alpha: float
    predicted: Array  # wᵀGw (c,)
    system: Reduced  # what was solved, in the coordinates of the factor
    factor: Factor


def prediction_errors(
    known: Variances, small: Reduced, fit: tuple[Array, Array, Array], solver: Factor, changes: Array
) -> Errors:
    """The errors of predictions of a fit (w, squared errors, wᵀGw); see `solvers.accuracy`.

    G of `small` and the changes that are `known` are in the coordinates of the solver.
    """
    w, squares, predicted, n, d = fit[0], float(fit[1].sum()), float(fit[2].sum()), small.n, known.blocks
    if not w.any() or predicted == 0:
        # columns that do not vary although they are rounded may hide all that there is to fit
        hidden = d is not None and bool(d.any()) and squares > 0
        return Errors(0.0, 0.0, np.inf if hidden else 0.0, widest=known.widest)
    if not predicted > 0:  # G is all rounding
        return Errors(np.inf, np.inf, 0.0 if d is None else np.inf)
    # all at once: a solve and a product with G are dear
    moved, signs = changes[:, : 2 * VECTORS], changes[:, :0]
    if d is not None:
        own = n * d[:, None] * w
        own = own if solver.basis is None else solver.basis.T @ own
        moved, signs = np.hstack([changes[:, : 3 * VECTORS], own]), changes[:, 3 * VECTORS :]
    # ‖predictions‖² of the changes H⁻¹x; where rounding has made G negative, its size
    power = np.abs(solver.quadratic(small.G, moved))
    of_sums, of_solve, of_values = (float(power[i : i + VECTORS].sum()) for i in (0, VECTORS, 2 * VECTORS))

    def of_matrix(a: Array, changed: float) -> float:
        total = float(a.sum())
        # a may be near the end of the range
        return changed / VECTORS * (float((a @ w**2).sum()) / total) if total else 0.0

    blocks = 0.0
    if d is not None:
        seen, of_rows = float((d @ w**2).sum()), float((solver.image(small.G, signs) ** 2).sum())
        blocks = (of_values * squares + seen * of_rows) / VECTORS + float(power[3 * VECTORS :].sum()) + n * seen
    # in directions that are hidden, least squares would fit as much of the residual as chance would
    chance = squares / max(known.rows, 1.0)
    lost, doubt = solver.hidden * chance, 0.0
    if (V := solver.dropped) is not None:
        # and along those that were dropped although sums resolve them, what it would have
        values = (V * (small.G @ V)).sum(axis=0)
        clear = values > _CLEAR * np.sqrt((V**2 * (known.sums + known.solve)[:, None]).sum(axis=0))
        lost += float(((V[:, clear].T @ small.C) ** 2 / values[clear, None]).sum())
        # the whitening kept the others too: a QR factorisation tells whether they are null
        doubt = float(np.sqrt((~clear).sum() * chance / predicted))
    parts = of_matrix(known.sums, of_sums), of_matrix(known.solve, of_solve) + lost, blocks
    sums, solve, of_blocks = (float(np.sqrt(part / predicted)) for part in parts)
    return Errors(sums, solve, of_blocks, widest=known.widest, doubt=doubt)


class System(Protocol):
    """A linear system of ridge regression, however it is factored."""

    @property
    def n_targets(self) -> int: ...
    def solve(self, alpha: float, columns: Columns = ALL) -> Any: ...
    def certify(self, solution: Any, certificates: Certificates) -> None: ...


def solve_targets(system: System, alpha: float | Array, certificates: Certificates | None) -> tuple[Array, Array]:
    """Weights (r, c) and squared errors (c,) of all targets, with one penalty or one for each."""

    def solve(value: float, columns: Columns, noted: Certificates | None) -> tuple[Array, Array]:
        solution = system.solve(value, columns)
        if noted is not None:
            system.certify(solution, noted)
        return solution.w, solution.squares

    w, squares = by_penalty(alpha, system.n_targets, certificates, solve)
    return w, squares


class RidgeSystem:
    """(G + αI)w = C for any α and some of the targets, from moments in the coordinates of the ridge.

    `rows` are behind the moments, `condition` is that of the whitening (see `factorize`), `known` what is known of the
    errors behind them, without which those of predictions are not estimated. `shared`: by the tridiagonal form wherever
    rounding leaves α alone, which pays from `SHARED` penalties on.
    """

    def __init__(
        self,
        small: Reduced,
        rows: float,
        condition: float = 1.0,
        known: Variances | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.small, self.rows, self._condition, self._known = small, rows, condition, known
        self._shared, self.n_targets = shared, int(small.C.shape[1])

    def solve(self, alpha: float, columns: Columns = ALL) -> Solution:
        """Weights of some targets."""
        part = self.small.of_targets(columns)
        if self._shared and (factor := self._tridiagonal_factor(alpha)):
            T, C = self._tridiagonal, self._turned[0][:, columns]
            x = factor.solve(C)
            # q − 2⟨x, C⟩ + ⟨x, Tx⟩ with Tx = C − αx
            squares = np.maximum(part.q - (x * (C + alpha * x)).sum(axis=0), 0)
            return Solution(T.basis @ x, squares, alpha, quadratic(T, x), replace(part, G=T), factor)
        # where Cholesky fails for one penalty it fails for others: one decomposition serves them all
        dense = factorize(part.G, alpha, n_rows=self.rows, condition=self._condition, spectrum=lambda: self.spectrum)
        w = dense.solve(part.C)
        predicted = quadratic(part.G, w)
        return Solution(w, squared_error(part, w, predicted), alpha, predicted, part, dense)

    def error(self, solution: Solution) -> Errors | None:
        """The error of predictions, where something is known of what is behind the moments."""
        if self._known is None:
            return None
        changes = self._known.changes if solution.factor.basis is None else self._turned[1]
        fit = solution.w, solution.squares, solution.predicted
        return prediction_errors(self._known, solution.system, fit, solution.factor, changes)

    def effective_dof(self, solution: Solution) -> float:
        """tr G(G + αI)⁻¹."""
        return solution.factor.effective_dof(solution.system.G, solution.alpha)

    def certify(self, solution: Solution, certificates: Certificates) -> None:
        """Leave residual, condition, effective degrees of freedom and errors of predictions."""
        part, factor, alpha = solution.system, solution.factor, solution.alpha
        ratios = factor.ratios(part.G, part.C, alpha, solution.w) if isinstance(factor, DenseFactor) else {}
        factor.certify(part.G, ratios, alpha, certificates)
        if self._known is not None:
            certificates.errors = self.error(solution)

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues (r,), rising, and eigenvectors (r, r) of G."""
        # NumPy's, unlike SciPy's, lets other threads work meanwhile
        values, vectors = np.linalg.eigh(self.small.G)
        return values, vectors

    @cached_property
    def _tridiagonal(self) -> Tridiagonal:
        return Tridiagonal(*blas.tridiagonal(self.small.G))

    @cached_property
    def _turned(self) -> tuple[Array, Array]:
        """QᵀC (r, c), and Qᵀ of the changes of Hw that are known."""
        c = self.n_targets
        turned = self._tridiagonal.basis.T @ np.hstack([self.small.C, *([self._known.changes] if self._known else [])])
        return turned[:, :c], turned[:, c:]

    def _tridiagonal_factor(self, alpha: float) -> Factor | None:
        """T + αI factored where α stands out from rounding, so that `factorize` would take a Cholesky factor."""
        G = self.small.G
        if not len(G):
            return None
        scale, relative = float(np.abs(np.diagonal(G) + alpha).max()), _relative_rounding(len(G), self.rows)
        # the least eigenvalue of G is above −α/2
        stands_out = alpha > relative * scale > 0 and self._tridiagonal.factorize(alpha / 2) is not None
        return self._tridiagonal.factorize(alpha) if stands_out else None


@dataclass(frozen=True, eq=False)
class WhitenedGram:
    """TᵀGT (p, p) of centred moments, or with their mean μ (p,) of those about 0, as far as products tell of it.

    `moments` are about any point; `whitening` is of a core that is known and kept whole.
    """

    moments: Moments
    whitening: Whitening
    mean: Array | None

    def __len__(self) -> int:
        return int(self.whitening.rank)

    def __matmul__(self, w: Array) -> Array:
        return np.asarray(self.whitening.reduce(self.of_landmarks(self.whitening.expand(w))))

    def of_landmarks(self, B: Array) -> Array:
        """GB of coefficients over the landmarks, (p, c)."""
        G, s, n = self.moments.G, self.moments.s, self.moments.n
        out: Array = (B.T @ G).T - np.outer(s, (s @ B) / n)  # G is symmetric; so, BLAS is twice as fast
        return out if self.mean is None else out + np.outer(self.mean, n * (self.mean @ B))

    def penalised_times(self, alpha: float, B: Array) -> Array:
        """MB, about the mean."""
        assert self.whitening.core is not None
        return np.asarray(replace(self, mean=None).of_landmarks(B) + alpha * (self.whitening.core @ B))


@dataclass(frozen=True, eq=False)
class UnrotatedFactor(Factor):
    """H by M = RᵀR, R in the triangle `upper` (p, p) in column order."""

    gram: WhitenedGram
    upper: Array
    along: Array | None = None  # g (p,); None: moments are centred
    pivot: float = 0.0  # 1/n + μᵀg

    def solve(self, C: Array) -> Array:
        return self.gram.whitening.weights(self._landmarks(C))

    def quadratic(self, G: WhitenedGram, C: Array) -> Array:
        B = self._landmarks(C)
        return np.asarray((B * G.of_landmarks(B)).sum(axis=0))

    def image(self, G: WhitenedGram, C: Array) -> Array:
        return np.asarray(G.whitening.reduce(G.of_landmarks(self._landmarks(C))))

    def _landmarks(self, C: Array) -> Array:
        """H⁻¹C as coefficients over the landmarks."""
        right = self.gram.whitening.restore(C)
        out = solve_factored(self.upper, right, lower=False)
        if self.along is not None:
            out -= np.outer(self.along, (self.along @ right) / self.pivot)
        return out


def factorize_unrotated(gram: WhitenedGram, alpha: float) -> UnrotatedFactor | None:
    """Factor gram + αI; None where `factorize` would not rely on a Cholesky factor, or might not.

    That is where the penalty does not stand out from the rounding of moments, or these have eigenvalues below −α/2.
    """
    G, s, n, core = gram.moments.G, gram.moments.s, gram.moments.n, gram.whitening.core
    assert core is not None
    v, largest = probes(len(G), 1), 0.0
    for _ in range(_POWERS):  # about the largest eigenvalue, never above it
        v = gram @ (v / max(frobenius(v), 1e-300))
        largest = frobenius(v)
    if not alpha > _relative_rounding(len(G), gram.moments.rows) * (_MARGIN * largest + alpha) > 0:
        return None
    # the lower triangle of M, in row order; above it may stand anything
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
    if gram.mean is not None:
        along = solve_factored(M.T, gram.mean[:, None], lower=False)[:, 0]
        factor = replace(factor, along=along, pivot=float(1 / n + gram.mean @ along))
    least = residuals.smallest_of(factor.solve, len(G))
    if not least > alpha / 2:
        return None
    return replace(factor, condition=(largest + alpha) / least, rounding=max(alpha - least, 0.0))


def nystrom_ridge(
    moments: Moments,
    whitening: Whitening,
    alpha: float | Array,
    *,
    fit_intercept: bool = False,
    certificates: Certificates | None = None,
    evidence: Evidence | None = None,
) -> tuple[Array, Array, Array]:
    """Coefficients over the landmarks (p, c), intercept (c,) and training squared error (c,) of ridge on the map.

    For a landmark map this is Nyström KRR, min ‖Bα + 1b − Y‖² + λ αᵀK_mmα (Williams & Seeger 2000). From evidence of
    the errors behind the moments, the certificates take those of predictions. Penalties (c,) share the whitening.
    One penalty asks for no whitened moments where it and the core stand out from rounding.
    """
    if np.ndim(alpha) == 0 and whitening.core is not None and moments.n > 0:
        found = _unrotated_ridge(moments, whitening, float(alpha), fit_intercept, certificates, evidence)
        if found is not None:
            return found
    raw, rotated, small = centred(moments, whitening, fit_intercept=fit_intercept)
    known = None if evidence is None else variances(evidence, raw, rotated, whitening)
    del rotated
    w, error = solve_targets(RidgeSystem(small, moments.rows, whitening.condition, known), alpha, certificates)
    return whitening.expand(w), small.target_mean - small.mean @ w, error


def _unrotated_ridge(
    moments: Moments,
    whitening: Whitening,
    alpha: float,
    fit_intercept: bool,
    certificates: Certificates | None,
    evidence: Evidence | None,
) -> tuple[Array, Array, Array] | None:
    """`nystrom_ridge` by one Cholesky factor of G + αK; None where that does not solve as well as one can."""
    n, target_mean, none = moments.n, moments.t / moments.n, np.zeros_like(moments.t)
    mean = moments.s / n if moments.shift is None else moments.s / n + moments.shift
    gram = WhitenedGram(moments, whitening, None if fit_intercept else mean)
    factor = factorize_unrotated(gram, alpha)
    if factor is None:
        return None
    C = moments.C - np.outer(moments.s, target_mean)
    coef, right, upper = solve_factored(factor.upper, C, lower=False), C, factor.upper
    if factor.along is not None:
        # MₒB = C + n μȳᵀ is MB = C + μtᵀ: no sums about 0, which are large
        t = (target_mean - factor.along @ C) / factor.pivot
        coef, right = coef + np.outer(factor.along, t), C + np.outer(mean, t)
    C, of_mean = whitening.reduce(C), whitening.reduce(mean)
    if fit_intercept:
        small = Reduced(n, gram, C, np.maximum(moments.q - n * target_mean**2, 0), of_mean, target_mean)
    else:
        small = Reduced(n, gram, C + np.outer(n * of_mean, target_mean), moments.q, np.zeros_like(of_mean), none)
    w = whitening.weights(coef)
    predicted = (coef * gram.of_landmarks(coef)).sum(axis=0)
    error = squared_error(small, w, predicted)
    # rounding of the factor is seen as that of a rotation is: by (RᵀR − M)v for the vectors v = Tz of a witness
    v = whitening.expand(directions(whitening.rank))
    product = times_triangle(upper, times_triangle(upper, v, lower=False), lower=False, transposed=True)
    seen = whitening.reduce(product - gram.penalised_times(alpha, v))
    known = variances_of(evidence, seen, whitening, moments.rows)
    errors = prediction_errors(known, small, (w, error, predicted), factor, known.changes)
    if not errors.solve <= _SOLVED:
        return None
    if certificates is not None:
        assert whitening.core is not None
        size = frobenius(moments.G) + alpha * frobenius(whitening.core.diagonal)  # at most ‖G‖ + α‖K‖
        left = gram.penalised_times(alpha, coef) - right
        factor.certify(gram, {"solution": residuals.of_residual(left, size, coef, right)}, alpha, certificates)
        certificates.errors = None if evidence is None else errors
    return coef, small.target_mean - small.mean @ w, error

"""Ridge from the R factor of a QR factorisation of the rows, without squaring the condition.

Least squares on the rows is least squares on R (`statistics.qr`), and the penalty adds rows:
    min ‖Fw − Y‖² + ‖Pw‖²,   [F; P] = QS,   w = S⁻¹Qᵀ[Y; 0],
F = R T and P = √α I in whitened coordinates.

Rounding of R, of relative size ε in every column, changes predictions as noise of the columns does. With H = SᵀS and Δ
of independent entries added to R in F = RT,
    δ(Fw) = F H⁻¹(TᵀΔᵀ(Y − Fw)) − F H⁻¹Fᵀ Δ Tw,
where the second term is at most ‖ΔTw‖, and the first is estimated with a few vectors ξ of ±1 instead of the entries, as
is the rounding of F and S in the solve, and that of the blocks, both in values and in the core.
Shapes: p columns, r whitened coordinates, c targets, k rows of R.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array, Index
from bigkernel.solvers.gcv import best_of_rows
from bigkernel.solvers.posterior import Posterior, posterior_of_factor
from bigkernel.solvers.residuals import VECTORS, Errors, SolveDiagnostics, dof_vectors, probes
from bigkernel.solvers.ridge import ALL, CholeskyFactor, DenseFactor, Penalties, SpectralFactor, by_penalty
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.qr import FactoredRows

EPS = float(np.finfo(np.float64).eps)
NULL = 8.0  # singular values below this times ε√r of the largest are null


@dataclass(frozen=True, eq=False)
class Stacked:
    """The solution of min ‖Fw − Y‖² + ‖Pw‖² by [F; P] = QS and Qᵀ[Y; 0]."""

    F: Array  # (k, r)
    Y: Array  # (k, c)
    alpha: float
    S: Array  # (r, r) upper triangular
    z: Array  # (r, c), the first rows of Qᵀ[Y; 0]
    # U, values, Vᵀ of the singular values above rounding, where S is singular
    spectrum: tuple[Array, Array, Array] | None
    null: Array  # (r, ·) orthonormal basis of the null directions
    condition: float  # estimate for S without null directions
    left: float  # squared error of least squares

    @classmethod
    def of(cls, F: Array, Y: Array, alpha: float, penalty: Array | None = None, noise: float = 0.0) -> Stacked:
        """Factor F (k, r) with Y (k, c) and α; `penalty`: rows P (·, r) instead of √α I.

        `noise` is the norm of the rounding of F in units of ε times its norm, if it exceeds √r.
        """
        r = F.shape[1]
        below = np.sqrt(alpha) * np.eye(r) if penalty is None else penalty
        tall = np.zeros((len(F) + len(below), r + Y.shape[1]))
        tall[: len(F), :r], tall[: len(F), r:], tall[len(F) :, :r] = F, Y, below
        R: Array = np.asarray(np.linalg.qr(tall, mode="r"))
        # S, Qᵀ[Y; 0] above the residual, and the norm of the residual, all in one factor of [F, Y; P, 0]
        S, z, left = np.triu(R[:r, :r]), R[:r, r:], float((R[r:, r:] ** 2).sum())
        reciprocal = float(linalg.lapack.dtrcon(S, norm="1", uplo="U")[0]) if r else 1.0
        lost = NULL * EPS * max(np.sqrt(r), noise)
        if reciprocal > lost * np.sqrt(r):
            return cls(F, Y, alpha, S, z, None, np.zeros((r, 0)), 1 / reciprocal, left)
        U, values, Vt = linalg.svd(S, check_finite=False)
        keep = values > lost * values[0]
        condition = float(values[0] / values[keep][-1]) if keep.any() else 1.0
        return cls(F, Y, alpha, S, z, (U[:, keep], values[keep], Vt[keep]), Vt[~keep].T, condition, left)

    @cached_property
    def w(self) -> Array:
        """Weights (r, c), of least norm."""
        return self.solve(self.z)

    @property
    def squares(self) -> Array:
        """Squared errors (c,)."""
        return np.asarray(((self.F @ self.w - self.Y) ** 2).sum(axis=0))

    def inverse(self, X: Array) -> Array:
        """Compute H⁻¹X = S⁻¹S⁻ᵀX."""
        if self.spectrum is None:
            return self.solve(np.asarray(linalg.solve_triangular(self.S, X, trans="T", check_finite=False)))
        _, values, Vt = self.spectrum
        return np.asarray(Vt.T @ ((Vt @ X) / values[:, None] ** 2))

    def solve(self, X: Array) -> Array:
        """Compute S⁻¹X, of least norm."""
        if self.spectrum is None:
            return np.asarray(linalg.solve_triangular(self.S, X, check_finite=False))
        U, values, Vt = self.spectrum
        return np.asarray(Vt.T @ ((U.T @ X) / values[:, None]))


@dataclass(frozen=True, eq=False)
class RowSystem:
    """The ridge system by QR of the rows, with the interface of `ridge.RidgeSystem`."""

    F: Array  # (k, r)
    Y: Array  # (k, c)
    factored: Array  # (p,) norms of the columns, which scale the rounding of R
    values: Array  # (p,) norms of the rounding of the columns in the blocks
    rows: float  # number of rows
    n: float  # Σw
    reduce: Callable[[Array], Array]  # TᵀX of X (p, ·)
    expand: Callable[[Array], Array]  # Tw
    advice: str = Errors.advice

    def solve(self, alpha: float, columns: Index = ALL, *, penalty: Array | None = None, noise: float = 0.0) -> Stacked:
        """Solve for the weights of some targets; see `Stacked.of`."""
        return Stacked.of(self.F, self.Y[:, columns], alpha, penalty, noise)

    def effective_dof(self, solution: Stacked) -> float:
        """Compute tr FH⁻¹Fᵀ."""
        # ‖FS⁻¹V‖²
        S, V = solution, dof_vectors(self.F.shape[1])
        if S.spectrum is not None:
            _, values, Vt = S.spectrum
            return float(((self.F @ (Vt.T / values)) ** 2).sum())
        return float(((self.F @ S.solve(V)) ** 2).sum()) * len(V) / max(float((V * V).sum()), 1.0)

    def diagnose(self, solution: Stacked, diagnostics: SolveDiagnostics, coef: Array | None = None) -> None:
        """Record condition, effective degrees of freedom and errors; `coef`: replaces Tw."""
        diagnostics.figures["effective_dof"] = self.effective_dof(solution)
        diagnostics.figures["solved_condition"] = solution.condition
        diagnostics.errors = self.error(solution, coef)

    def error(self, solution: Stacked, coef: Array | None = None) -> Errors:
        """Estimate the errors of predictions, relative to their norm; see the module."""
        F, Y, w = self.F, solution.Y, solution.w
        coef = self.expand(w) if coef is None else coef
        predicted = float(((F @ w) ** 2).sum())
        if not w.any() or not predicted > 0:
            return Errors(0.0, 0.0, 0.0, self.advice)
        k, r, left_squares = len(F), F.shape[1], float(solution.squares.sum())

        def power(X: Array) -> float:
            """Compute the mean square change of predictions by changes X (r, VECTORS) of Hw."""
            return float(((F @ solution.inverse(X)) ** 2).sum()) / VECTORS

        def along(lengths: Array) -> float:
            return float(((lengths[:, None] * coef) ** 2).sum())

        def of_columns(lengths: Array) -> float:
            return power(self.reduce(lengths[:, None] * probes(len(lengths), VECTORS)))

        of_S = np.linalg.norm(solution.S, axis=0)
        # F H⁻¹TᵀΔᵀ(Y − Fw), ΔTw and the rounding of Y: Δ of relative size ε in the columns of R
        sums = of_columns(self.factored) * left_squares / k + along(self.factored) + float((Y**2).sum())
        # the same for [F; P], whose residual is that of the least squares in S
        rest = solution.left + float(((solution.S @ w - solution.z) ** 2).sum())
        solve = power(of_S[:, None] * probes(r, VECTORS)) * rest / r + float(((of_S[:, None] * w) ** 2).sum())
        # ΔTw of the rounding of kernel values, and of F H⁻¹TᵀΔᵀ(Y − Fw) with a residual a row
        blocks = along(self.values)
        if self.values.any():  # noise of a row multiplies its residual, and noise of the core α times the coefficients
            penalty = solution.alpha**2 * float((coef**2).sum()) / max(self.n, 1e-300)
            blocks += of_columns(self.values) * (left_squares / max(self.rows, 1.0) + penalty)
        sums, solve, blocks = (float(np.sqrt(one / predicted)) for one in (EPS**2 * sums, EPS**2 * solve, blocks))
        return Errors(sums, solve, blocks, self.advice)


def nystrom_ridge_of(
    R: Array,
    shift: Array | None,
    whitening: Whitening,
    alpha: Penalties | str,
    *,
    fit_intercept: bool,
    rows: float,
    noise: float,
    diagnostics: SolveDiagnostics,
) -> tuple[Array, Array, Array, Penalties]:
    """Solve `ridge.nystrom_ridge` from R; return coefficients (p, c), intercept and squared errors (c,), and α.

    R (q, q) is about `shift` (p,) or 0 in the columns, and 0 in the targets; `rows` is the number of labelled rows of
    positive weight. "gcv" chooses α from the same rows. `noise` is the standard deviation of block values.
    """
    small = FactoredRows.of(R, shift, whitening.width, centred=fit_intercept)
    # F = RT; noise of kernel values moves each column by √n times its deviation
    F = np.ascontiguousarray(whitening.reduce(small.columns.T).T)
    values = np.full(whitening.width, noise * np.sqrt(small.n))
    penalty = best_of_rows(F, small.targets, rows, fit_intercept=fit_intercept) if isinstance(alpha, str) else alpha
    system = RowSystem(F, small.targets, small.lengths, values, rows, small.n, whitening.reduce, whitening.expand)

    def solve(value: float, chosen: Index, noted: SolveDiagnostics) -> tuple[Array, ...]:
        solution = system.solve(value, chosen)
        system.diagnose(solution, noted)
        return solution.w, solution.squares

    w, error = by_penalty(penalty, small.targets.shape[1], diagnostics, solve)
    intercept = small.target_mean - whitening.reduce(small.mean) @ w if fit_intercept else np.zeros(len(error))
    return whitening.expand(w), intercept, error, penalty


def qr_posterior(
    R: Array, shift: Array | None, whitening: Whitening, alpha: float, *, fit_intercept: bool, rows: float
) -> Posterior:
    """Build the posterior from the R factor (q, q) of so many rows about `shift` (p,); None: 0."""
    small = FactoredRows.of(R, shift, whitening.width, centred=fit_intercept)
    F = whitening.reduce(small.columns.T).T
    stacked = Stacked.of(F, np.zeros((len(F), 0)), alpha)
    # ΦᵀWΦ + αI = SᵀS
    factor: DenseFactor = CholeskyFactor(np.asfortranarray(stacked.S.T))
    if stacked.spectrum is not None:
        _, values, Vt = stacked.spectrum
        factor = SpectralFactor(values**2, Vt.T, values**2, dropped=stacked.null)
    mean = whitening.reduce(small.mean) if fit_intercept else np.zeros(whitening.rank)
    return posterior_of_factor(factor, whitening, mean, rows, alpha, 1 / small.n if fit_intercept else 0.0)

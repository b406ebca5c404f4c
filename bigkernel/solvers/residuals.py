"""Operations on dense m×m matrices in place, and diagnostics of the solves with them.

Symmetric m×m matrices are processed in place, some columns at a time, to save copies. Residuals are in units of
rounding, as in LAPACK's test programs.

    whitening   ‖ΠKΠᵀ − LLᵀ‖ / (m·ulp·‖K‖)                      of a Cholesky factor
    solution    ‖Aw − C‖ / (m·ulp·(‖A‖‖w‖ + ‖C‖))               of a linear solve
    eigen       ‖AZ − ZΛ‖ / (m·ulp·‖A‖),  ‖ZᵀZ − I‖ / (m·ulp)    of eigenpairs

A backward stable method has ratios of about 1 or less; LAPACK's programs accept ratios below 30 (Anderson et al.,
*LAPACK Users' Guide*, ch. 4; Higham 2002, §3.4). Norms are Frobenius norms. A residual matrix R is not formed: ‖R‖² is
estimated by the mean of ‖Rv‖² over a few fixed vectors v of ±1, in O(m²).
Shapes: A (m, m) symmetric, L (r, r) lower triangular, Z (m, k), w and C (m, c).
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.errors import AccuracyWarning, RankDeficiencyWarning
from bigkernel.kernels import blas, on_device
from bigkernel.kernels.blas import mirror

PROMISE = 1e-3  # largest error of predictions, relative to their norm, without a warning
ENOUGH = PROMISE / 3  # errors are estimated to about a factor of three
LIMIT = 30.0  # a larger ratio is not due to rounding
# Rounding ν of moments acts as a penalty of about ν/4. Unit rows of 60,000 digits in float32, σ from 0.5 to 1.4, m up
# to 4,000 and α = 0.01 reach ν up to 20 α and lose nothing; 17 noisy copies of each row, α = 1e-4, reach 3,000 α.
PENALTY_LOST = 100.0
PROBES = 2
VECTORS = 8  # number of vectors that probe the sums
DOF_PROBES = 8
EXACT_DOF = 512  # rank up to which the effective degrees of freedom are exact
_TINY = 1e-300
_STRIP = 256  # columns at a time


@dataclass(frozen=True, eq=False)
class Upper:
    """A symmetric matrix K (m, m) stored above the diagonal of `array`, in column order; the rest is used otherwise."""

    array: Array  # (m, m)
    diagonal: Array  # (m,) of K

    def __len__(self) -> int:
        return len(self.diagonal)

    def __matmul__(self, C: Array) -> Array:
        """Compute KC, (m, c)."""
        if (own := on_device.placed(self.array)) is not None:
            half = partial(own.times_triangle, C, lower=False, strict=True)
            return np.asarray(self.diagonal[:, None] * C + half() + half(transposed=True))
        # the strict upper triangle, as a triangle of order m − 1 in the columns from the second on
        above, out = self.array[:, 1:], np.asarray(self.diagonal[:, None] * C)
        if len(self) > 1:
            out[:-1] += times_triangle(above, C[1:], lower=False)
            out[1:] += times_triangle(above, C[:-1], lower=False, transposed=True)
        return out

    def select(self, some: Array) -> Array:
        """Return K of some rows and the same columns, (k, k)."""
        half = self.array[np.ix_(some, some)]
        out: Array = np.where(some[:, None] < some, half, half.T)
        out[np.diag_indices(len(some))] = self.diagonal[some]
        return out

    def whole(self) -> Array:
        """Write K to `array` and return it; the lower triangle is overwritten."""
        mirror(self.array)
        self.array[np.diag_indices(len(self))] = self.diagonal
        return self.array


def clear_upper(A: Array) -> Array:
    """Write zeros above the diagonal of A, and return it."""
    for i in range(0, len(A), _STRIP):
        j = i + _STRIP
        A[:i, i:j] = 0
        A[i:j, i:j] = np.tril(A[i:j, i:j])
    return A


def add_outer(A: Array, left: Array, right: Array) -> None:
    """Add left·rightᵀ, (m, k) each, to A in place."""
    if A.flags.f_contiguous:
        A, left, right = A.T, right, left
    for i in range(0, len(A), _STRIP):
        A[i : i + _STRIP] += left[i : i + _STRIP] @ right.T


def congruence(lower: Array, G: Array, kept: Array) -> Array:
    """Compute L⁻¹G'L⁻ᵀ (r, r), G' the rows and columns `kept` (r,) of a symmetric G, L in column order; m³ flops."""
    rows = G[np.ix_(kept, kept)].T  # in column order, as LAPACK expects
    out = blas.congruent(rows, lower)
    mirror(out.T)  # its lower triangle is complete
    return np.asarray(out)


def regularise(G: Array, alpha: float) -> Array:
    """Return a copy G + αI of a symmetric G in column order, as LAPACK expects."""
    regular = np.array(G if G.flags.f_contiguous else G.T, order="F")
    regular[np.diag_indices(len(G))] += alpha
    return regular


def times_triangle(A: Array, C: Array, *, lower: bool, transposed: bool = False) -> Array:
    """Compute AC or AᵀC, (r, c), from one triangle of A (r, r) in column order; the other one is not read.

    The last row of an A (r + 1, r) is not read.
    """
    if (own := on_device.placed(A)) is not None:
        return own.times_triangle(C, lower=lower, transposed=transposed)
    if C.shape[1] == 1 and len(A) == len(C):
        (trmv,) = linalg.get_blas_funcs(("trmv",), (A, C))
        return np.asarray(trmv(A, C[:, 0], lower=int(lower), trans=int(transposed)))[:, None]
    (trmm,) = linalg.get_blas_funcs(("trmm",), (A, C))
    return np.asarray(trmm(1.0, A, C, lower=int(lower), trans_a=int(transposed)))


def solve_factored(factor: Array, C: Array, *, lower: bool) -> Array:
    """Compute A⁻¹C (r, c) from the Cholesky factor of A = LLᵀ, or A = RᵀR, in one triangle of `factor`."""
    if (own := on_device.placed(factor)) is not None:
        half = own.solve_triangle(C, lower=lower, transposed=not lower)
        return own.solve_triangle(half, lower=lower, transposed=lower)
    if C.shape[1] != 1:
        return np.asarray(linalg.cho_solve((factor, lower), C, check_finite=False))
    # LAPACK's routine for many columns has a third of the speed for a single one
    for trans in "NT" if lower else "TN":
        C = linalg.solve_triangular(factor, C, lower=lower, trans=trans, check_finite=False)
    return np.asarray(C)


def solve_lower(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """Compute L⁻¹C or L⁻ᵀC, (r,) or (r, c), of a lower triangular L (r, r)."""
    if (own := on_device.placed(factor)) is not None:
        columns = right.reshape(len(right), -1)
        return own.solve_triangle(columns, lower=True, transposed=transposed).reshape(right.shape)
    trans = "T" if transposed else "N"
    return np.asarray(linalg.solve_triangular(factor, right, lower=True, trans=trans, check_finite=False))


def probes(size: int, count: int = PROBES) -> Array:
    """Return `count` ≤ 8 fixed vectors of ±1, (size, count): signs of quadratic chirps, much like random signs."""
    j = np.arange(1.0, size + 1)[:, None]
    # j²√p modulo 1, p the first primes
    return np.where(np.modf(j * j * np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0][:count]))[0] < 0.5, 1.0, -1.0)


def frobenius(array: Array) -> float:
    """Compute the Frobenius norm without overflow or underflow of squares."""
    with np.errstate(over="ignore", under="ignore"):
        size = float(np.linalg.norm(array))
        largest = float(np.abs(array).max(initial=0.0)) if not 1e-15 < size < 1e15 else 0.0
        return largest * float(np.linalg.norm(array / largest)) if 0 < largest < np.inf else size


def factorization(A: Array | Upper, lower: Array, *, kept: Array | None = None, norm: float | None = None) -> float:
    """Return the residual ratio of L (lower triangle) as the Cholesky factor of A, or of its rows `kept` (r,)."""
    V = probes(len(lower))
    spread = V if kept is None else np.zeros((len(A), V.shape[1]))
    if kept is not None:
        spread[kept] = V
    of_A = A @ spread if kept is None else (A @ spread)[kept]
    left = of_A - times_triangle(lower, times_triangle(lower, V, lower=True, transposed=True), lower=True)
    size = frobenius(np.asarray(A)) if norm is None else norm
    return _ratio(_norm(left, V), len(lower) * float(np.finfo(lower.dtype).eps) * size)


def solution(A: Array, shift: float, w: Array, C: Array) -> float:
    """Return the residual ratio of w as the solution of (A + shift·I)w = C; A (m,) is a diagonal matrix."""
    if w.shape[1] > PROBES:  # a few combinations of many right-hand sides
        V = probes(w.shape[1])
        w, C = w @ V, C @ V
    largest = max(float(np.abs(w).max(initial=0.0)), float(np.abs(C).max(initial=0.0)), _TINY)
    w, C = w / largest, C / largest  # their products stay in range
    left = (_times(A, w) if A.ndim == 2 else A[:, None] * w) + shift * w - C
    return of_residual(left, frobenius(A) + shift * len(A) ** 0.5, w, C)


def of_residual(left: Array, size: float, w: Array, C: Array) -> float:
    """Return the residual ratio of w (m, c) as the solution of Aw = C, from left = Aw − C and the norm of A."""
    return _ratio(frobenius(left), len(w) * float(np.finfo(w.dtype).eps) * (size * frobenius(w) + frobenius(C)))


def eigen(A: Array, values: Array, vectors: Array) -> tuple[float, float]:
    """Return the ratios of residual and orthogonality of k eigenpairs, values (k,) and vectors (m, k)."""
    V = probes(len(values))
    of_Z, ulp = vectors @ V, float(np.finfo(vectors.dtype).eps)
    residual, skew = _norm(A @ of_Z - vectors @ (values[:, None] * V), V), _norm(vectors.T @ of_Z - V, V)
    return _ratio(residual, len(A) * ulp * frobenius(A)), _ratio(skew, len(A) * ulp)


def smallest_eigenvalue(solve: Callable[[Array], Array], size: int, *, steps: int = 3) -> float:
    """Estimate the least eigenvalue of A from above by inverse iteration; `solve(v)` = A⁻¹v (size, 1)."""
    v, quotient = probes(size, 1), 0.0
    for _ in range(steps):
        v = v / max(float(np.abs(v).max()), _TINY)
        v = v / np.linalg.norm(v)
        solved = solve(v)
        # vᵀA⁻¹v of a unit vector is at most 1/λ_min
        quotient, v = float(v[:, 0] @ solved[:, 0]), solved
    return 1 / max(quotient, _TINY)


def dof_vectors(size: int) -> Array:
    """Return V (r, k) with tr A ≈ r ‖V‖⁻² tr VᵀAV: unit vectors up to r = 512; beyond, 8 vectors of ±1.

    The relative error of degrees of freedom is about 1/√(4·dof).
    """
    return np.eye(size) if size <= EXACT_DOF else probes(size, DOF_PROBES)


def duplicates(Z: Array) -> int:
    """Count the rows of Z (m, d) that repeat another row."""
    different = {hashlib.sha256((row + 0.0).tobytes()).digest() for row in Z}  # −0 is 0
    return len(Z) - len(different)


def constant_features(Z: Array) -> int:
    """Count the constant columns of Z (m, d)."""
    return int((Z[:1] == Z).all(axis=0).sum())


@dataclass(frozen=True)
class Errors:
    """Estimated errors of predictions on the rows of the fit, relative to their norm, by cause.

    `advice` names the reason of large errors and the remedy; `widest`: the blocks are float64, the finest dtype.
    `doubt`: possible error by directions that count as null, which a QR factorisation resolves; it causes no warning.
    """

    sums: float
    solve: float
    blocks: float
    advice: str = "similar landmarks with a small penalty; use a larger alpha, a narrower kernel or fewer landmarks"
    widest: bool = False
    doubt: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return the errors as figures of a fit report."""
        causes = {"error_of_sums": self.sums, "error_of_solve": self.solve, "error_of_blocks": self.blocks}
        return {"prediction_error": self.total, **causes}

    @property
    def total(self) -> float:
        """Root of the sum of squares; infinite if G is all rounding."""
        return float(np.sqrt(self.sums**2 + self.solve**2 + self.blocks**2))

    @property
    def note(self) -> str:
        """The text of the warning; "" if errors are small."""
        if self.total <= ENOUGH:
            return ""
        causes = {"the moments": self.sums, "the solve": self.solve, "kernel values": self.blocks}
        worst = max(causes, key=lambda name: causes[name])
        far = f"{self.total:.1g} of their norm" if self.total < 1 else "all of their norm"
        further = ", or scale the values towards zero" if self.widest else ", or dtype='float64'"
        return (
            f"predictions may differ from least squares in float64 by {far} (expected at most {ENOUGH:.1g}): rounding "
            f"error of {worst}, from {self.advice}{further if worst == 'kernel values' else ''}"
        )


@dataclass
class SolveDiagnostics:
    """Residuals, conditions and notes of the solves of a fit, collected by solvers for the fit report."""

    ratios: dict[str, float] = field(default_factory=dict)  # residual ratios by name
    # condition numbers, effective degrees of freedom, counts
    figures: dict[str, float | int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # texts of warnings
    rounding: float = 0.0  # of moments: size of the most negative eigenvalue of G
    penalty_lost: bool = False  # rounding exceeds the penalty a hundredfold, so that alpha has no effect
    errors: Errors | None = None  # of predictions, if the sums were probed

    def take_worst(self, other: SolveDiagnostics) -> None:
        """Merge the diagnostics of another solve of the same fit, keeping the worse of each."""
        for mine, theirs in ((self.ratios, other.ratios), (self.figures, other.figures)):
            mine.update({name: max(value, mine.get(name, value)) for name, value in theirs.items()})
        self.notes += [note for note in other.notes if note not in self.notes]
        self.rounding, self.penalty_lost = max(self.rounding, other.rounding), self.penalty_lost or other.penalty_lost
        if self.errors is None or (other.errors is not None and other.errors.total > self.errors.total):
            self.errors = other.errors

    def warn(self) -> None:
        """Warn of notes, of ratios above 30 and of errors of predictions beyond a thousandth."""
        high = [f"{name} {ratio:.3g}" for name, ratio in self.ratios.items() if not ratio <= LIMIT]
        if high:
            self.notes.append(
                f"the residuals of the solve exceed rounding error ({', '.join(high)}; expected at most "
                f"{LIMIT:.0f}): the fit is unreliable; use a larger alpha, fewer landmarks or dtype='float64', and "
                "check the BLAS library"
            )
        for note in self.notes:
            warnings.warn(note, RankDeficiencyWarning, 4)
        if self.errors is not None and self.errors.note:
            warnings.warn(self.errors.note, AccuracyWarning, 4)

    def report(self) -> dict[str, float | int]:
        """Return all figures as plain data."""
        errors = {} if self.errors is None else self.errors.figures()
        return {**self.ratios, **self.figures, **errors, "rounding": self.rounding}


def warn_or_note(note: str, warn: bool, diagnostics: SolveDiagnostics | None) -> None:
    """Add a note, unless empty, to the diagnostics, or without diagnostics issue it as a warning if `warn`."""
    if diagnostics is not None:
        diagnostics.notes += [note] if note else []
    elif warn and note:
        warnings.warn(note, RankDeficiencyWarning, 4)


def _norm(RV: Array, V: Array) -> float:
    # ‖R‖² from RV: the mean of ‖Rv‖²/‖v‖² over the columns, times their length
    return frobenius(RV) * float(np.sqrt(len(V) / max(float((V * V).sum()), 1.0)))


def _times(A: Array, V: Array) -> Array:
    # products with single vectors read A once; those with a few copy it first
    return np.stack([A @ v for v in V.T], axis=1) if V.shape[1] <= PROBES else A @ V


def _ratio(error: float, unit: float) -> float:
    return 0.0 if error == 0 else error / max(unit, _TINY)

"""Moments in the coordinates in which every method below is plain ridge: the core whitened, the means taken out.

φ = L⁻¹ Π k(Z, x) with ΠK_mmΠᵀ = LLᵀ (pivoted Cholesky, stopped at the numerical rank). Any whitening with the same
span gives the same model; this one needs no eigendecomposition. A core that is not positive (sigmoid kernels) goes
through its eigenvectors, its negative part is dropped, and a warning says so.
Shapes: p columns of the map, r the rank kept, c targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.kernels import positive_definite
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import (
    SolveDiagnostics,
    Upper,
    add_outer,
    congruence,
    solve_factored,
    solve_lower,
    times_triangle,
)
from bigkernel.statistics.moments import Moments


@dataclass(frozen=True)
class Whitening:
    """T (p×r) with TᵀK_mmT = I, applied without being formed where it is triangular.

    Maps that are features already need none: `Whitening(p, p)`.
    """

    width: int  # p
    rank: int  # r
    pivots: Array | None = None  # (r,) the landmarks kept, or None: all, through `basis`
    # (r, r) in column order, L in its lower triangle, or None; what is above the diagonal is no part of L
    factor: Array | None = None
    # (p, r), T itself, for cores that are not positive; with neither factor nor basis, T is the identity
    basis: Array | None = None
    # K_mm, above the diagonal of `factor`; None where landmarks were left out, or there is no factor
    core: Upper | None = None

    @property
    def condition(self) -> float:
        """About that of the core as kept: how much whitening adds to the rounding of moments."""
        pivots = np.diagonal(np.eye(1) if self.factor is None else self.factor)
        return float((pivots.max() / pivots.min()) ** 2)

    def reduce(self, C: Array) -> Array:
        """TᵀC, for C (p,) or (p, c)."""
        if self.basis is not None:
            return np.asarray(self.basis.T @ C)
        if self.factor is None:
            return C
        # TᵀC = L⁻¹ΠC
        return solve_lower(self.factor, C[self.pivots])

    def rotate(self, G: Array) -> Array:
        """TᵀGT (r×r), for G (p×p) symmetric."""
        if self.basis is not None:
            rotated: Array = self.basis.T @ G @ self.basis
        elif self.factor is None:
            rotated = G
        else:
            assert self.pivots is not None
            return congruence(self.factor, G, self.pivots)
        return (rotated + rotated.T) / 2

    def expand(self, w: Array) -> Array:
        """Tw: coefficients over the landmarks, (p,) or (p, c), of weights w (r,) or (r, c)."""
        if self.basis is not None:
            return np.asarray(self.basis @ w)
        if self.factor is None:
            return w
        out = np.zeros((self.width, *w.shape[1:]))
        out[self.pivots] = linalg.solve_triangular(self.factor, w, lower=True, trans="T", check_finite=False)
        return out

    def weights(self, B: Array) -> Array:
        """w (r, c) with Tw = B (p, c), coefficients over landmarks none of which is left out."""
        assert self.factor is not None
        return times_triangle(self.factor, B[self.pivots], lower=True, transposed=True)

    def restore(self, C: Array) -> Array:
        """X (p, c) with TᵀX = C (r, c): what moments are moved by that are moved by C in whitened coordinates."""
        if self.basis is not None:  # its columns are orthogonal
            return np.asarray(self.basis @ (C / (self.basis**2).sum(axis=0)[:, None]))
        if self.factor is None:
            return C
        out = np.zeros((self.width, *C.shape[1:]))
        out[self.pivots] = times_triangle(self.factor, C, lower=True)
        return out


def whiten(
    core: Array,
    *,
    eps: float = float(np.finfo(np.float64).eps),
    kernel: str = "",
    warn: bool = True,
    diagnostics: SolveDiagnostics | None = None,
    overwrite: bool = False,
) -> Whitening:
    """Whiten the m×m core, keeping what exceeds m·eps of its largest part, and warn of what is dropped.

    `eps` is the relative precision of the blocks that the moments were made from, `kernel` its name for the warnings
    (`RankDeficiencyWarning`), in place of which diagnostics take notes, with the residual and the condition.
    `overwrite`: the core may be lost, and its memory becomes that of the factor.
    """
    m, scale = len(core), max(float(core.max(initial=0.0)), -float(core.min(initial=0.0)))
    if scale == 0:
        residuals.warn_or_note(
            f"{kernel} kernel: the kernel matrix of {m} landmarks is zero, and so are the predictions",
            warn,
            diagnostics,
        )
        return Whitening(m, 0, basis=np.zeros((m, 0)))
    tolerance, norm = m * eps * scale, residuals.frobenius(core)
    # in column order, as LAPACK wants it: the transpose of a symmetric matrix costs nothing
    factor = core if core.flags.f_contiguous else core.T
    factor = factor if overwrite and factor.flags.f_contiguous else np.array(factor, order="F")
    above = Upper(factor, np.diagonal(core).copy())
    factor, pivots, rank, _ = linalg.lapack.dpstrf(factor, tol=tolerance, lower=1, overwrite_a=1)
    pivots = pivots.astype(np.int64) - 1
    kept = pivots[:rank]
    if rank < m:
        lost = pivots[rank:]
        # what is left of a positive core, K − LLᵀ, is below the tolerance; of an indefinite one it is not
        rest = above.part(lost) - factor[rank:, :rank] @ factor[rank:, :rank].T
        if np.abs(rest).max() > 10 * np.sqrt(m) * tolerance:
            return _whiten_indefinite(above.whole(), eps, kernel, warn, diagnostics)
        residuals.warn_or_note(
            f"{kernel} kernel: the kernel matrix of {m} landmarks has numerical rank {rank}; dropping {m - rank} "
            f"landmarks that repeat others (the first is {int(lost.min())})",
            warn,
            diagnostics,
        )
    lower = factor if rank == m else np.asfortranarray(factor[:rank, :rank])
    if diagnostics is not None:
        diagnostics.ratios["whitening"] = residuals.factorization(above, lower, kept=kept, norm=norm)
        # to a factor of about 3, and rather below it
        least = residuals.smallest_eigenvalue(partial(solve_factored, lower, lower=True), len(lower), steps=2)
        diagnostics.figures["core_condition"] = norm / least
    return Whitening(m, int(rank), pivots=kept, factor=lower, core=above if rank == m else None)


def _whiten_indefinite(
    core: Array, eps: float, kernel: str, warn: bool, diagnostics: SolveDiagnostics | None
) -> Whitening:
    # K_mm = U D Uᵀ, keep D_j > m·eps·D_max: φ(x) = D^{-1/2} Uᵀ k(Z, x)
    values, vectors = linalg.eigh(core, driver="evd")
    keep = values > len(core) * eps * np.abs(values).max()
    residuals.warn_or_note(
        positive_definite.negative_note(values, kernel, tolerance=len(core) * eps), warn, diagnostics
    )
    if diagnostics is not None:
        diagnostics.ratios["whitening"], diagnostics.ratios["orthogonality"] = residuals.eigen(core, values, vectors)
        if keep.any():
            diagnostics.figures["core_condition"] = float(values[keep].max() / values[keep].min())
    return Whitening(len(core), int(keep.sum()), basis=vectors[:, keep] / np.sqrt(values[keep]))


@dataclass(frozen=True)
class Reduced:
    """Moments in whitened coordinates, centred when an intercept is wanted.

    G (r×r), C (r, c), and the means of the features (r,) and targets (c,) that
    were taken out (zeros without an intercept); q (c,) = Σ w (y − mean)².
    """

    n: float
    G: Array
    C: Array
    q: Array
    mean: Array
    target_mean: Array


def reduced(moments: Moments, whitening: Whitening) -> Moments:
    """Moments of the whitened features, about 0.

    Those about a shift are whitened as they are: with smaller entries rounding is smaller, which whitening amplifies.
    """
    G, C, s = whitening.rotate(moments.G), whitening.reduce(moments.C), whitening.reduce(moments.s)
    if moments.shift is not None:
        a = whitening.reduce(moments.shift)
        # G + saᵀ + asᵀ + n·aaᵀ
        add_outer(G, np.column_stack([s, a]), np.column_stack([a, s + moments.n * a]))
        C, s = C + np.outer(a, moments.t), s + moments.n * a
    return replace(moments, G=G, C=C, s=s, shift=None)


def centre(moments: Moments, *, fit_intercept: bool) -> Reduced:
    """For an intercept, take the means out: G − ssᵀ/n, C − stᵀ/n; exact, without the data."""
    G, C, s = moments.G, moments.C, moments.s
    if not fit_intercept or moments.n == 0:
        return Reduced(float(moments.n), G, C, moments.q, np.zeros_like(s), np.zeros_like(moments.t))
    mean, target_mean = s / moments.n, moments.t / moments.n
    q = moments.q - moments.n * target_mean**2
    G = np.array(G)
    add_outer(G, -mean[:, None], s[:, None])
    return Reduced(float(moments.n), G, C - np.outer(mean, moments.t), np.maximum(q, 0), mean, target_mean)


def centred(moments: Moments, whitening: Whitening, *, fit_intercept: bool) -> tuple[Moments, Moments, Reduced]:
    """Return the moments that are whitened, the whitened ones, and these centred.

    For an intercept they stay about the shift until their means are taken out: about 0 they may be too large.
    """
    raw = replace(moments, shift=None) if fit_intercept else moments
    rotated = reduced(raw, whitening)
    small = centre(rotated, fit_intercept=fit_intercept)
    if fit_intercept and moments.shift is not None and moments.n > 0:
        small = replace(small, mean=small.mean + whitening.reduce(moments.shift))
    return raw, rotated, small


def top_eigen(S: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest eigenvalues (descending) and their vectors (columns) of a symmetric matrix."""
    size = len(S)
    count = min(count, size)
    if not count:
        return np.zeros(0), np.zeros((size, 0))
    if size <= 600 or 3 * count > size:  # all of them by divide and conquer: sooner than bisection for some
        values, vectors = linalg.eigh(S, driver="evd", check_finite=False)
    else:
        values, vectors = linalg.eigh(S, subset_by_index=(size - count, size - 1), check_finite=False)
    return values[::-1][:count], vectors[:, ::-1][:, :count]


def positive_part(values: Array, vectors: Array) -> tuple[Array, Array]:
    """Leave out eigenvalues that are rounding (below size·eps of the largest)."""
    keep = values > len(vectors) * np.finfo(np.float64).eps * max(float(np.abs(values).max(initial=0.0)), 1e-300)
    return values[keep], vectors[:, keep]


def signs(columns: Array) -> Array:
    """±1 (c,), the sign of the largest entry of each column (m, c): that of an eigenvector is arbitrary."""
    largest = np.take_along_axis(columns, np.abs(columns).argmax(axis=0)[None], axis=0)[0]
    return np.where(largest < 0, -1.0, 1.0)

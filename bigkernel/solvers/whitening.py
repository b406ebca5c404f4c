"""Moments in the coordinates in which methods are plain ridge: the core is whitened, means are subtracted.

φ = L⁻¹ Π k(Z, x) with ΠK_mmΠᵀ = LLᵀ (pivoted Cholesky, stopped at the numerical rank). Any whitening with the same
span gives the same model; this one needs no eigendecomposition. A core that is not positive (sigmoid kernels) is
whitened by eigenvectors, and its negative part is dropped with a warning.
Shapes: p columns of the map, r the rank kept, c targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.kernels import on_device, positive_definite
from bigkernel.kernels.blas import write_lower
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
from bigkernel.streaming.devices import HOST


@dataclass(frozen=True)
class Whitening:
    """T (p×r) with TᵀK_mmT = I, applied without forming it if it is triangular.

    Feature maps that need no whitening have the identity, `Whitening(p, p)`.
    """

    width: int  # p
    rank: int  # r
    pivots: Array | None = None  # (r,) the landmarks kept; None: all, through `basis`
    # (r, r) in column order, L in its lower triangle, or None; entries above the diagonal do not belong to L
    factor: Array | None = None
    # (p, r), T itself, for cores that are not positive; with neither factor nor basis, T is the identity
    basis: Array | None = None
    # K_mm, stored above the diagonal of `factor`; None if landmarks were left out, or there is no factor
    core: Upper | None = None

    @property
    def condition(self) -> float:
        """Estimated condition of the kept core, by which whitening amplifies the rounding of moments."""
        pivots = np.diagonal(np.eye(1) if self.factor is None else self.factor)
        return float((pivots.max() / pivots.min()) ** 2)

    def reduce(self, C: Array) -> Array:
        """Compute TᵀC, for C (p,) or (p, c)."""
        if self.basis is not None:
            return np.asarray(self.basis.T @ C)
        if self.factor is None:
            return C
        # TᵀC = L⁻¹ΠC
        return solve_lower(self.factor, C[self.pivots])

    def rotate(self, G: Array) -> Array:
        """Compute TᵀGT (r×r), for G (p×p) symmetric."""
        if self.basis is not None:
            rotated: Array = self.basis.T @ G @ self.basis
        elif self.factor is None:
            rotated = G
        else:
            assert self.pivots is not None
            return congruence(self.factor, G, self.pivots)
        return (rotated + rotated.T) / 2

    def expand(self, w: Array) -> Array:
        """Compute Tw, coefficients over the landmarks, (p,) or (p, c), of weights w (r,) or (r, c)."""
        if self.basis is not None:
            return np.asarray(self.basis @ w)
        if self.factor is None:
            return w
        out = np.zeros((self.width, *w.shape[1:]))
        out[self.pivots] = solve_lower(self.factor, w, transposed=True)
        return out

    def weights(self, B: Array) -> Array:
        """Compute w (r, c) with Tw = B (p, c), coefficients over the landmarks, none of them left out."""
        assert self.factor is not None
        return times_triangle(self.factor, B[self.pivots], lower=True, transposed=True)

    def restore(self, C: Array) -> Array:
        """Compute X (p, c) with TᵀX = C (r, c): a change of moments whose whitened form is C."""
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
    """Whiten the m×m core up to its numerical rank, by pivots above m·eps, and warn of what is dropped.

    `eps` is the relative precision of the blocks of the moments, `kernel` the name for warnings
    (`RankDeficiencyWarning`), which become notes if there are diagnostics; these take also residual and condition.
    `overwrite`: the memory of the core is reused for the factor.
    """
    m, scale = len(core), max(float(core.max(initial=0.0)), -float(core.min(initial=0.0)))
    note = partial(residuals.warn_or_note, warn=warn, diagnostics=diagnostics)
    if scale == 0:
        note(f"{kernel} kernel: the kernel matrix of {m} landmarks is zero, and so are the predictions")
        return Whitening(m, 0, basis=np.zeros((m, 0)))
    # pivots up to this are rounding: their landmarks depend on others
    tolerance, norm = m * eps * scale, residuals.frobenius(core)
    # in column order, as LAPACK expects: the transpose of a symmetric matrix costs nothing
    factor = core if core.flags.f_contiguous else core.T
    factor = factor if overwrite and factor.flags.f_contiguous else np.array(factor, order="F")
    above = Upper(factor, np.diagonal(core).copy())
    # a device factors without pivots, which suffices where all of them are above the tolerance
    unpivoted = None if on_device.device_for(m) is HOST else on_device.cholesky(factor, tolerance)
    if unpivoted is not None:
        write_lower(factor, unpivoted)
        pivots, rank = np.arange(m), m
    else:
        factor, pivots, rank, _ = linalg.lapack.dpstrf(factor, tol=tolerance, lower=1, overwrite_a=1)
        pivots = pivots.astype(np.int64) - 1
    kept = pivots[:rank]
    if rank < m:
        lost = pivots[rank:]
        # the rest of a positive core, K − LLᵀ, is below the tolerance; that of an indefinite one is not
        rest = above.select(lost) - factor[rank:, :rank] @ factor[rank:, :rank].T
        if np.abs(rest).max() > 10 * np.sqrt(m) * tolerance:
            return _whiten_indefinite(above.whole(), eps, kernel, warn, diagnostics)
        note(
            f"{kernel} kernel: the kernel matrix of {m} landmarks has numerical rank {rank}; dropping {m - rank} "
            f"landmarks that depend linearly on others (the first is {int(lost.min())}): columns of unequal scale, "
            "repeated rows or a wide kernel"
        )
    lower = factor if rank == m else np.asfortranarray(factor[:rank, :rank])
    if diagnostics is not None:
        diagnostics.ratios["whitening"] = residuals.factorization(above, lower, kept=kept, norm=norm)
        # accurate to a factor of about 3, and rather too small
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
    """Moments in whitened coordinates, centred if an intercept is fitted.

    G (r×r), C (r, c), and the subtracted means of the features (r,) and targets (c,), zeros without an intercept;
    q (c,) = Σ w (y − mean)².
    """

    n: float
    G: Array
    C: Array
    q: Array
    mean: Array
    target_mean: Array


def reduce_moments(moments: Moments, whitening: Whitening) -> Moments:
    """Compute the moments of whitened features about 0.

    Moments about a shift are whitened first and shifted then: smaller entries have less rounding to amplify.
    """
    return _shift_to_zero(whiten_moments(moments, whitening), whitening)


def whiten_moments(moments: Moments, whitening: Whitening) -> Moments:
    """Compute the moments of whitened features, about the whitened `shift`, which is kept as it is."""
    G, C, s = whitening.rotate(moments.G), whitening.reduce(moments.C), whitening.reduce(moments.s)
    return replace(moments, G=G, C=C, s=s)


def _shift_to_zero(whitened: Moments, whitening: Whitening) -> Moments:
    # G is overwritten
    G, C, s = whitened.G, whitened.C, whitened.s
    if whitened.shift is not None:
        a = whitening.reduce(whitened.shift)
        # G + saᵀ + asᵀ + n·aaᵀ
        add_outer(G, np.column_stack([s, a]), np.column_stack([a, s + whitened.n * a]))
        C, s = C + np.outer(a, whitened.t), s + whitened.n * a
    return replace(whitened, G=G, C=C, s=s, shift=None)


def centre(moments: Moments, *, fit_intercept: bool) -> Reduced:
    """Centre moments if an intercept is fitted: G − ssᵀ/n, C − stᵀ/n."""
    G, C, s = moments.G, moments.C, moments.s
    if not fit_intercept or moments.n == 0:
        return Reduced(float(moments.n), G, C, moments.q, np.zeros_like(s), np.zeros_like(moments.t))
    mean, target_mean = s / moments.n, moments.t / moments.n
    q = moments.q - moments.n * target_mean**2
    G = np.array(G)
    add_outer(G, -mean[:, None], s[:, None])
    return Reduced(float(moments.n), G, C - np.outer(mean, moments.t), np.maximum(q, 0), mean, target_mean)


def reduce_and_centre(
    moments: Moments, whitening: Whitening, *, fit_intercept: bool
) -> tuple[Moments, Moments, Reduced]:
    """Return the moments before whitening, the whitened ones, and these centred.

    With an intercept they stay about the shift until they are centred: about 0 they may be too large.
    """
    raw = replace(moments, shift=None) if fit_intercept else moments
    return raw, *centre_whitened(whiten_moments(moments, whitening), whitening, fit_intercept=fit_intercept)


def centre_whitened(whitened: Moments, whitening: Whitening, *, fit_intercept: bool) -> tuple[Moments, Reduced]:
    """Return whitened moments (`whiten_moments`), without an intercept about 0, and these centred; G is overwritten."""
    if not fit_intercept:
        rotated = _shift_to_zero(whitened, whitening)
        return rotated, centre(rotated, fit_intercept=False)
    rotated = replace(whitened, shift=None)
    small = centre(rotated, fit_intercept=True)
    if whitened.shift is not None and whitened.n > 0:
        small = replace(small, mean=small.mean + whitening.reduce(whitened.shift))
    return rotated, small


def top_eigen(S: Array, count: int) -> tuple[Array, Array]:
    """Compute the `count` largest eigenvalues (descending) and eigenvectors (columns) of a symmetric matrix."""
    size, count = len(S), min(count, len(S))
    if not count:
        return np.zeros(0), np.zeros((size, 0))
    if size <= 600 or 3 * count > size:  # all of them by divide and conquer, faster than some by bisection
        values, vectors = linalg.eigh(S, driver="evd", check_finite=False)
    else:
        values, vectors = linalg.eigh(S, subset_by_index=(size - count, size - 1), check_finite=False)
    return values[::-1][:count], vectors[:, ::-1][:, :count]


def positive_part(values: Array, vectors: Array) -> tuple[Array, Array]:
    """Drop eigenvalues below rounding (size·eps of the largest)."""
    keep = values > len(vectors) * np.finfo(np.float64).eps * max(float(np.abs(values).max(initial=0.0)), 1e-300)
    return values[keep], vectors[:, keep]


def signs(columns: Array) -> Array:
    """Return the sign ±1 (c,) of the largest entry of each column (m, c), to fix signs of eigenvectors."""
    largest = np.take_along_axis(columns, np.abs(columns).argmax(axis=0)[None], axis=0)[0]
    return np.where(largest < 0, -1.0, 1.0)

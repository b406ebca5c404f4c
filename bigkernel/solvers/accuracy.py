"""Estimate the error of predictions against least squares in float64, by a second solve from perturbed sums.

Eigenfunctions, canonical directions and components are not linear in the sums, and have no error formula like that of
ridge (`solvers.ridge`). For them a random rounding error E of the estimated size is added to the sums of each group of
rows, and noise of float32 blocks as estimated at a few points:
    G + E,            Var E_ij = a_i a_j / Σa in whitened coordinates,
    Σ φy, Σ φ         of variances a_i / tr TᵀT, as E has in the columns of the map, relative to the size of a column,
    Σ δφᵀ, Σ δyᵀ, Σ δ  with Var δ_i = d_i: D^½ Ξ M^½ for M = Σ [φ, y, 1]ᵀ[φ, y, 1], jointly.
A solve from these differs from the fit by about as much as the fit differs from that of exact sums.

Shapes: n rows, p columns of the map, r whitened coordinates, c targets, k vectors of the probe, g groups of rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import linalg

from bigkernel.arrays import Array
from bigkernel.solvers.residuals import VECTORS, probes
from bigkernel.solvers.ridge import RoundingEstimate
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments
from bigkernel.streaming.plan import Accumulator

_JITTER = 1e-12  # pivots below it, relative to the largest moment, end the Cholesky factor of moments of few rows
_CONSTANT = 1e-12  # share of ‖predictions‖² about their mean below which they count as constant
_CAUTION = 10.0  # factor by which predictions may vary more on the rows than at the sample points


def perturb_sums(
    total: Accumulator, whitening: Whitening, estimate: RoundingEstimate, rng: np.random.Generator, *, sums: bool = True
) -> Accumulator:
    """Perturb sums (about any point) by random rounding errors and block noise; without `sums` by the latter only."""
    out = {**total, "G": total["G"].copy(), "C": total["C"].copy(), "s": total["s"].copy()}
    for g, (E, others) in enumerate(perturbations(total, whitening, estimate, rng, sums=sums)):
        further = whitening.restore(others)
        out["C"][g] += further[:, :-1]
        out["s"][g] += further[:, -1]
        out["G"][g] += whitening.restore(whitening.restore(E).T)
    return out


def perturbations(
    total: Accumulator, whitening: Whitening, estimate: RoundingEstimate, rng: np.random.Generator, *, sums: bool = True
) -> Iterator[tuple[Array, Array]]:
    """Yield those of the whitened sums of each group: of G (r, r), and of C and s, (r, c + 1)."""
    d = estimate.blocks
    z = probes(whitening.rank, VECTORS)
    spread = float((whitening.expand(z) ** 2).sum()) / max(float((z**2).sum()), 1.0)
    rows, probed, pooled = total["rows"], total["probed_rows"], total["E"].sum(axis=0)
    for g in range(len(rows)):
        # Ev (p, k) of a group from its probed rows; a group without any is assumed to be like the others
        share = rows[g] / probed[g] if probed[g] else rows[g] / max(float(probed.sum()), 1.0)
        of_sums = total["E"][g] * np.sqrt(max(share, 1.0)) if probed[g] else pooled * np.sqrt(share)
        moments = Moments.of(total, g)
        sizes = np.append(moments.q, moments.n)
        E, others = np.zeros((whitening.rank, whitening.rank)), np.zeros((whitening.rank, len(sizes)))
        if sums:
            # aᵢ, the mean square of eᵢ over the probes: Var E_ij = aᵢaⱼ/Σa, E symmetric
            a = (whitening.reduce(of_sums) ** 2).mean(axis=1)
            upper, half = np.triu(rng.standard_normal(E.shape)), np.sqrt(a / max(float(np.sqrt(a.sum())), 1e-300))
            E += (upper + np.triu(upper, 1).T) * np.outer(half, half)
            # of Σ φy and Σ φ: aᵢ/tr TᵀT, times the size of y (or 1) relative to that of a column
            relative = sizes / max(float(np.diagonal(moments.G).mean()), 1e-300)
            own = a / max(spread * whitening.rank, 1e-300)
            others += np.sqrt(np.outer(own, np.maximum(relative, 0))) * rng.standard_normal(others.shape)
        if d is not None:
            # blocks φ + δ: Σ (φ + δ)(φ + δ)ᵀ changes by Σ δφᵀ + Σ φδᵀ
            of_features, of_others = _noise(moments, whitening, d, rng)
            E += of_features + of_features.T
            others += of_others
        yield E, others


def _noise(moments: Moments, whitening: Whitening, d: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sample Σ δφᵀ (r, r) and Σ δ[y, 1]ᵀ (r, c + 1) for rows whose whitened features have these moments."""
    G = whitening.rotate(moments.G)
    # pivots that are negative by rounding, or as small, are left out
    least = _JITTER * max(float(np.diagonal(G).max(initial=0.0)), 1e-300)
    factor, pivots, rank, _ = linalg.lapack.dpstrf(G.T, tol=least, lower=1, overwrite_a=1)
    kept, L = pivots - 1, np.tril(factor)[:, :rank]
    others = np.column_stack([whitening.reduce(moments.C), whitening.reduce(moments.s)])
    # M = (R, B)ᵀ(R, B) + diag(0, rest) with RᵀR = G and RᵀB = [C, s], R = LᵀΠ
    B = linalg.solve_triangular(L[:rank], others[kept[:rank]], lower=True, check_finite=False)
    rest = np.sqrt(np.maximum(np.append(moments.q, moments.n) - (B**2).sum(axis=0), 0))
    # D^½ Ξ (R, B): rows of variances d, correlated over the columns as M is
    noise = np.sqrt(d)[:, None] * rng.standard_normal((len(d), rank))
    apart = np.sqrt(d)[:, None] * rng.standard_normal((len(d), len(rest)))
    of_features = np.empty(G.shape)
    of_features[:, kept] = noise @ L.T
    return of_features, noise @ B + apart * rest


def changes(
    moments: Moments,
    fits: tuple[Array, Array],
    others: tuple[Array, Array],
    count: int = 1,
    *,
    up_to_rotation: bool = False,
    points: Array | None = None,
) -> Array:
    """Compute the changes of predictions between `count` fits and other solutions, relative to their norm, (count,).

    Both are coefficients and intercepts side by side, (p, count·c) and (count·c,); of a single fit, missing columns
    are zero. `up_to_rotation`: columns are components used together, so that rotations of them do not count.
    `points` is φ at some points like the rows of the fit, (k, p), used where the moments are rounding.
    """
    # of [φ − a, 1], about the shift a of the moments
    a, n = moments.shift, max(float(moments.n), 1e-300)
    W, V = (np.vstack([coef, b if a is None else b + a @ coef]) for coef, b in (fits, others))
    G = np.block([[moments.G, moments.s[:, None]], [moments.s[None], np.full((1, 1), moments.n)]])
    wide = max(W.shape[1], V.shape[1])
    W, V = (np.pad(columns, ((0, 0), (0, wide - columns.shape[1]))) for columns in (W, V))
    # V is rotated to be nearest to W (orthogonal Procrustes)
    if up_to_rotation:
        left, _, right = linalg.svd(W.T @ G @ V, full_matrices=False)
        V = V @ (left @ right).T
    U = W - V

    def by_fit(columns: Array) -> Array:
        return np.asarray(columns.reshape(count, -1).sum(axis=1))

    # ‖f‖² and ‖change of f‖² on the rows are wᵀGw and uᵀGu
    of_W = G @ W
    whole = by_fit((W * of_W).sum(axis=0))
    # the size excludes the intercept
    with_intercept = np.any(fits[1].reshape(count, -1), axis=1)
    size = np.where(with_intercept, whole - by_fit(of_W[-1] ** 2) / n, whole)
    far = np.abs(by_fit((U * (G @ U)).sum(axis=0)))
    nothing = (size <= _CONSTANT * whole) & (far <= _CONSTANT * whole)  # all variation is rounding
    nothing |= ~W.reshape(len(W), count, -1).any(axis=(0, 2))
    # where G is mostly rounding, the change at points like the rows limits it
    if points is not None:
        values = np.column_stack([points if a is None else points - a, np.ones(len(points))]) @ U
        far = np.minimum(far, _CAUTION * float(moments.n) * by_fit((values**2).mean(axis=0)))
    change = np.sqrt(np.divide(far, size, out=np.full(count, np.inf), where=size > 0))
    return np.where(nothing, 0.0, change)

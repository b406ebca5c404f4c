"""Sums that are moved as their rounding moved them, to solve from once more: what that changes is the error of a fit.

Eigenfunctions, canonical directions and components are no linear functions of the sums, and `accuracy` has no formula
for them. Here one rounding E of the sizes that a witness saw is drawn for each group of rows, and noise of float32
blocks as a few points show it, and added to the sums:
    G + E,            Var E_ij = a_i a_j / Σa in whitened coordinates (`accuracy`),
    Σ φy, Σ φ         of variances a_i / tr TᵀT, as E has them in the columns of the map, by the sizes of those columns,
    Σ δφᵀ, Σ δyᵀ, Σ δ  with Var δ_i = d_i: D^½ Ξ M^½ for M = Σ [φ, y, 1]ᵀ[φ, y, 1], alike for all three.
A solve from these differs from the fit by about as much as the fit from that of exact sums.

Shapes: p columns of the map, r whitened coordinates, c targets, k vectors of the witness, g groups of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from bigkernel.solvers.accuracy import Evidence
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments
from bigkernel.streaming.merge_tree import Accumulator

Array = NDArray[Any]
_JITTER = 1e-12  # of the largest moment: pivots below it end the Cholesky factor of moments of few rows
_CONSTANT = 1e-12  # a share of ‖predictions‖² that is left beside their mean where they are one number
_CAUTION = 10.0  # times by which predictions may vary more on the rows than where they were looked at


def roundings(total: Mapping[str, Array]) -> list[Array]:
    """Ev (p, k) of each group, from what was seen of some rows; a group without any is taken to be like the others."""
    E, seen, rows = total["E"], total["seen"], total["rows"]
    pooled, among = E.sum(axis=0), max(float(seen.sum()), 1.0)
    return [
        E[g] * np.sqrt(max(rows[g] / seen[g], 1.0)) if seen[g] else pooled * np.sqrt(rows[g] / among)
        for g in range(len(rows))
    ]


def moved(
    total: Accumulator, whitening: Whitening, evidence: Evidence, rng: np.random.Generator, *, sums: bool = True
) -> Accumulator:
    """The sums with a rounding, and with the noise of blocks where there is any; without `sums` with the latter alone.

    `total` is about any point, which the shift of the map makes one for G, C and s alike.
    """
    out = {**total, "G": total["G"].copy(), "C": total["C"].copy(), "s": total["s"].copy()}
    d = None if evidence.noise is None else (whitening.reduce(evidence.noise.T) ** 2).mean(axis=1)
    spread = float((whitening.expand(evidence.z) ** 2).sum()) / max(float((evidence.z**2).sum()), 1.0)
    for g, seen in enumerate(roundings(total)):
        moments = Moments.of(total, g)
        sizes = np.append(moments.q, moments.n)
        E, others = np.zeros((whitening.rank, whitening.rank)), np.zeros((whitening.rank, len(sizes)))
        if sums:
            a = (whitening.reduce(seen) ** 2).mean(axis=1)
            E += _rounding(a, rng)
            relative = sizes / max(float(np.diagonal(moments.G).mean()), 1e-300)
            own = a / max(spread * whitening.rank, 1e-300)
            others += np.sqrt(np.outer(own, np.maximum(relative, 0))) * rng.standard_normal(others.shape)
        if d is not None:
            of_features, of_others = _noise(moments, whitening, d, rng)
            E += of_features + of_features.T
            others += of_others
        further = whitening.restore(others)
        out["C"][g] += further[:, :-1]
        out["s"][g] += further[:, -1]
        out["G"][g] += whitening.restore(whitening.restore(E).T)
    return out


def _rounding(a: Array, rng: np.random.Generator) -> Array:
    """A symmetric matrix (r, r) whose entries have the variances a_i a_j / Σa."""
    upper = np.triu(rng.standard_normal((len(a), len(a))))
    half = np.sqrt(a / max(float(np.sqrt(a.sum())), 1e-300))
    symmetric: Array = (upper + np.triu(upper, 1).T) * np.outer(half, half)
    return symmetric


def _noise(moments: Moments, whitening: Whitening, d: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Σ δφᵀ (r, r), and Σ δ[y, 1]ᵀ (r, c + 1), of rows whose whitened features have these moments."""
    G = whitening.rotate(moments.G)
    # what rounding has made negative, and what is as small, is left out
    least = _JITTER * max(float(np.diagonal(G).max(initial=0.0)), 1e-300)
    factor, pivots, rank, _ = linalg.lapack.dpstrf(G.T, tol=least, lower=1, overwrite_a=1)
    kept, L = pivots - 1, np.tril(factor)[:, :rank]
    others = np.column_stack([whitening.reduce(moments.C), whitening.reduce(moments.s)])
    # M = (R, B)ᵀ(R, B) + diag(0, rest) with RᵀR = G and RᵀB = [C, s], R = LᵀΠ
    B = linalg.solve_triangular(L[:rank], others[kept[:rank]], lower=True, check_finite=False)
    rest = np.sqrt(np.maximum(np.append(moments.q, moments.n) - (B**2).sum(axis=0), 0))
    drawn = np.sqrt(d)[:, None] * rng.standard_normal((len(d), rank))
    apart = np.sqrt(d)[:, None] * rng.standard_normal((len(d), len(rest)))
    of_features = np.empty(G.shape)
    of_features[:, kept] = drawn @ L.T
    return of_features, drawn @ B + apart * rest


def change(
    moments: Moments, fit: tuple[Array, Array], other: tuple[Array, Array], *, turned: bool, seen: Array | None = None
) -> float:
    """How far the predictions of another solution are from those of a fit, on its rows, relative to their norm.

    Parameters
    ----------
    moments : of all rows, about any point
    fit, other : coefficients (p, c) and intercepts (c,); columns that one lacks are zero
    turned : compare up to a rotation of the columns, of components that are used together
    seen : φ at points like those rows, (k, p)
    """
    G, wide = _with_ones(moments), max(fit[0].shape[1], other[0].shape[1])
    W, V = (_lifted(moments, *one) for one in (fit, other))
    W, V = (np.pad(columns, ((0, 0), (0, wide - columns.shape[1]))) for columns in (W, V))
    if turned:
        left, _, right = linalg.svd(W.T @ G @ V, full_matrices=False)
        V = V @ (left @ right).T
    return float(_changes(moments, G, W, V, np.array([np.any(fit[1])]), seen)[0])


def changes(
    moments: Moments,
    fits: tuple[Array, Array],
    others: tuple[Array, Array],
    count: int,
    *,
    seen: Array | None = None,
) -> Array:
    """As `change`, of `count` fits side by side: (p, count·c) and (count·c,)."""
    W, V = (_lifted(moments, *one) for one in (fits, others))
    return _changes(moments, _with_ones(moments), W, V, np.any(fits[1].reshape(count, -1), axis=1), seen)


def _with_ones(moments: Moments) -> Array:
    """Σ [φ, 1][φ, 1]ᵀ."""
    return np.block([[moments.G, moments.s[:, None]], [moments.s[None], np.full((1, 1), moments.n)]])


def _lifted(moments: Moments, coef: Array, intercept: Array) -> Array:
    """Coefficients of [φ − a, 1], about the shift a of the moments, (p + 1, c)."""
    return np.vstack([coef, intercept if moments.shift is None else intercept + moments.shift @ coef])


def _changes(moments: Moments, G: Array, W: Array, V: Array, with_intercept: Array, seen: Array | None) -> Array:
    """Of k fits W and others V, (p + 1, k·c); in directions where the moments are rounding, they say too much.

    There counts what is seen at a few points.
    """
    k, n, U = len(with_intercept), max(float(moments.n), 1e-300), W - V

    def summed(columns: Array) -> Array:
        return np.asarray(columns.reshape(k, -1).sum(axis=1))

    bent = G @ W
    whole = summed((W * bent).sum(axis=0))
    # what an intercept stands for is no merit
    size = np.where(with_intercept, whole - summed(bent[-1] ** 2) / n, whole)
    far = np.abs(summed((U * (G @ U)).sum(axis=0)))
    nothing = (size <= _CONSTANT * whole) & (far <= _CONSTANT * whole)  # what varies is nothing but rounding
    nothing |= ~W.reshape(len(W), k, -1).any(axis=(0, 2))
    if seen is not None:
        a = 0 if moments.shift is None else moments.shift
        values = np.column_stack([seen - a, np.ones(len(seen))]) @ U
        far = np.minimum(far, _CAUTION * float(moments.n) * summed((values**2).mean(axis=0)))
    found = np.sqrt(np.divide(far, size, out=np.full(k, np.inf), where=size > 0))
    return np.where(nothing, 0.0, found)

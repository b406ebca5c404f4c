"""Unconstrained least-squares importance fitting (uLSIF): the ratio of two densities, from moments.

The model w(x) = φ(x)ᵀθ of the ratio target/source minimises, with means over the rows of each,

    J(θ) = ½ θᵀHθ − hᵀθ + ½ λ‖θ‖²,   H = mean of φφᵀ over the source,   h = mean of φ over the target,

so that θ = (H + λI)⁻¹h (Kanamori, Hido & Sugiyama, JMLR 2009). Moments of folds give J on held-out rows, without
another sweep. Shapes: F folds, p columns of the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bigkernel.arrays import Array

_ROUNDING = 1e-14  # eigenvalues of H below this times its largest are rounding


@dataclass(frozen=True, eq=False)
class SideMoments:
    """Sums of the rows of source and target by fold."""

    G: Array  # (F, p, p) Σ w φφᵀ of the source
    n: Array  # (F,) Σ w of the source
    s: Array  # (F, p) Σ w φ of the target
    m: Array  # (F,) Σ w of the target

    def means(self, folds: Sequence[int]) -> tuple[Array, Array]:
        """Return H (p, p) and h (p,) of the rows of some folds."""
        some = list(folds)
        n, m = max(self.n[some].sum(), 1e-300), max(self.m[some].sum(), 1e-300)
        return self.G[some].sum(axis=0) / n, self.s[some].sum(axis=0) / m


def solve_ratio(H: Array, h: Array, penalties: Sequence[float]) -> Array:
    """Return θ for each penalty λ, (p, k)."""
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    values = np.maximum(values, _ROUNDING * max(float(values[-1]), 1e-300))
    return np.asarray(vectors @ ((vectors.T @ h)[:, None] / (values[:, None] + np.asarray(penalties, float))))


def held_out_errors(moments: SideMoments, penalties: Sequence[float]) -> Array:
    """Compute ½ θᵀHθ − hᵀθ on each fold for θ without it, (F, k): half the squared error of w, less a constant."""
    every = range(len(moments.n))
    errors = []
    for fold in every:
        theta = solve_ratio(*moments.means([other for other in every if other != fold]), penalties)
        H, h = moments.means([fold])
        errors.append((theta * (H @ theta)).sum(axis=0) / 2 - h @ theta)
    return np.array(errors)


def effective_size(weights: Array) -> float:
    """Compute (Σw)²/Σw², the number of equally weighted rows of the same variance (Kish)."""
    square = float((weights**2).sum())
    return float(weights.sum()) ** 2 / square if square else 0.0

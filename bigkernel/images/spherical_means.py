"""Spherical k-means, and the inverse square root of a kernel matrix: landmarks on the unit sphere and their whitening.

Shapes: X (n, q) rows of unit length, m centres.

Dhillon & Modha, Concept decompositions for large sparse text data using clustering, Machine Learning 42 (2001).
"""

from __future__ import annotations

import numpy as np
from scipy import linalg, sparse

from bigkernel.arrays import Array

_SAMPLED = 8  # sampled rows per initial centre
_PIECE = 8192  # rows whose similarities to all centres are held at a time


def spherical_means(X: Array, count: int, rng: np.random.RandomState, *, steps: int = 15) -> Array:
    """Compute centres Z (m, q) of unit length, m ≤ count, with a large Σ max_j ⟨x, z_j⟩, by Lloyd's algorithm.

    X (n, q) has rows of unit length, float64. There are fewer centres if fewer rows are different. A centre without
    rows moves to the row that is farthest from its centre.
    """
    sampled = np.unique(X[rng.permutation(len(X))[: _SAMPLED * count]], axis=0)  # different initial centres
    Z = sampled[rng.permutation(len(sampled))[:count]]
    nearest: Array | None = None
    for _ in range(steps):
        before, (nearest, similarity) = nearest, _nearest(X, Z)
        if before is not None and np.array_equal(nearest, before):
            break
        Z = _means(X, nearest, similarity, Z)
    return Z


def _nearest(X: Array, Z: Array) -> tuple[Array, Array]:
    """Return the centre with the largest inner product, and that product, for every row."""
    nearest, similarity = np.empty(len(X), np.intp), np.empty(len(X))
    for start in range(0, len(X), _PIECE):
        rows = slice(start, start + _PIECE)
        products = X[rows] @ Z.T
        nearest[rows] = products.argmax(axis=1)
        similarity[rows] = products.max(axis=1)
    return nearest, similarity


def _means(X: Array, nearest: Array, similarity: Array, Z: Array) -> Array:
    """Return the normalised means of the rows of each centre."""
    members = sparse.csr_matrix((np.ones(len(X)), (nearest, np.arange(len(X)))), shape=(len(Z), len(X)))
    means: Array = members @ X
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    lost = np.flatnonzero(lengths <= len(X) * np.finfo(np.float64).eps)
    means[lost] = X[np.argsort(similarity, kind="stable")[: len(lost)]]
    lengths[lost] = 1
    return np.asarray(means / lengths[:, None])


def inverse_root(K: Array, floor: float) -> Array:
    """Compute (K + floor·I)^(−½) of a positive semi-definite matrix K (m, m), float64."""
    values, vectors = linalg.eigh(K, check_finite=False)
    root: Array = (vectors / np.sqrt(np.maximum(values, 0) + floor)) @ vectors.T
    return (root + root.T) / 2

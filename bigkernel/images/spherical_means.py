"""Spherical k-means, and the inverse square root of a kernel matrix: landmarks on the unit sphere and their whitening.

Shapes: X (n, q) rows of unit length, m centres.

Dhillon & Modha, Concept decompositions for large sparse text data using clustering, Machine Learning 42 (2001).
"""

from __future__ import annotations

import numpy as np
from scipy import linalg, sparse

from bigkernel.arrays import Array

_DRAWS = 8  # rows among which a first centre is drawn
_PIECE = 8192  # rows whose similarities to all centres are held at a time


def spherical_means(X: Array, count: int, rng: np.random.RandomState, *, steps: int = 15) -> Array:
    """Centres Z (m, q) of unit length, m ≤ count, that make Σ max_j ⟨x, z_j⟩ large, by Lloyd's steps from some rows.

    X (n, q) has rows of unit length, float64. There are fewer centres where fewer rows differ. A centre that no row is
    nearest to is set upon the row that is farthest from its own.
    """
    drawn = np.unique(X[rng.permutation(len(X))[: _DRAWS * count]], axis=0)  # no two centres at one place
    Z = drawn[rng.permutation(len(drawn))[:count]]
    nearest = None
    for _ in range(steps):
        found, similarity = _nearest(X, Z)
        if nearest is not None and np.array_equal(found, nearest):
            break
        nearest = found
        Z = _means(X, nearest, similarity, Z)
    return Z


def _nearest(X: Array, Z: Array) -> tuple[Array, Array]:
    """The centre with the largest inner product, and that product, for every row."""
    nearest, similarity = np.empty(len(X), np.intp), np.empty(len(X))
    for start in range(0, len(X), _PIECE):
        rows = slice(start, start + _PIECE)
        products = X[rows] @ Z.T
        nearest[rows] = products.argmax(axis=1)
        similarity[rows] = products.max(axis=1)
    return nearest, similarity


def _means(X: Array, nearest: Array, similarity: Array, Z: Array) -> Array:
    """The directions of the means of the rows of each centre."""
    members = sparse.csr_matrix((np.ones(len(X)), (nearest, np.arange(len(X)))), shape=(len(Z), len(X)))
    means: Array = members @ X
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    lost = np.flatnonzero(lengths <= len(X) * np.finfo(np.float64).eps)
    means[lost] = X[np.argsort(similarity, kind="stable")[: len(lost)]]
    lengths[lost] = 1
    return np.asarray(means / lengths[:, None])


def inverse_root(K: Array, floor: float) -> Array:
    """(K + floor·I)^(−½) of a symmetric matrix K (m, m) ≥ 0, float64."""
    values, vectors = linalg.eigh(K, check_finite=False)
    root: Array = (vectors / np.sqrt(np.maximum(values, 0) + floor)) @ vectors.T
    return (root + root.T) / 2

"""Symmetric matrices (m, m) worked on in place, some columns at a time: an m×m of its own for each step is too many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

Array = NDArray[Any]
_STRIP = 256  # columns that are worked on at a time


def mirror(A: Array, *, lower: bool) -> None:
    """Copy the other triangle into the lower (or the upper) one."""
    m = len(A)
    for i in range(0, m, _STRIP):
        j = min(i + _STRIP, m)
        corner = A[i:j, i:j]
        if lower:
            A[j:, i:j] = A[i:j, j:].T
            corner[...] = np.triu(corner) + np.triu(corner, 1).T
        else:
            A[i:j, j:] = A[j:, i:j].T
            corner[...] = np.tril(corner) + np.tril(corner, -1).T


def clear_upper(A: Array) -> Array:
    """Write zeros above the diagonal of A, and return it."""
    for i in range(0, len(A), _STRIP):
        j = i + _STRIP
        A[:i, i:j] = 0
        A[i:j, i:j] = np.tril(A[i:j, i:j])
    return A


def add_outer(A: Array, left: Array, right: Array) -> None:
    """A ← A + Σ left·rightᵀ, over the columns of left and right (m, k)."""
    if A.flags.f_contiguous:
        A, left, right = A.T, right, left
    for i in range(0, len(A), _STRIP):
        A[i : i + _STRIP] += left[i : i + _STRIP] @ right.T


def congruence(lower: Array, G: Array, kept: Array) -> Array:
    """L⁻¹G'L⁻ᵀ (r, r) of L (r, r) in column order and the rows and columns `kept` (r,) of a symmetric G; m³ flops."""
    rows = G[np.ix_(kept, kept)].T  # in column order, as LAPACK wants it
    out, info = linalg.lapack.dsygst(rows, lower, itype=1, lower=1, overwrite_a=1)
    assert info == 0
    mirror(out, lower=False)
    return np.asarray(out)


def regularised(G: Array, alpha: float) -> Array:
    """G + αI, a copy in column order, as LAPACK wants it (G is symmetric: its transpose costs nothing)."""
    regular = np.array(G if G.flags.f_contiguous else G.T, order="F")
    regular[np.diag_indices(len(G))] += alpha
    return regular


def solve_lower(factor: Array | None, right: Array) -> Array:
    """L⁻¹C of a lower triangular L (r, r), (r, c)."""
    return np.asarray(linalg.solve_triangular(factor, right, lower=True, check_finite=False))
